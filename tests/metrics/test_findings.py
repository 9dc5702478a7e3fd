from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Plan
from tests.factories import make_environment, make_launch, make_measurement

SETTLED = [1.0] * 12
SLOW_START = [1.2] * 3 + [1.0] * 9


def measurement(*launches: Sequence[float], ranks: int = 1, cores: int = 8, nodes: int = 1) -> Measurement:
    environment = make_environment(cores=cores, nodes=nodes, world_size=ranks)
    done = tuple(make_launch(*[tuple(times)] * ranks, round=i) for i, times in enumerate(launches))
    return make_measurement(plan=Plan(warmup=3, steps=12), environment=environment, launches=done)


def test_a_calm_measurement_has_no_findings() -> None:
    assert findings_of(measurement(*[SETTLED] * 5)) == ()


def test_ranks_that_share_cores_are_named_with_their_numbers() -> None:
    crowded = Finding("oversubscribed", {"ranks": 6, "threads": 1, "shared": 4, "resource": "core"})
    assert findings_of(measurement(SETTLED, ranks=6, cores=2, nodes=2)) == (crowded,)
    assert findings_of(measurement(ranks=6, cores=2, nodes=2)) == ()  # only counted
    assert findings_of(measurement(SETTLED, ranks=4, cores=2, nodes=2)) == ()  # as many as there are cores


@pytest.mark.parametrize(
    ("launches", "slow"),
    [
        ([SLOW_START, SLOW_START, SETTLED], 2),
        ([SLOW_START, SETTLED], 0),  # half of the launches is not most
        ([[1.09] * 3 + [1.0] * 9] * 3, 0),  # 9 % is not more than 10 %
        ([[1.5, 1.0, 1.0, 1.0]] * 3, 0),  # a quarter of four steps is one step: it may be anything
    ],
)
def test_a_warm_up_that_was_too_short_is_named(launches: list[list[float]], slow: int) -> None:
    facts = {"slow": slow, "launches": len(launches), "slower": 0.1, "warmup": 3}
    assert findings_of(measurement(*launches)) == ((Finding("unsettled_warmup", facts),) if slow else ())


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"skipped_steps": (0, 4, 5)}, Finding("skipped_steps", {"steps": 3, "launches": 2})),
        ({"tracers": ("coverage",)}, Finding("traced_steps", {"tracers": ("coverage",)})),
        ({"picked": ("workers=2", "they were fastest")}, Finding("picked_loader", {"reason": "they were fastest"})),
        ({"unseen": 0.4}, Finding("unseen_work", {"share": 0.4, "seen": 1, "launches": 2})),
    ],
)
def test_a_fact_that_a_rank_reports_in_one_launch_is_a_finding(fields: dict[str, Any], finding: Finding) -> None:
    base = measurement(SETTLED, SETTLED, ranks=2)
    one, other = base.launches
    reporting = replace(one, ranks=(replace(one.ranks[0], **fields), one.ranks[1]))
    assert findings_of(replace(base, launches=(reporting, other))) == (finding,)


def test_an_outlying_launch_is_named_and_kept() -> None:
    """Median 1.01; absolute deviations 0.01, 0, 0.01, 0.01, 0.2 have the median 0.01: three sigmas are 0.044."""
    (finding,) = findings_of(measurement([1.0], [1.01], [1.02], [1.21], [1.0]))
    assert (finding.code, finding.facts["launches"]) == ("outlying_launches", 5)
    ((number, change),) = finding.facts["outlying"]
    assert number == 4
    assert change == pytest.approx(1.21 / 1.01 - 1)


@pytest.mark.parametrize(
    "times",
    [
        [1.0, 1.0, 1.0, 1.04],  # beyond three sigmas of nothing, but within 5 %
        [1.0, 1.1, 1.2, 1.3],  # wide, but nobody stands apart
        [1.0, 1.0, 2.0],  # too few to tell who is the odd one
    ],
)
def test_launches_that_belong_together_are_not_named(times: list[float]) -> None:
    assert findings_of(measurement(*([time] for time in times))) == ()


def test_the_effective_batch_size_of_an_accumulating_step_is_named() -> None:
    """3 ranks of 32 samples in 4 micro-batches: 96."""
    measured = measurement(SETTLED, ranks=3)
    ranks = tuple(replace(rank, samples_per_step=32) for rank in measured.launches[0].ranks)
    measured = replace(measured, launches=(replace(measured.launches[0], ranks=ranks),))
    facts = {"size": 96, "micro_batches": 4, "ranks": 3}
    accumulating = replace(measured, recipe={"accumulation_steps": "4"})
    assert findings_of(accumulating) == (Finding("effective_batch_size", facts),)
    assert findings_of(measured) == ()
