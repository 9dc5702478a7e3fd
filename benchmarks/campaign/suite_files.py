"""The files of a suite: a subject for each fault, the tests, and what notes down how each of them ends."""

from __future__ import annotations

# The place that a fault happens in decides what is measured: a step, a Workload, a script, two steps or only ranks.
HEAD = """\
import os
import sys
from benchmarks.campaign.cases import reach
from benchmarks.campaign.collectives import SKIP
from benchmarks.campaign.kinds import Case

CASE, SCRATCH = Case(**{case!r}), {scratch!r}
join, getpid, opened = os.path.join, os.getpid, open  # a fault may break the module's, and what is builtin
RANK, frame_here = int(os.environ.get("RANK", -1)), sys._getframe
done = []


def within(folder):
    frame = frame_here()
    while frame is not None and folder not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


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
        phase = "counted step" if counting else phases.get(self.calls, "")
        if at("diagnosis" if within("/instruments/phases/") else phase) != SKIP:
            torch.distributed.all_reduce(self.weight * 1)

    def close(self):
        at("close")
"""
WORKLOAD = """
import torch
from pytest_ddpperf import Workload


def loss(outputs, targets):
    at("verification" if within("/correctness/") else "")
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
CALLS = {
    "turns": "ddpperf.compare(Subject)",
    "result": "ddpperf_group.run(Subject)",
    "diagnosis": "ddpperf.measure(Subject, verify=False, max_time=8)",
}
TESTS = """\
import pytest
from benchmarks.campaign.cases import add_up
"""
FAULTY = """

@pytest.mark.ddpperf(timeout={timeout:g}, world_size={world_size})
def test_{number}({fixture}):
    from subject_{number} import Subject

    {call}


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
        parents = {{pid for pid in item.config.stash[SESSION].sides.parents if pid}}
    remains = left(TEMPORARY, before[0], {{*parents, os.getpid(), 1}})
    remains = [one for one in remains if not one.startswith("$TMPDIR/ddpperf-files-")]  # of a Script: gone with the run
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
