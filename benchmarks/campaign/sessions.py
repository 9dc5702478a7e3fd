"""Sessions of pytest: attacks have one each; faulty tests share one, each with a good test after it."""

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import IO, Any

from benchmarks.campaign.attacks import FULL, OF_SAVING, PID
from benchmarks.campaign.cases import acted, note
from benchmarks.campaign.hostile import UNDER_TORCHRUN
from benchmarks.campaign.kinds import ANY_MOMENT, BEFORE, KINDS, Case, Place
from benchmarks.campaign.left import Present, left, present
from benchmarks.campaign.suite_files import CALLS, CONFTEST, FAULTY, HEAD, STEP, STORED, SUBJECTS, TESTS
from benchmarks.campaign.verdicts import GRACE, Verdict, judged
from benchmarks.common.project import ROOT, repository, write
from pytest_ddpperf.against.git import git

SIZE = 20  # faulty tests of a session
NEXT_SECONDS, START_SECONDS = 5.0, 60.0
SESSION_SECONDS = 180.0  # a session that is not attacked while it runs has these and a deadline
GUARD_SECONDS = 5.0  # in which the guard of a checkout removes that of a session that was killed
TEST = """\
from benchmarks.campaign.cases import add_up
from subject import Subject


def test_fault(ddpperf):
    ddpperf.check(Subject)


def test_next(ddpperf_group):
    assert len(set(ddpperf_group.run(add_up).values)) == 1
"""


def run_session(case: Case, scratch: Path, temporary: Path, before: Present, log: IO[bytes]) -> Verdict:
    """Runs the session of a case, and the next test after it."""
    project, kind = scratch / "project", KINDS[case.kind]
    usual = _usual_session(case, scratch.parent / f"usual.{case.world_size}", temporary)
    command, environ = _prepared(case, scratch, project, temporary)
    stored = usual[0] if case.phase == ANY_MOMENT else None
    if stored is not None:
        (project / "baselines").mkdir()
        if case.kind == FULL:
            mount(project / "baselines", "256k")
            command += ["--ddpperf-save", "--ddpperf-force-save"]
        shutil.copytree(stored, project / "baselines", dirs_exist_ok=True)
    elif not kind.against:
        command.append("--ddpperf-save")
    if kind.against:
        repository(project, {".gitignore": "made\n"})
        command.append("--ddpperf-against=HEAD")
    before = _before(case, scratch, temporary, before)

    def disturb(process: subprocess.Popen[bytes]) -> None:
        if case.kind == OF_SAVING or case.phase == ANY_MOMENT:
            _disturb(process, case, project, usual[1])

    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={case.world_size}", "-m"]
    torchrun *= case.kind.endswith(UNDER_TORCHRUN)
    launched = [*command[:2], *torchrun, *command[2:]]
    status, output = pytest_ended(launched, project, environ, disturb=disturb)
    ended = time.time()
    log.write(f"\n{case}\n{output}\nstatus {status}\n".encode())
    (temporary / "full").unlink(missing_ok=True)
    temporary.mkdir(exist_ok=True)
    done = acted(scratch)
    text = f"{output}\nstatus {status}\n{damage(project, stored)}"
    if stored is not None and status in {0, 1, 10}:  # it goes on, and may take its usual time and a deadline
        ended -= usual[1] + case.timeout * 2
    ended -= SESSION_SECONDS if case.phase == BEFORE else 0.0
    if case.kind == FULL:
        ctypes.CDLL(None).umount2(os.fsencode(project / "baselines"), 2)
    again = [*command[: command.index("--ddpperf-max-time=2")], "test_fault.py::test_next"]
    next_status, said = pytest_ended(again, project, environ)
    outcome = {"error": "Session", "rank": None, "text": text, "length": 0, "ended": ended}
    remains = left(temporary, before, set(), GRACE)
    return judged(case, outcome, remains, "" if next_status == 0 else said[-1500:], done)


def _before(case: Case, scratch: Path, temporary: Path, before: Present) -> Present:
    """Does what the case does before its session; returns what is then there."""
    if case.phase != BEFORE:
        return before
    shutil.rmtree(temporary)  # a usual session may have left its lock
    temporary.mkdir()
    note(scratch)
    KINDS[case.kind].act(Place(case=case, rank=0, scratch=str(temporary)))
    return present(temporary)


def _usual_session(case: Case, folder: Path, temporary: Path) -> tuple[Path, float]:
    """What a session of the same project stores in which nothing happens, and how long it takes; made once."""
    note = folder / "seconds"
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
        project = folder / "project"
        command, environ = _prepared(replace(case, phase="nowhere"), folder, project, temporary)
        started = time.monotonic()
        status, output = pytest_ended([*command, "--ddpperf-save", "--ddpperf-force-save"], project, environ)
        if status != 0:
            sys.exit(f"a session without a fault fails:\n{output}")
        note.write_text(repr(time.monotonic() - started), encoding="ascii")
    return folder / "project" / "baselines", float(note.read_text(encoding="ascii"))


def _prepared(case: Case, scratch: Path, project: Path, temporary: Path) -> tuple[list[str], dict[str, str]]:
    """Writes the project; the command that runs it, and its environment."""
    subject = HEAD.format(case=asdict(case), scratch=str(scratch)) + STEP
    write(project, {"subject.py": subject, "test_fault.py": TEST, "pytest.ini": "[pytest]\n"})
    (project / "made").mkdir()
    command = python_pytest(f"--ddpperf-world-size={case.world_size}", f"--ddpperf-timeout={case.timeout:g}")
    command += ["--ddpperf-max-time=2", "--ddpperf-report=json:made/results.json", "--ddpperf-verify=false"]
    return command, environ_of(temporary)


def python_pytest(*options: str) -> list[str]:
    """Returns the command that runs pytest."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]


def environ_of(temporary: Path) -> dict[str, str]:
    """Returns the environment of a session with this folder for temporary files."""
    return {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def pytest_ended(
    command: list[str],
    project: Path,
    environ: dict[str, str],
    seconds: float = SESSION_SECONDS,
    disturb: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> tuple[int, str]:
    """Runs pytest, and ``disturb`` meanwhile; returns its status and what it printed."""
    process = subprocess.Popen(
        command, cwd=project, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    disturb(process)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate(timeout=SESSION_SECONDS)
        output += b"\nthe session hung and was killed"
    return process.returncode, output.decode(errors="replace")


def _disturb(process: subprocess.Popen[bytes], case: Case, project: Path, usual: float) -> None:
    """Does at a random moment of a session's life what its kind says, or kills it while it writes its files."""
    random, scratch = Random(f"{case.seed} {case.number} moment"), project.parent
    if case.kind == OF_SAVING:
        deadline = time.monotonic() + SESSION_SECONDS
        files = (project / "baselines", project / "made" / "results.json")
        while process.poll() is None and time.monotonic() < deadline and not any(file.exists() for file in files):
            time.sleep(0.001)
        time.sleep(random.random() * 0.02)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if case.kind == FULL else random.uniform(0.03, 0.97) * usual)
    note(scratch)
    if case.kind == OF_SAVING:
        process.send_signal(signal.SIGKILL)
    os.environ[PID] = str(process.pid)
    KINDS[case.kind].act(Place(case=case, rank=0, scratch=str(scratch)))


def damage(project: Path, stored: Path | None = None) -> str:
    """Returns what is wrong with the files that a session has written, or has not left as they were ``stored``."""
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
        while (trees := git(project, "worktree", "list").splitlines()[1:]) and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong += [f"damaged: worktree {tree}" for tree in trees]
    return "\n".join(wrong) or "no damage"


def mount(path: Path, size: str) -> None:
    """Mounts a file system in memory."""
    if ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()):
        sys.exit(f"{path} cannot be mounted: {os.strerror(ctypes.get_errno())}")


def run_suite(cases: Sequence[Case], folder: Path, temporary: Path, stored: Path, log: IO[bytes]) -> Iterator[Verdict]:
    """Runs cases in one session; if it ends early, the case that ended it is told and the others run in another."""
    waiting = list(cases)
    while waiting:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        before = present(temporary)
        lines, output = _session(waiting, folder, temporary, stored, log)
        words = left(temporary, before, {1})
        words += [line for line in damage(folder / "project", stored).splitlines() if line.startswith("damaged")]
        done = [case for case in waiting if {f"test_{case.number}", f"test_{case.number}_next"} <= lines.keys()]
        for case in done:
            yield _judged(case, lines, folder, words if case is waiting[-1] else [])
        if len(done) < len(waiting):
            broken = next(case for case in waiting if case not in done)
            said = f"the session ended early: {output[-1500:]}"
            yield judged(broken, None, words, said, acted(folder / str(broken.number)))
            done.append(broken)
        waiting = [case for case in waiting if case not in done]


def _session(
    cases: Sequence[Case], folder: Path, temporary: Path, stored: Path, log: IO[bytes]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Runs one session; the fields of its reports by test, and what it printed."""
    project, reports = folder / "project", folder / "reports.jsonl"
    files = {
        "test_stored.py": STORED,
        "conftest.py": CONFTEST.format(file=str(reports), temporary=str(temporary)),
        "pytest.ini": "[pytest]\npythonpath = .\n",
        "test_faults.py": TESTS,
    }
    for case in cases:
        scratch = folder / str(case.number)
        scratch.mkdir(parents=True)
        subject = HEAD.format(case=asdict(case), scratch=str(scratch)) + SUBJECTS.get(case.phase, STEP)
        files[f"subject_{case.number}.py"] = subject
        call = CALLS.get(case.phase, "ddpperf.check(Subject)")
        given = {"number": case.number, "timeout": case.timeout, "world_size": case.world_size}
        files["test_faults.py"] += FAULTY.format(**given, fixture=call.partition(".")[0], call=call)
    write(project, files)
    if stored.exists():
        shutil.copytree(stored, project / "baselines")
    command = python_pytest("--ddpperf-max-time=1", "--ddpperf-world-size=2", "--ddpperf-launches=1")
    environ = environ_of(temporary)
    seconds = START_SECONDS + sum(case.deadline + 4 * NEXT_SECONDS for case in cases)
    if not stored.exists():
        first = [*command, "--ddpperf-save", "--ddpperf-force-save", "test_stored.py"]
        subprocess.run(first, cwd=project, env=environ, check=True, capture_output=True)
        shutil.copytree(project / "baselines", stored)
        reports.unlink()
    status, output = pytest_ended(command, project, environ, seconds)
    log.write(f"\nsuite {[case.number for case in cases]}\n{output}\nstatus {status}\n".encode())
    lines: dict[str, dict[str, Any]] = {}
    for text in reports.read_text(encoding="utf-8").splitlines() if reports.exists() else ():
        fields = json.loads(text)
        lines.setdefault(fields["test"], {}).update({fields["when"]: fields})
    return {test: found for test, found in lines.items() if {"call", "after"} <= found.keys()}, output


def _judged(case: Case, lines: dict[str, dict[str, Any]], folder: Path, more: list[str]) -> Verdict:
    here, following = lines[f"test_{case.number}"], lines[f"test_{case.number}_next"]
    passed = following["call"]["outcome"] == "passed"
    said = "" if passed else f"{following['call']['error']}: {following['call']['text'][:1000]}"
    remains = [*here["after"]["left"], *following["after"]["left"], *more]
    return judged(case, here["call"], remains, said, acted(folder / str(case.number)))
