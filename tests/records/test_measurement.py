"""What the nouns look like in a prompt and in a failed assertion: a line, not pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from tests.factories import make_environment

CPU = make_environment(cpu_model="AMD EPYC", cores=2)
STEP_TIME = Series(
    metric="step_time",
    unit="s",
    better="lower",
    family="absolute",
    scale="ratio",
    gated=True,
    min_tolerance=0.0,
    samples=(0.0418,) * 8,
    value=0.0418,
    interval=None,
)
LAUNCH = Launch(
    round=0,
    ranks=(
        RankLaunch(
            rank=0, step_times=(0.0418,) * 100, memory={}, loss=None, samples_per_step=None, tokens_per_step=None
        ),
    ),
    seconds=1.0,
)
MEASURED = Measurement(
    name="ddp",
    strategy="ddp",
    mode=None,
    plan=Plan(warmup=5, steps=100),
    environment=CPU,
    launches=(LAUNCH,) * 8,
    series=(STEP_TIME,),
)


def test_a_measurement_is_its_name_its_ranks_and_its_step_time() -> None:
    assert repr(MEASURED) == "<Measurement ddp: 2 ranks, step_time 41.8 ms in 8 launches>"


def test_a_name_of_its_own_does_not_hide_how_it_was_trained() -> None:
    named = replace(MEASURED, name="mine", recipe={"precision": "bf16"})
    assert repr(named).startswith("<Measurement mine: ddp precision=bf16, 2 ranks, ")


def test_what_was_only_counted_shows_counts_and_what_broke_nothing() -> None:
    counts = Counts(totals={"operators": 9.0}, details={}, unstable={})
    assert repr(replace(MEASURED, series=(), launches=(), counts=counts)) == (
        "<Measurement ddp: 2 ranks, <Counts operators 9>>"
    )
    assert repr(replace(MEASURED, series=(), launches=())) == "<Measurement ddp: 2 ranks, not timed>"


def test_a_measurement_is_gone_through_by_the_names_of_its_metrics() -> None:
    assert list(MEASURED) == ["step_time"]
    assert "step_time" in MEASURED
    assert "step" not in MEASURED


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("ddp", {}),
        ("ddp[bucket_cap_mb=5]", {}),
        ("ddp accumulation_steps=4 no_sync=false", {"accumulation_steps": "4", "no_sync": "false"}),
        ("ddp[bucket_cap_mb=5] loader=workers=2,pin_memory=true", {"loader": "workers=2,pin_memory=true"}),
    ],
)
def test_options_are_taken_off_a_name(name: str, recipe: dict[str, str]) -> None:
    assert replace(MEASURED, name=name, recipe=recipe).plain_name == "ddp"


def test_a_name_is_left_as_it_was_given() -> None:
    assert replace(MEASURED, name="weak w2 precision=mine").plain_name == "weak w2 precision=mine"
