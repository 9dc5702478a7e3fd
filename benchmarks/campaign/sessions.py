"""Cases in a pytest session of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import IO, Any

from benchmarks.campaign.kinds import KINDS, SAVING, Case

ROOT = Path(__file__).parents[2]
SESSION_SECONDS = 90.0
SUBJECT = """\
import os
from benchmarks.campaign.training import reach, read

CASE, SCRATCH = read({case!r}), {scratch!r}
join, getpid = os.path.join, os.getpid  # a fault may break the module's, and what is builtin
opened = open
if "RANK" in os.environ:
    reach(CASE, int(os.environ["RANK"]), "import", SCRATCH)


class Step:
    def __init__(self, ctx):
        import torch

        self.rank, self.calls, self.weight = ctx.rank, 0, torch.ones(7, 12)
        opened(join(SCRATCH, f"pid.{{ctx.rank}}"), "w").write(str(getpid()))
        torch.distributed.barrier()
        reach(CASE, ctx.rank, "build", SCRATCH)

    def __call__(self):
        import torch

        self.calls += 1
        phases = {{1: "first step", 2: "warm-up", 12: "timed steps"}}
        counting = torch._C._len_torch_dispatch_stack() > 0
        reach(CASE, self.rank, "counted step" if counting else phases.get(self.calls, ""), SCRATCH)
        torch.distributed.all_reduce(self.weight * 1)

    def close(self):
        reach(CASE, self.rank, "close", SCRATCH)
"""
TEST = """\
import functools
from benchmarks.campaign.training import add_up
from subject import Step


def test_fault(ddpperf):
    ddpperf.check(Step)


def test_next(ddpperf_group):
    assert len(set(ddpperf_group.run(add_up).values)) == 1
"""
CONFTEST = """\
import json, os, time

import pytest

FILE = {file!r}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    raised = None if call.excinfo is None else call.excinfo.value
    with open(FILE, "a") as file:
        fields = dict(test=item.name, when=report.when, outcome=report.outcome, ended=time.time())
        fields |= dict(error=type(raised).__name__ if raised else "", rank=getattr(raised, "rank", None))
        file.write(json.dumps(dict(fields, text=str(raised)[:200000] if raised else "")) + "\\n")
    return report
"""


def run_session(case: Case, scratch: Path, temporary: Path, log: IO[bytes]) -> tuple[dict[str, Any], str]:
    """What came of the case, and what is wrong with the next test; empty where nothing is."""
    project = scratch / "project"
    project.mkdir()
    reports = project / "reports.jsonl"
    text = SUBJECT.format(case=json.dumps(asdict(case)), scratch=str(scratch))
    (project / "subject.py").write_text(text, encoding="utf-8")
    (project / "test_fault.py").write_text(TEST, encoding="utf-8")
    (project / "conftest.py").write_text(CONFTEST.format(file=str(reports)), encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    kind = KINDS[case.kind]
    options = [f"--ddpperf-world-size={case.world_size}", f"--ddpperf-timeout={case.timeout:g}"]
    options += ["--ddpperf-max-time=2", "--ddpperf-json=made/results.json", "--ddpperf-save", "--ddpperf-verify=false"]
    if kind.against:
        _repository(project)
        options = [option for option in options if option != "--ddpperf-save"] + ["--ddpperf-against=HEAD"]
    (project / "made").mkdir()
    environ = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT),
        "DDPPERF_SESSION": case.kind,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    started = time.time()
    status, output = _run(command, project, environ, case)
    ended = time.time()
    log.write(f"\n{case}\n{output}\nstatus {status}\n".encode())
    found = [json.loads(line) for line in reports.read_text(encoding="utf-8").splitlines()] if reports.exists() else []
    if not kind.session:
        report = next((one for one in found if one["test"] == "test_fault" and one["when"] == "call"), None)
        following = next((one for one in found if one["test"] == "test_next" and one["when"] == "call"), None)
        said = "" if following is not None and following["outcome"] == "passed" else f"{following} {output[-500:]}"
        if report is None:
            return {"error": "Session", "rank": None, "text": output, "length": 0, "ended": ended, "seconds": 0.0}, said
        return {**report, "length": len(report["text"]), "seconds": report["ended"] - started}, said
    (temporary / "full").unlink(missing_ok=True)
    temporary.mkdir(exist_ok=True)
    (scratch / "acted.first").write_text((scratch / "acted").read_text() if (scratch / "acted").exists() else "")
    again = [*command[: -len(options)], *options[:2], "test_fault.py::test_next"]
    next_status, said = _run(again, project, environ, None)
    text = f"{output}\nstatus {status}\n{_damage(project)}"
    outcome = {"error": "Session", "rank": None, "text": text, "length": 0, "ended": ended, "seconds": ended - started}
    return outcome, "" if next_status == 0 else said[-1500:]


def _run(command: list[str], project: Path, environ: dict[str, str], case: Case | None) -> tuple[int, str]:
    process = subprocess.Popen(
        command, cwd=project, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if case is not None and case.kind in SAVING:
        _kill_while_saving(process, case, project)
    try:
        output, _ = process.communicate(timeout=SESSION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate(timeout=SESSION_SECONDS)
        output += b"\nthe session hung and was killed"
    return process.returncode, output.decode(errors="replace")


def _kill_while_saving(process: subprocess.Popen[bytes], case: Case, project: Path) -> None:
    """Kill the session at a random moment after its first test has ended, in which it writes its files."""
    deadline = time.monotonic() + SESSION_SECONDS
    random = Random(f"{case.seed} {case.number} kill")
    while process.poll() is None and time.monotonic() < deadline:
        if (project / "baselines").exists() or (project / "made" / "results.json").exists():
            break
        time.sleep(0.001)
    time.sleep(random.random() * 0.02)
    (project.parent / "acted").write_text(repr(time.time()), encoding="ascii")
    process.send_signal(signal.SIGKILL)


def _damage(project: Path) -> str:
    """What is wrong with the files that a session has written."""
    damage = []
    for path in project.rglob("*.json"):
        try:
            if path.is_file():
                json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            damage.append(f"damaged: {path}")
    if (project / ".git").exists():
        git = ["git", "worktree", "list"]
        trees = subprocess.run(git, cwd=project, capture_output=True, text=True, check=True).stdout.splitlines()
        damage += [f"damaged: worktree {tree}" for tree in trees[1:]]
    return "\n".join(damage) or "no damage"


def _repository(project: Path) -> None:
    as_nobody = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    (project / ".gitignore").write_text("made\nreports.jsonl\n", encoding="utf-8")
    for words in (["init", "-q"], ["add", "-A"], [*as_nobody, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)
