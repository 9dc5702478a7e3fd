"""Attacks on a pytest session, each in a session of its own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import IO, Any

from benchmarks.campaign.kinds import ANY_MOMENT, FULL, KINDS, SAVING, Case, Place
from benchmarks.campaign.suite_files import HEAD, STEP
from benchmarks.campaign.training import written

ROOT = Path(__file__).parents[2]
SESSION_SECONDS = 90.0
GUARD_SECONDS = 5.0  # in which the guard of a checkout removes that of a session that was killed
TEST = """\
from benchmarks.campaign.training import add_up
from subject import Subject


def test_fault(ddpperf):
    ddpperf.check(Subject)


def test_next(ddpperf_group):
    assert len(set(ddpperf_group.run(add_up).values)) == 1
"""


@dataclass(frozen=True, slots=True)
class Usual:
    """A session of the same project in which nothing happens: what it stores, and how long it takes."""

    baselines: Path
    seconds: float


def usual_session(case: Case, folder: Path, temporary: Path) -> Usual:
    """That of an earlier case of this worker, or a new one."""
    note = folder / "seconds"
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
        project = folder / "project"
        command, environ = _prepared(replace(case, phase="nowhere"), folder, project, temporary)
        started = time.monotonic()
        status, output = _run([*command, "--ddpperf-save", "--ddpperf-force-save"], project, environ, None)
        if status != 0:
            sys.exit(f"a session without a fault fails:\n{output}")
        note.write_text(repr(time.monotonic() - started), encoding="ascii")
    return Usual(folder / "project" / "baselines", float(note.read_text(encoding="ascii")))


def run_session(case: Case, scratch: Path, temporary: Path, log: IO[bytes]) -> tuple[dict[str, Any], str]:
    """What came of the case, and what is wrong with the next test; empty if nothing is."""
    project = scratch / "project"
    kind = KINDS[case.kind]
    usual = (
        usual_session(case, scratch.parent / f"usual.{case.world_size}", temporary)
        if case.phase == ANY_MOMENT
        else None
    )
    command, environ = _prepared(case, scratch, project, temporary)
    if usual is None and not kind.against:
        command.append("--ddpperf-save")
    stored = None if usual is None else usual.baselines
    if stored is not None:
        (project / "baselines").mkdir()
        if case.kind in FULL:
            mount(project / "baselines", "256k")
            command += ["--ddpperf-save", "--ddpperf-force-save"]
        shutil.copytree(stored, project / "baselines", dirs_exist_ok=True)
    if kind.against:
        _repository(project)
        command.append("--ddpperf-against=HEAD")
    started = time.time()
    status, output = _run(command, project, environ, case, 0.0 if usual is None else usual.seconds)
    ended = time.time()
    log.write(f"\n{case}\n{output}\nstatus {status}\n".encode())
    (temporary / "full").unlink(missing_ok=True)
    temporary.mkdir(exist_ok=True)
    (scratch / "acted.first").write_text((scratch / "acted").read_text() if (scratch / "acted").exists() else "")
    text = f"{output}\nstatus {status}\n{damage(project, stored)}"
    if usual is not None and status in {0, 1, 10}:  # it goes on, and may take its usual time and a deadline
        ended -= usual.seconds + case.timeout * 2
    if case.kind in FULL:
        unmount(project / "baselines")
    again = [*command[: command.index("--ddpperf-max-time=2")], "test_fault.py::test_next"]
    next_status, said = _run(again, project, environ, None)
    outcome = {"error": "Session", "rank": None, "text": text, "length": 0, "ended": ended, "seconds": ended - started}
    return outcome, "" if next_status == 0 else said[-1500:]


def _prepared(case: Case, scratch: Path, project: Path, temporary: Path) -> tuple[list[str], dict[str, str]]:
    """Write the project; the command that runs it, and its environment."""
    project.mkdir(parents=True)
    (project / "subject.py").write_text(HEAD.format(case=written(case), scratch=str(scratch)) + STEP, encoding="utf-8")
    (project / "test_fault.py").write_text(TEST, encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (project / "made").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    command += [f"--ddpperf-world-size={case.world_size}", f"--ddpperf-timeout={case.timeout:g}"]
    command += ["--ddpperf-max-time=2", "--ddpperf-report=json:made/results.json", "--ddpperf-verify=false"]
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return command, environ


def _run(
    command: list[str], project: Path, environ: dict[str, str], case: Case | None, usual: float = 0.0
) -> tuple[int, str]:
    process = subprocess.Popen(
        command, cwd=project, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if case is not None and case.kind in SAVING:
        _kill_while_saving(process, case, project)
    elif case is not None and case.phase == ANY_MOMENT:
        _disturb(process, case, project.parent, usual)
    try:
        output, _ = process.communicate(timeout=SESSION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate(timeout=SESSION_SECONDS)
        output += b"\nthe session hung and was killed"
    return process.returncode, output.decode(errors="replace")


def _disturb(process: subprocess.Popen[bytes], case: Case, scratch: Path, usual: float) -> None:
    """Do at a random moment of a session's life what its kind says."""
    random = Random(f"{case.seed} {case.number} moment")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0 if case.kind in FULL else random.uniform(0.03, 0.97) * usual)
    (scratch / "acted").write_text(repr(time.time()), encoding="ascii")
    os.environ["DDPPERF_SESSION_PID"] = str(process.pid)
    KINDS[case.kind].act(Place(case=case, rank=0, scratch=str(scratch)))


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


def damage(project: Path, stored: Path | None = None) -> str:
    """What is wrong with the files that a session has written, or has not left as they were ``stored``."""
    wrong = []
    for path in project.rglob("*.json"):
        try:
            if path.is_file():
                json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            wrong.append(f"damaged: {path}")
    kept = {} if stored is None else {path.relative_to(stored): path for path in stored.rglob("*.json")}
    for name, path in kept.items():
        now = project / "baselines" / name
        if not now.exists() or now.read_bytes() != path.read_bytes():
            wrong.append(f"damaged: {now} is not as it was stored")
    wrong += [f"damaged: draft {path}" for path in project.rglob("*.tmp")]
    if (project / ".git").exists():
        deadline = time.monotonic() + GUARD_SECONDS
        while (trees := _worktrees(project)) and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong += [f"damaged: worktree {tree}" for tree in trees]
    return "\n".join(wrong) or "no damage"


def _worktrees(project: Path) -> list[str]:
    git = ["git", "worktree", "list"]
    return subprocess.run(git, cwd=project, capture_output=True, text=True, check=True).stdout.splitlines()[1:]


def _repository(project: Path) -> None:
    as_nobody = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    (project / ".gitignore").write_text("made\n", encoding="utf-8")
    for words in (["init", "-q"], ["add", "-A"], [*as_nobody, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)


def mount(path: Path, size: str) -> None:
    """Mount a file system in memory."""
    if ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()):
        sys.exit(f"{path} cannot be mounted: {os.strerror(ctypes.get_errno())}")


def unmount(path: Path) -> None:
    """Take it away, with all that is in it."""
    ctypes.CDLL(None).umount2(os.fsencode(path), 2)
