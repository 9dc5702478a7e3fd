"""Hostile files of every command, hostile names, and files of other users: what a command or a session finds."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.campaign.attacks import WHOLE
from benchmarks.campaign.kinds import BEFORE, KINDS, Kind, Place
from benchmarks.campaign.suite_files import SCRIPT

UNDER_TORCHRUN = "_under_torchrun"
MARK = "PWNED"  # the file that code in a name makes if something runs it
COUNTS = "--ddpperf-counts=only"
WORKLOAD = """\
import torch
from pytest_ddpperf import Workload

workload = Workload(
    model=lambda: torch.nn.Linear(8, 2),
    batch=lambda: (torch.rand(4, 8), torch.zeros(4, 2)),
    loss=torch.nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=4,
)
"""
CHECK = "\n\ndef test_fault(ddpperf):\n    ddpperf.check(workload)\n"
CONVERGE = """

def test_quality(ddpperf):
    ddpperf.converge(workload, strategies=["ddp", "flat"], steps=4, every=2, launches=3)
"""
TRACE = {"traceEvents": [{"ph": "X", "ts": 1, "dur": 5, "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1}]}
TRAIN = f"at = print\n{SCRIPT.partition('from pytest_ddpperf')[0]}if __name__ == '__main__':\n    main()\n"
GOOD = {
    "test_fault.py": WORKLOAD + CHECK + CONVERGE,
    "workload.py": WORKLOAD,
    "train.py": TRAIN,
    "README.md": "Run `torchrun --nproc-per-node=2 train.py --epochs 3` to train.\n",
    "pyproject.toml": '[project]\nname = "good"\nversion = "1"\n\n[tool.pytest.ini_options]\nddpperf_launches = "3"\n',
    "trace.json": json.dumps(TRACE),
    "old.txt": "torch==2.13.0\n",
    "new.txt": "torch>=2\n",  # which no list of pip freeze has: nothing is installed
}
BASELINE, NETWORK = "baselines/*/*/test_fault.json", "baselines/*/network.json"
TEST = ("pytest", "test_fault.py::test_fault", COUNTS)
TO_REPORTS = [f"--{kind}=out.{kind}" for kind in ("html", "markdown", "csv", "latex", "text")]
# By kind: a command, and the hostile file among those that it reads or replaces.
COMMANDS: Mapping[str, tuple[Sequence[str], str]] = {
    "lists_a_hostile_baseline": (["list"], BASELINE),
    "shows_a_hostile_baseline": (["show", "test_fault"], BASELINE),
    "compares_with_a_hostile_baseline": (TEST, BASELINE),
    "reports_hostile_results": (["report", "made.json", *TO_REPORTS], "made.json"),
    "compares_hostile_results": (["compare", "before.json", "made.json", "--html=out.html"], "made.json"),
    "adds_hostile_results": (["history", "add", "made.json", "--history=new.db"], "made.json"),
    "adds_to_a_hostile_history": (["history", "add", "before.json", "--history=h.db"], "h.db"),
    "trends_of_a_hostile_history": (["trend", "--history=h.db", "--metric=operators", "--json=out.json"], "h.db"),
    "prints_a_hostile_history": (["history", "csv", "test_fault", "--history=h.db"], "h.db"),
    "records_in_a_hostile_history": ([*TEST, "--ddpperf-history=h.db"], "h.db"),
    "summarises_a_hostile_trace": (["trace", "summary", "trace.json"], "trace.json"),
    "compares_hostile_traces": (["trace", "diff", "trace.json", "trace.json.gz"], "trace.json.gz"),
    "begins_with_a_hostile_pyproject": (["init"], "pyproject.toml"),
    "begins_with_a_hostile_readme": (["init"], "README.md"),
    "begins_with_a_hostile_script": (["init"], "train.py"),
    "reads_hostile_settings": (["list"], "pyproject.toml"),
    "searches_hostile_packages": (["bisect", "--packages", "old.txt", "new.txt"], "old.txt"),
    "advises_by_a_hostile_network": (["advise", "workload.py:workload", "--world-size=2"], NETWORK),
    "replaces_a_hostile_network": (["network", "--max-size=4KiB", "--rounds=2"], NETWORK),
}


def read(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def put(file: Path, content: bytes, times: int = 1) -> None:
    """Writes the content as often, compressed if the name says so."""
    written = gzip.compress(content, mtime=0) if file.suffix == ".gz" else content
    with file.open("wb") as opened:
        opened.writelines([written] * times)


def _damage(file: Path, random: Random) -> None:
    content = bytearray(read(file))
    for _ in range(random.choice([1, 1 + len(content) // 100])):
        content[random.randrange(len(content))] = random.randrange(256)
    put(file, bytes(content))


VALUES: tuple[Any, ...] = ("x", "", -1, True, 1e300, float("nan"), 10**400, None, [], {}, "\ud800\x1b[2J", "2026-99-99")
CELLS = ("abc", b"\xff\0", -1, 1e300, 1 << 62, "", "\x1b[2J", "2026-99-99")
TABLES = ("run", "environment", "result", "metric")


def _change_types(file: Path, random: Random) -> None:
    """Replaces some values of a document, some words of another text, or a column in all rows of a database."""
    often = random.choice([0.003, 0.03])

    def changed(value: Any) -> Any:
        if random.random() < often:
            return random.choice(VALUES)
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        return [changed(item) for item in value] if isinstance(value, list) else value

    if file.suffix == ".db":
        with closing(sqlite3.connect(file)) as opened, opened:
            names = [(table, row[1]) for table in TABLES for row in opened.execute(f"PRAGMA table_info({table})")]
            table, name = random.choice([each for each in names if each[1] != "id"])
            opened.execute(f"UPDATE OR IGNORE {table} SET {name} = ?", [random.choice(CELLS)])
    elif ".json" in file.name:
        put(file, json.dumps(changed(json.loads(read(file)))).encode())
    else:
        put(file, re.sub(rb"[\w.+-]+", lambda word: repr(changed(word[0])).encode(errors="replace"), read(file)))


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, Random], None]:
    def replace(file: Path, _: Random) -> None:
        file.unlink()
        make(file)

    return replace


FORMS: Mapping[str, Callable[[Path, Random], object]] = {
    "cut off": lambda file, random: os.truncate(file, random.randrange(file.stat().st_size)),
    "damaged": _damage,
    "wrong types": _change_types,
    "empty": lambda file, _: os.truncate(file, 0),
    "huge": lambda file, _: put(file, bytes(1 << 26), 48) if file.suffix == ".gz" else os.truncate(file, 3 << 30),
    "many parts": lambda file, _: put(file, b"[" + b"1," * (10 << 20) + b"1]"),
    "deep": lambda file, random: put(file, random.choice([b"[", b'{"a":', b"x = -", b"("]) * 200_000),
    "other encoding": lambda file, _: put(file, b"\xff\xfe" + read(file).decode(errors="replace").encode("utf-16-le")),
    "FIFO": _replaced(os.mkfifo),
    "endless link": _replaced(lambda file: file.symlink_to("/dev/zero")),
    "link to itself": _replaced(lambda file: file.symlink_to(file.name)),
    "folder": _replaced(Path.mkdir),
}
NAMES = {
    "newline": "a\nimport os\nos.system('touch PWNED')\n#",
    "escapes": "a\x1b]0;owned\x07\u202eb\x1b[2J",
    "option": "-rf",
    "parents": "..",
    "long": "x" * 300,
    "unicode": "ü漢字😀e\u0301",
    "quotes": "a'b\"c`d",
    "shell": "$(touch PWNED)`touch PWNED`;touch PWNED;",
    "script": "<script>alert(1)",
    "formula": "=cmd|' C calc'!A0",
    "format": "%s%n{0}\\N{x}%(a)s",
}
NAMED = ("names_a_test", "names_a_file", "names_a_folder", "names_a_script", "names_a_branch")


def _make_hostile(place: Place) -> None:
    project, (_, name) = Path(place.scratch, "project"), COMMANDS[place.case.kind]
    FORMS[place.case.phase](next(project.glob(name)), Random(f"{place.case.seed} {place.case.number} content"))


ALONE: dict[str, Any] = {"blame": "nobody", "session": True, "reasons": {}}
SHORT = r"(?s)(?!.*(Traceback|INTERNALERROR))(?=.*no damage).*status"  # errors of a line
for _name, (_words, _) in COMMANDS.items():
    _reason = rf"{SHORT} ({'0|1|4|10' if _words[0] == 'pytest' else '0|2'})\b"
    KINDS[_name] = Kind(act=_make_hostile, reason=_reason, phases=tuple(FORMS), **ALONE)
for _name in NAMED:
    KINDS[_name] = Kind(act=lambda _: None, reason=rf"{SHORT} (0|10)\b", phases=tuple(NAMES), **ALONE)


# What another user has made among the temporary files, with names that the plugin uses, and long ago.

NOBODY = 65534
TAKEN = f"pytest-ddpperf-{os.geteuid()} pytest-ddpperf-cpu.lock ddpperf-against-aaaaaaaa ddpperf-files-aaaaaaaa"
NOT_OURS = rf"{WHOLE}(status 0|(remove|name another|set TMPDIR).*status (1|4|10))\b"
OTHERS = {
    "pipes": "mkfifo $name",
    "links": "ln -s /dev/zero $name",
    "links_to_the_root": "ln -s / $name",
    "folders": "mkdir $name; mkfifo $name/lock; ln -s / $name/tree",
    "forbidden_files": "touch $name; chmod 0 $name",
    "forbidden_folders": "mkdir -m 0 $name",
}


def _taken(place: Place, command: str) -> None:
    """Runs a command for each name, in the folder that the place has as ``scratch``."""
    Path(place.scratch).chmod(0o1777)
    script = f"for name in {TAKEN}; do {command}; touch -h -d @0 $name; done"
    subprocess.run(["sh", "-c", script], cwd=place.scratch, user=NOBODY, group=NOBODY, check=True)


for _way in ("", "_beside_a_checkout", UNDER_TORCHRUN):
    for _what, _command in OTHERS.items():
        _act = partial(_taken, command=_command)
        _more = {"against": _way == "_beside_a_checkout", **ALONE}
        KINDS[f"finds_{_what}_of_another_user{_way}"] = Kind(act=_act, reason=NOT_OURS, phases=(BEFORE,), **_more)
