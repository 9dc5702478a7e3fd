"""Faulty tests in one pytest session, each with a good test after it, beside a stored baseline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import IO, Any

from benchmarks.campaign.kinds import KINDS, STEPS, Case, Kind
from benchmarks.campaign.left import left, present
from benchmarks.campaign.sessions import ROOT, damage
from benchmarks.campaign.suite_files import CONFTEST, FAULTY, HEAD, STEP, STORED, SUBJECTS, TESTS, VERBS
from benchmarks.campaign.training import written
from benchmarks.campaign.verdicts import Verdict, judged

TIMEOUTS = (4.0, 5.0)
SIZE = 20  # faulty tests of a session
WORLD_SIZE = 2
NEXT_SECONDS, START_SECONDS = 5.0, 60.0
STEPPED = ("import", *STEPS)


def drawn_in_suite(seed: int, number: int) -> Case:
    """Fault ``number`` of the suites of a seed: all kinds come in turn, and the rest is drawn."""
    kinds = [kind for kind in KINDS.values() if _phases(kind)]
    Random(f"suites {seed}").shuffle(kinds)
    kind, random = kinds[number % len(kinds)], Random(f"suites {seed} {number}")
    return Case(
        number=number,
        seed=seed,
        kind=kind.name,
        phase=random.choice(_phases(kind)),
        ending=random.choice(kind.endings) if kind.endings else None,
        rank=random.randrange(WORLD_SIZE),
        world_size=WORLD_SIZE,
        timeout=random.choice(TIMEOUTS),
        way="suite",
    )


def _phases(kind: Kind) -> list[str]:
    """The places of a suite that a kind can happen in."""
    if kind.session:
        return []
    if "suite" not in kind.ways:
        return [phase for phase in kind.phases if phase == "result"]
    phases = [phase for phase in kind.phases if phase in (*STEPPED, *SUBJECTS)]
    return phases + ["verification"] * ("counted step" in kind.phases) + ["turns"] * ("timed steps" in kind.phases)


def run_suite(cases: Sequence[Case], folder: Path, temporary: Path, stored: Path, log: IO[bytes]) -> Iterator[Verdict]:
    """Run cases in one session; where it ends early, the case that ended it is told and the others run in another."""
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
            last = case is waiting[-1]
            yield _judged(case, lines, folder, words if last else [])
        if len(done) < len(waiting):
            broken = next(case for case in waiting if case not in done)
            yield judged(broken, None, words, f"the session ended early: {output[-1500:]}", _acted(folder, broken))
            done.append(broken)
        waiting = [case for case in waiting if case not in done]


def _session(
    cases: Sequence[Case], folder: Path, temporary: Path, stored: Path, log: IO[bytes]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Run one session; the fields of its reports by test, and what it printed."""
    project = folder / "project"
    project.mkdir(parents=True)
    texts = [TESTS]
    for case in cases:
        scratch = folder / str(case.number)
        scratch.mkdir()
        subject = HEAD.format(case=written(case), scratch=str(scratch)) + SUBJECTS.get(case.phase, STEP)
        (project / f"subject_{case.number}.py").write_text(subject, encoding="utf-8")
        verb = VERBS.get(case.phase, "ddpperf.check")
        fixture = verb.partition(".")[0]
        texts.append(FAULTY.format(timeout=case.timeout, number=case.number, fixture=fixture, verb=verb))
    reports = folder / "reports.jsonl"
    (project / "test_faults.py").write_text("".join(texts), encoding="utf-8")
    (project / "test_stored.py").write_text(STORED, encoding="utf-8")
    (project / "conftest.py").write_text(CONFTEST.format(file=str(reports), temporary=str(temporary)), encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n", encoding="utf-8")
    if stored.exists():
        shutil.copytree(stored, project / "baselines")
    options = ["--ddpperf-max-time=1", f"--ddpperf-world-size={WORLD_SIZE}", "--ddpperf-launches=1"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
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
    log.write(f"\nsuite {[asdict(case) for case in cases]}\n{output}\nstatus {process.returncode}\n".encode())
    lines: dict[str, dict[str, Any]] = {}
    for fields in _in_file(reports):
        lines.setdefault(fields["test"], {}).update({fields["when"]: fields})
    return {test: found for test, found in lines.items() if {"call", "after"} <= found.keys()}, output


def _judged(case: Case, lines: dict[str, dict[str, Any]], folder: Path, more: list[str]) -> Verdict:
    here, following = lines[f"test_{case.number}"], lines[f"test_{case.number}_next"]
    passed = following["call"]["outcome"] == "passed"
    said = "" if passed else f"{following['call']['error']}: {following['call']['text'][:1000]}"
    remains = [*here["after"]["left"], *following["after"]["left"], *more]
    acted = _acted(folder, case)
    seconds = 0.0 if acted is None else here["call"]["ended"] - acted
    return judged(case, {**here["call"], "seconds": seconds}, remains, said, acted)


def _acted(folder: Path, case: Case) -> float | None:
    try:
        return float((folder / str(case.number) / "acted").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _in_file(reports: Path) -> list[dict[str, Any]]:
    """The reports of a session's tests."""
    if not reports.exists():
        return []
    return [json.loads(line) for line in reports.read_text(encoding="utf-8").splitlines()]
