"""What a session knows of a benchmark before it is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.baselines import noise
from pytest_ddpperf.baselines.history import Run, record
from pytest_ddpperf.metrics import METRICS
from pytest_ddpperf.probe import Probe
from pytest_ddpperf.records import Environment, Measurement, Plan, Spread
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.results import Calibration, Comparison, Noise, Result
from pytest_ddpperf.revision.worktree import Revision
from pytest_ddpperf.session import Session
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.verdict import Verdict

TEST = "t.py::test"
CPU = Environment("cpu", "chip", 0, "chip", 2, 1, 1, "gloo", 2, "2.13", None)
(STEP_TIME,) = (metric for metric in METRICS if metric.name == "step_time")


def result(seconds: float) -> Result:
    series = STEP_TIME.series((seconds,))
    comparison = Comparison(series, None, None, None, 0.03, None, Verdict.NEW, gated=True)
    measured = Measurement("ddp", "ddp", None, Plan(1, 4), CPU, (), series=(series,))
    return Result(TEST, measured, (comparison,), Verdict.NEW, None, "", ())


@pytest.mark.parametrize(("probe", "theirs"), [(None, True), (Probe("1" * 40), False)])
def test_a_search_runs_the_tests_of_this_checkout_at_every_commit(
    tmp_path: Path, probe: Probe | None, *, theirs: bool
) -> None:
    revision = Revision("v1", "0" * 40, tmp_path)
    session = Session(Settings(against_tests=True), tmp_path, LiveLine(None, None), revision=revision, probe=probe)
    assert session.other is not None
    assert session.other.tests is theirs


def noise_known(session: Session) -> Noise | None:
    return session.find(TEST, "ddp", CPU, "ddp", {}).noise


def test_noise_is_learned_from_the_history_until_it_is_calibrated(tmp_path: Path) -> None:
    session = Session(Settings(history=Path("runs.sqlite")), tmp_path, LiveLine(None, None))
    assert noise_known(session) is None  # no history yet
    for second, time in enumerate((0.1, 0.101, 0.099, 0.1, 0.102)):
        run = Run(f"2026-01-12T00:00:0{second}+00:00", "3f2a1c0", None, "main", dirty=False)
        record(tmp_path / "runs.sqlite", run, [result(time)])
    learned = noise_known(session)
    assert learned is not None
    assert learned.origin == "learned from 5 recorded runs of 1 commit"
    assert noise_known(Session(Settings(), tmp_path, LiveLine(None, None))) is None

    spread = Spread(0.004, 4)
    found = Calibration("ddp", "2026-01-12", None, 5, 8, 24, 51.0, spread, spread, spread, 0.02, "ddp")
    for other in (replace(found, strategy="fsdp2"), replace(found, recipe={"precision": "bf16"})):
        noise.save(tmp_path / "baselines", TEST, [(CPU, other)])
        assert noise_known(session) == learned  # the same name trained otherwise then
    noise.save(tmp_path / "baselines", TEST, [(CPU, found)])
    assert noise_known(session) == found.noise
    noise.save(tmp_path / "baselines", TEST, [(replace(CPU, cores=4), replace(found, floor=0.5))])
    assert noise_known(session) == found.noise
