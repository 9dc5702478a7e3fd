"""Failures of all kinds, for the golden files: what pytest shows of each, at any width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pytest_ddpperf.errors import IncorrectTraining, RankFailed, RanksTimedOut
from pytest_ddpperf.judge.benchmark import unfit
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import PairedRevision, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import error_text, failures_text
from tests.factories import make_interval
from tests.reports.golden_runs import COMMIT, REGRESSED, SAME, counted, counts, metric, result, strategy

ACCEPT = 'pytest "perf/test_trainer.py::test_step" --ddpperf-save'
TEST = "perf/test_trainer.py::test_step"
SIDE = PairedRevision(revision="3f2a1c0 (main)", commit=COMMIT, launches=6, candidate_launches=6)
CHANGED = tuple(
    counted(name, counts(2, 100), counts(8, 124)) for name in ("collective_calls", "collective_bytes", "operators")
)
ROUNDS = {"samples": (0.0367,) * 12, "base_samples": (0.0238,) * 12, "worse_in": 12}
MACHINE = Finding("cores_used_by_others", {"least": 0.35, "most": 0.474, "seen": 3, "launches": 12})
SUSPECTED = Finding("suspected", {"metrics": ("step_time",), "launches": 6})
BOTH = result(
    TEST,
    Verdict.REGRESSED,
    0.0367,
    0.57,
    CHANGED,
    measured=strategy("custom"),
    step_time={**ROUNDS, "half": 0.037},
    findings=(SUSPECTED, MACHINE),
)
# The change is that of the rounds: both means, 23.8 and 36.7 ms, have another quotient, 1.542.
BOTH = replace(
    BOTH,
    comparisons=tuple(replace(c, baseline=0.0238) if c.series.metric == "step_time" else c for c in BOTH.comparisons),
)
COUNTS = result(TEST, Verdict.REGRESSED, more=CHANGED, measured=strategy("custom"))
PHASE = metric("phase_backward", 0.0251, Verdict.REGRESSED, gated=False)
PHASE = replace(
    PHASE,
    series=replace(PHASE.series, unit="s", scale="difference"),
    baseline=0.02,
    change=0.0051,
    change_interval=make_interval(0.004, 0.0062),
)
TIMES = result(
    TEST,
    Verdict.REGRESSED,
    0.0473,
    0.132,
    (PHASE, *SAME),
    measured=strategy("bucketed"),
    step_time={"samples": (0.0473,) * 12, "base_samples": (0.0418,) * 12, "worse_in": 12},
    findings=(SUSPECTED,),
    reference=SIDE,
)
TIMES = replace(TIMES, comparisons=tuple(c for c in TIMES.comparisons if c is PHASE or c.series.unit != "s" or c.gated))
UNFIT = replace(
    unfit(TEST, BOTH.measurement, "rank 1 ran out of memory in backward: MemoryError: 12 GiB", BOTH.reference),
    verdict=Verdict.REGRESSED,
)
STACK = """Traceback (most recent call last):
  File "perf/test_trainer.py", line 9, in build
    return Trainer(ctx.rank)
  File "trainer.py", line 12, in __init__
    raise ValueError("boom")
ValueError: boom"""
NO_MEMORY = """Traceback (most recent call last):
  File "trainer.py", line 16, in step
    loss.backward()
MemoryError: 12 GiB"""
STACKS = [
    """rank 1:
  File "perf/test_trainer.py", line 9 in build
  File "trainer.py", line 30 in save""",
    """ranks 0, 2, 3:
  File "perf/test_trainer.py", line 12 in step
  File "torch/distributed/distributed_c10d.py", line 2806 in all_reduce""",
]
CRASH = RankFailed(
    f"rank 1 of 2 raised ValueError: boom\n\n{STACK}\n\n"
    "rank 0: stopped (as a consequence: RuntimeError: Connection closed by peer)",
    rank=1,
    where="trainer.py:12 in __init__",
    stack=STACK,
)
HANG = RanksTimedOut(
    "\n\n".join(
        (
            "ranks 0, 2, 3 of 4 blocked after 60 s in all_reduce (trainer.py:16 in step); rank 1 is at trainer.py:30",
            "no rank moved within 0.5 s, so the launch hangs, or a single call takes long",
            *STACKS,
        )
    ),
    rank=1,
    stack=STACKS[0],
    others=STACKS[1],
)
MEMORY = RankFailed(
    "rank 1 of 2 ran out of memory in backward: MemoryError: 12 GiB; make the batch smaller\n\n"
    f"{NO_MEMORY}\n\nrank 0: stopped",
    rank=1,
    where="trainer.py:16 in step",
    stack=NO_MEMORY,
    out_of_memory=True,
)
INCORRECT = IncorrectTraining(
    "broken: gradients differ from a single process: 0.weight on rank 1 at step 1, relative error 1.2, tolerance "
    "0.0001; likely cause: the rank kept its own gradient, which was not synchronised; 3 of 4 parameters differ, on 2 "
    "of 2 ranks\n  benchmark forgetful(), 2 ranks, gloo",
    wrong={},
)
for error in (CRASH, HANG, MEMORY):
    error.benchmark = ("custom", error.rank or 0)


def judged(*results: Result) -> Callable[..., str]:
    """Writes the failure of a test with these results: at a width, or with all that is known."""
    return lambda width=80, *, verbose=False: failures_text(
        [(one, one.verdict) for one in results], accept=ACCEPT, width=width, verbose=verbose
    )


def raised(error: RankFailed | IncorrectTraining) -> Callable[..., str]:
    """Writes what is shown of an error."""
    return lambda width=80, *, verbose=False: error_text(error, width, verbose=verbose)


FAILURES: Mapping[str, Callable[..., str]] = {
    "counts_and_times": judged(BOTH),
    "counts": judged(COUNTS),
    "times_against_a_revision": judged(TIMES),
    "several": judged(BOTH, replace(COUNTS, measurement=replace(COUNTS.measurement, name="static graph")), REGRESSED),
    "no_longer_fits": judged(UNFIT),
    "correctness": raised(INCORRECT),
    "hang": raised(HANG),
    "crash": raised(CRASH),
    "out_of_memory": raised(MEMORY),
}
STACKS_OF = {"hang": STACKS[0], "crash": STACK, "out_of_memory": NO_MEMORY}
