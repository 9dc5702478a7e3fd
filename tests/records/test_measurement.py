"""What the nouns look like in a prompt and in a failed assertion: a line, not pages."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Environment, Launch, Measurement, Plan, RankLaunch, Series

CPU = Environment("cpu", "AMD EPYC", 0, "AMD EPYC", 2, 1, 1, "gloo", 2, "2.13", None)
STEP_TIME = Series("step_time", "s", "lower", "absolute", "ratio", True, 0.0, (0.0418,) * 8, 0.0418, None)  # noqa: FBT003
LAUNCH = Launch(0, (RankLaunch(0, (0.0418,) * 100, {}, None, None, None),), 1.0)
MEASURED = Measurement("ddp", "ddp", None, Plan(5, 100), CPU, (LAUNCH,) * 8, series=(STEP_TIME,))


def test_a_measurement_is_its_name_its_ranks_and_its_step_time() -> None:
    assert repr(MEASURED) == "<Measurement ddp: 2 ranks, step_time 41.8 ms in 8 launches>"


def test_a_name_of_its_own_does_not_hide_how_it_was_trained() -> None:
    named = replace(MEASURED, name="mine", recipe={"precision": "bf16"})
    assert repr(named).startswith("<Measurement mine: ddp precision=bf16, 2 ranks, ")


def test_what_was_only_counted_shows_counts_and_what_broke_nothing() -> None:
    counts = Counts({"operators": 9.0}, {}, {})
    assert repr(replace(MEASURED, series=(), launches=(), counts=counts)) == (
        "<Measurement ddp: 2 ranks, <Counts operators 9>>"
    )
    assert repr(replace(MEASURED, series=(), launches=())) == "<Measurement ddp: 2 ranks, not timed>"


def test_a_measurement_is_gone_through_by_the_names_of_its_metrics() -> None:
    assert list(MEASURED) == ["step_time"]
    assert "step_time" in MEASURED
    assert "step" not in MEASURED
