"""Faulty tests in one pytest session, each with a good test after it, beside a stored baseline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.campaign.cases import acted, written
from benchmarks.campaign.kinds import Case
from benchmarks.campaign.left import left, present
from benchmarks.campaign.sessions import damage
from benchmarks.campaign.suite_files import CONFTEST, FAULTY, HEAD, STEP, STORED, SUBJECTS, TESTS, VERBS
from benchmarks.campaign.verdicts import Verdict, judged
from benchmarks.common.project import ROOT, write

SIZE = 20  # faulty tests of a session
NEXT_SECONDS, START_SECONDS = 5.0, 60.0


def run_suite(cases: Sequence[Case], folder: Path, temporary: Path, stored: Path, log: IO[bytes]) -> Iterator[Verdict]:
    """Runs cases in one session; if it ends early, the case that ended it is told and the others run in another."""
    waiting = list(cases)
    while waiting:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        before = present(temporary)
        lines, output = _session(waiting, folder, temporary, stored, log)
        words, _, _ = left(temporary, before, {1})
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
        subject = HEAD.format(case=written(case), scratch=str(scratch)) + SUBJECTS.get(case.phase, STEP)
        files[f"subject_{case.number}.py"] = subject
        verb = VERBS.get(case.phase, "ddpperf.check")
        given = {"number": case.number, "timeout": case.timeout, "world_size": case.world_size}
        files["test_faults.py"] += FAULTY.format(**given, fixture=verb.partition(".")[0], verb=verb)
    write(project, files)
    if stored.exists():
        shutil.copytree(stored, project / "baselines")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--ddpperf-max-time=1"]
    command += ["--ddpperf-world-size=2", "--ddpperf-launches=1"]
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    seconds = START_SECONDS + sum(case.deadline + 4 * NEXT_SECONDS for case in cases)
    if not stored.exists():
        first = [*command, "--ddpperf-save", "--ddpperf-force-save", "test_stored.py"]
        subprocess.run(first, cwd=project, env=environ, check=True, capture_output=True)
        shutil.copytree(project / "baselines", stored)
        reports.unlink()
    with subprocess.Popen(
        command, cwd=project, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            told, _ = process.communicate()
            told += b"\nthe session hung and was killed"
    output = told.decode(errors="replace")
    log.write(f"\nsuite {[case.number for case in cases]}\n{output}\nstatus {process.returncode}\n".encode())
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
