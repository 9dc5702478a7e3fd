"""Commands that find a hostile file, and sessions of tests with hostile names."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.campaign.cases import acted, note
from benchmarks.campaign.hostile import CHECK, COMMANDS, COUNTS, GOOD, MARK, NAMES, TO_REPORTS, TRAIN, WORKLOAD, put
from benchmarks.campaign.kinds import KINDS, Case, Place
from benchmarks.campaign.left import Present, left
from benchmarks.campaign.sessions import SESSION_SECONDS, environ_of, pytest_ended, python_pytest
from benchmarks.campaign.verdicts import GRACE, Verdict, judged
from benchmarks.common.project import commit, repository, write
from pytest_ddpperf.against.git import git

DDPPERF = str(Path(sys.executable).with_name("ddpperf"))
SAVING = (COUNTS, "--ddpperf-save", "--ddpperf-world-size=2", "--ddpperf-report=json:made.json")
TREND, NETWORK = (COMMANDS[name][0] for name in ("trends_of_a_hostile_history", "replaces_a_hostile_network"))
LAUNCHING = ("pytest", "advise", "network")  # what imports torch and starts ranks
INI = "[pytest]\npython_files = *.py\naddopts = --import-mode=importlib\n"
REFUSED = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.")  # which git allows in no name of a branch
# In Markdown what is escaped, or in backticks, is no element.
IN_MARKDOWN = r"(?m)^(?:[^`\n]|`[^`\n]*`)*?(?<!\\)<script>alert"
RUN = {"out.html": "<script>alert", "out.markdown": IN_MARKDOWN, "out.csv": ",=cmd"}
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")  # by a terminal


def run_command(case: Case, scratch: Path, temporary: Path, before: Present, log: IO[bytes]) -> Verdict:
    """Runs a command that finds a hostile file, and then the same command with the good one."""
    good, project = scratch.parent / "good", scratch / "project"
    if not (good / "before.json").exists():
        _make_good(good, temporary)
    shutil.copytree(good, project)
    words, _ = COMMANDS[case.kind]
    KINDS[case.kind].act(Place(case=case, rank=0, scratch=str(scratch)))
    stored = _contents(project)
    note(scratch)
    status, output = _ended(words, project, temporary)
    ended, changed = time.time() - SESSION_SECONDS * (words[0] in LAUNCHING), _contents(project) ^ stored
    wrong = [f"half written: {path}" for path, _ in changed if status not in {0, 10}]
    if status == 2 and output.count("ddpperf: error: ") != 1:
        wrong.append("no error, or several")
    shutil.rmtree(project)
    shutil.copytree(good, project)
    again, said = _ended(words, project, temporary)
    said = "" if again == (2 if "bisect" in words else 0) else f"status {again}: {said[-1500:]}"
    outcome = _outcome(status, output, ended, wrong)
    log.write(f"\n{case}\n{outcome['text'][-20000:]}\n{said}\n".encode(errors="replace"))
    return judged(case, outcome, left(temporary, before, set(), GRACE), said, acted(scratch))


def _outcome(status: int, output: str, ended: float, wrong: Sequence[str]) -> dict[str, Any]:
    text = "\n".join([output, f"status {status}", *(f"damaged: {each}" for each in wrong or ["no damage"])])
    return {"error": "Session", "rank": None, "text": text, "length": 0, "ended": ended}


def _make_good(good: Path, temporary: Path) -> None:
    """Makes a project with files as the plugin writes them."""
    shutil.rmtree(good, ignore_errors=True)
    write(good, GOOD)
    put(good / "trace.json.gz", (good / "trace.json").read_bytes())
    add = ("history", "add", "made.json", "--history=h.db")
    for words in (("pytest", *SAVING, "test_fault.py"), NETWORK, add):
        status, output = _ended(words, good, temporary)
        if status != 0:
            sys.exit(f"a command without a fault fails:\n{output}")
    later = {**json.loads((good / "made.json").read_text(encoding="utf-8")), "date": "2026-01-01T00:00:00+00:00"}
    (good / "before.json").write_text(json.dumps(later), encoding="utf-8")


def _ended(words: Sequence[str], folder: Path, temporary: Path, seconds: float = SESSION_SECONDS) -> tuple[int, str]:
    """Runs pytest or the command ``ddpperf``; returns its status and what it printed."""
    command = python_pytest(*words[1:]) if words[0] == "pytest" else [DDPPERF, *words]
    return pytest_ended(command, folder, environ_of(temporary), seconds)


def _contents(folder: Path) -> set[tuple[Path, object]]:
    """Returns the files of a folder, with the content of those that are not huge."""
    small = {path: path.is_file() and path.stat().st_size < 1 << 26 for path in folder.rglob("*")}
    return {(path, path.read_bytes() if fits else path.lstat().st_mode) for path, fits in small.items()}


def run_named(case: Case, scratch: Path, temporary: Path, before: Present, log: IO[bytes]) -> Verdict:
    """Runs a session of a test with a hostile name, makes reports of it, and then runs the session again."""
    project = scratch / "project"
    write(project, {"pytest.ini": INI})
    tests = _named(case.kind, project, NAMES[case.phase])
    told = [_ended(["init"], project, temporary)] if case.kind == "names_a_script" else []
    note(scratch)
    status, output = _ended(["pytest", *tests, *SAVING, "--ddpperf-history=h.db"], project, temporary)
    ended = time.time() - SESSION_SECONDS
    told += [_ended(words, project, temporary) for words in (["list"], ["report", "made.json", *TO_REPORTS], TREND)]
    again, said = _ended(["pytest", *tests, COUNTS, "--ddpperf-world-size=2"], project, temporary)
    reports = {path.name: path.read_text(encoding="utf-8") for path in project.glob("out.*")}
    lines = "\n".join(line for line in output.splitlines() if line.startswith("ddpperf"))
    wrong = [f"a command failed: {printed[-300:]}" for failed, printed in told if failed]
    texts = {**reports, "init, list, report or trend": "".join(printed for _, printed in told), "pytest": lines}
    wrong += [f"{name} is obeyed" for name, text in texts.items() if OBEYED.search(text)]
    wrong += [f"{name} is run" for name, sign in RUN.items() if re.search(sign, texts.get(name, ""))]
    wrong += [f"{path} was made" for path in (*scratch.rglob(MARK), *Path().glob(MARK))]
    said = "" if again == 0 else f"status {again}: {said[-1500:]}"
    outcome = _outcome(status, output, ended, wrong)
    log.write(f"\n{case}\n{outcome['text'][-20000:]}\n{said}\n".encode(errors="replace"))
    return judged(case, outcome, left(temporary, before, set(), GRACE), said, acted(scratch))


def _named(kind: str, project: Path, name: str) -> list[str]:
    """Writes a test and what has the name; returns pytest's arguments."""
    file, test = {"..": "..."}.get(name, name[:200].replace("/", "_")), WORKLOAD + CHECK
    if kind == "names_a_test":
        test = f"import pytest\n{test}".replace("def ", f"@pytest.mark.parametrize('_', [0], ids=[{name!r}])\ndef ")
        write(project, {"test_fault.py": test.replace("(ddpperf)", "(ddpperf, _)")})
    elif kind == "names_a_script":
        write(project, {f"{file}.py": TRAIN})
        return ["perf"]
    elif kind == "names_a_branch":
        repository(project, {"test_fault.py": test, ".gitignore": "out.*\n*.db\nmade.json\n", "pytest.ini": INI})
        git(project, "symbolic-ref", "HEAD", f"refs/heads/{REFUSED.sub('', name[:200]).strip('.') or 'dots'}")
        commit(project, "as a branch of this name")
    else:
        write(project, {f"{file}.py" if kind == "names_a_file" else f"{file}/test_fault.py": test})
    return ["."]
