"""Faulty tests in one pytest session, each with a good test after it, beside a stored baseline."""

from __future__ import annotations

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
from benchmarks.campaign.sessions import ROOT, damage, in_files
from benchmarks.campaign.training import written
from benchmarks.campaign.verdicts import Verdict, judged

TIMEOUTS = (4.0, 5.0)
SIZE = 20  # faulty tests of a session
WORLD_SIZE = 2
NEXT_SECONDS, START_SECONDS = 5.0, 60.0
STEPPED = ("import", *STEPS)

# The place that a fault happens in decides what is measured: a step, a Workload, a script, two steps or only ranks.
HEAD = """\
import os
from benchmarks.campaign.training import reach, read

CASE, SCRATCH = read({case!r}), {scratch!r}
join, getpid, opened = os.path.join, os.getpid, open  # a fault may break the module's, and what is builtin
RANK = int(os.environ.get("RANK", -1))
done = []


def at(phase):
    if phase == CASE.phase and not done:
        done.append(phase)
        return reach(CASE, RANK, phase, SCRATCH)


if RANK >= 0:
    opened(join(SCRATCH, f"pid.{{RANK}}"), "w").write(str(getpid()))
    at("import")
"""
STEP = """

class Subject:
    def __init__(self, ctx):
        import torch

        self.calls, self.weight = 0, torch.ones(7, 12)
        torch.distributed.barrier()
        at("build")

    def __call__(self):
        import torch

        self.calls += 1
        phases = {1: "first step", 2: "warm-up", 12: "timed steps"}
        counting = torch._C._len_torch_dispatch_stack() > 0
        at("counted step" if counting else phases.get(self.calls, ""))
        torch.distributed.all_reduce(self.weight * 1)

    def close(self):
        at("close")
"""
WORKLOAD = """
import sys

import torch
from pytest_ddpperf import Workload


def loss(outputs, targets):
    frame = sys._getframe()
    while frame is not None:
        if "/correctness/" in frame.f_code.co_filename:
            at("verification")
            break
        frame = frame.f_back
    return torch.nn.functional.mse_loss(outputs, targets)


def model():
    return torch.nn.Linear(8, 2)


def batch():
    return torch.ones(4, 8), torch.zeros(4, 2)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


Subject = Workload(model=model, batch=batch, loss=loss, optimizer=optimizer, samples_per_step=4)
"""
SCRIPT = """

def main():
    import torch

    at("join")
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()


from pytest_ddpperf import Script

Subject = Script(main)
"""
# Launches of both ways take turns; the first of each prepares it.
TURNS = """

class Subject:
    def __init__(self, ctx):
        mark = join(SCRATCH, f"prepared.{RANK}")
        self.later, self.calls = os.path.exists(mark), 0
        opened(mark, "w").close()

    def __call__(self):
        import torch

        self.calls += 1
        at("turns" if self.later and self.calls == 12 else "")
        torch.distributed.all_reduce(torch.ones(7))


def good(ctx):
    import torch

    return lambda: torch.distributed.all_reduce(torch.ones(7))


Subject = {"faulty": Subject, "good": good}
"""
RANKS = """

def Subject(ctx):
    import torch

    torch.distributed.barrier()
    return at("result") or ctx.rank
"""
SUBJECTS = {"verification": WORKLOAD, "join": SCRIPT, "turns": TURNS, "result": RANKS}
VERBS = {"turns": "ddpperf.compare", "result": "ddpperf_group.run"}
TESTS = """\
import pytest
from benchmarks.campaign.training import add_up
"""
FAULTY = """

@pytest.mark.ddpperf(timeout={timeout:g})
def test_{number}({fixture}):
    from subject_{number} import Subject

    {verb}(Subject)


@pytest.mark.ddpperf(timeout=30)
def test_{number}_next(ddpperf_group):
    assert len(set(ddpperf_group.run(add_up).values)) == 1
"""
STORED = """\
def test_stored(ddpperf):
    def build(ctx):
        import torch
        return lambda: torch.distributed.all_reduce(torch.ones(64))
    ddpperf.check(build)
"""
CONFTEST = """\
import gc, json, os, time
from pathlib import Path

import pytest

from benchmarks.campaign.left import left, present
from pytest_ddpperf.plugin import SESSION

FILE, TEMPORARY = {file!r}, Path({temporary!r})
before = []


def written(**fields):
    with open(FILE, "a") as file:
        file.write(json.dumps(fields) + "\\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before[:] = [present(TEMPORARY), len(os.listdir("/proc/self/fd"))]
    result = yield
    parents = set()
    if SESSION in item.config.stash:
        parents = {{pid for pid in item.config.stash[SESSION].ranks_parents if pid}}
    remains, _, _ = left(TEMPORARY, before[0], {{*parents, os.getpid(), 1}})
    gc.collect()
    TEMPORARY.mkdir(exist_ok=True)
    (TEMPORARY / "full").unlink(missing_ok=True)
    written(test=item.name, when="after", left=remains, files=len(os.listdir("/proc/self/fd")), zygotes=len(parents))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        raised = None if call.excinfo is None else call.excinfo.value
        text = str(raised) if raised else ""
        written(
            test=item.name, when="call", outcome=report.outcome, ended=time.time(), text=text[:200000],
            error=type(raised).__name__ if raised else "", rank=getattr(raised, "rank", None), length=len(text),
        )
    return report
"""


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
    if "pytest" not in kind.ways:
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
    for fields in in_files(reports):
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
