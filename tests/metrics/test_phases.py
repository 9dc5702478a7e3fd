"""Phases of launches: averages that keep the sum."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from pytest_ddpperf.metrics.launch_figures import Within
from pytest_ddpperf.metrics.phases import memory_of_phases, of_phase, phase_seconds, sections_of
from pytest_ddpperf.records.phases import PHASES, MemoryUse, PhaseTimes, SectionTimes
from tests.metrics.made import by_name, of_ranks


def phases(*sections: SectionTimes, **seconds: tuple[float, ...]) -> PhaseTimes:
    nothing = (0.0,) * len(next(iter(seconds.values())))
    return PhaseTimes(seconds={phase: seconds.get(phase, nothing) for phase in PHASES}, sections=sections)


measurement = partial(of_ranks, "phases")


def test_phases_are_averages_over_ranks_and_steps() -> None:
    """Forward: (1 + 50 + 3 + 6 + 3 + 50 + 3 + 4) / 8 = 15; backward: (6 + 6 + 2 + 2) / 8 = 2. Steps take 17 s."""
    one = phases(forward=(1, 50, 3, 6), backward=(6, 0, 6, 0))
    other = phases(forward=(3, 50, 3, 4), backward=(2, 0, 2, 0))
    found = {phase: phase_seconds(phase)(measurement([one, other], [one, one])) for phase in PHASES}
    assert found == {**dict.fromkeys(PHASES, (0, 0)), "forward": (15, 15), "backward": (2, 3)}
    assert sum(parts[0] for parts in found.values() if parts is not None) == 17


def test_a_measurement_that_was_not_diagnosed_has_no_phases() -> None:
    known = phases(forward=(1,))
    assert phase_seconds("forward")(measurement([known, None])) is None
    assert phase_seconds("forward")(measurement([known], [None])) == (1,)  # one of two launches was diagnosed
    assert sections_of(measurement([None])) == ()
    assert of_phase("other")(measurement([None])) == Within((), 0.0)
    assert of_phase("other")(measurement([phases(other=(8,))])).moved == (), "of a single step"


def test_the_steps_of_a_launch_know_the_scatter_of_its_phases() -> None:
    """Steps of the average rank: 2, 4 and 6, of which forward takes 1, 3 and 5.

    Without one after the other the mean is 4, 3 and 2: 2 * (3 - that) are the influences. (4 + 0 + 4) / (3 * 2) is
    their variance, and the launch adds 1.5 % of a step of 4. Of these 2 degrees Student's t is 4.3027. The lower end
    would be below 0, which no time is.
    """
    one = phases(forward=(1, 2, 3), backward=(1, 1, 1))
    other = phases(forward=(1, 4, 7), backward=(1, 1, 1))
    launch = measurement([one, other])
    assert of_phase("forward")(launch).moved == ((-2.0, 0.0, 2.0),)
    assert of_phase("backward")(launch).moved == ((0.0, 0.0, 0.0),)
    assert of_phase("forward")(launch).own == of_phase("backward")(launch).own == pytest.approx(0.06)
    series = by_name(launch)["phase_forward"]
    half = 4.3027 * math.sqrt(8 / 6 + 0.06**2)
    assert series.interval is not None
    assert 3 - half < 0
    assert (series.interval.low, series.interval.high) == pytest.approx((0, 3 + half), rel=1e-4)


def test_sections_are_averages_too() -> None:
    """Steps of 10 and 30 s on both ranks, 20 on average.

    `save`: 4 and 12 s in 2 entries on rank 0 alone, 1 and 9 of them its own: 4 s, 2.5 s and 1 entry of the average
    rank in a step; 20 %.
    """
    use = MemoryUse(kind="allocated", change=100, peak=700)
    save = SectionTimes(path="save", count=2, seconds=(4, 12), own_seconds=(1, 9), memory=use)
    disk = SectionTimes(path="save/disk", count=2, seconds=(3, 3), own_seconds=(3, 3), memory=replace(use, change=-5))
    shared = SectionTimes(path="shared", count=1, seconds=(5, 5), own_seconds=(5, 5), memory=use)
    less = replace(shared, memory=MemoryUse(kind="allocated", change=50, peak=900))
    ranks = [phases(save, disk, shared, other=(10, 30)), phases(less, other=(10, 30))]
    found = sections_of(measurement(ranks, ranks))
    assert [one.path for one in found] == ["save", "save/disk", "shared"]
    assert [(one.count, one.seconds, one.own_seconds, one.mean) for one in found] == [
        (1, 4, 2.5, 4),
        (1, 1.5, 1.5, 1.5),
        (1, 5, 5, 5),
    ]
    assert [one.share for one in found] == pytest.approx([0.2, 0.075, 0.25])
    assert [one.memory for one in found] == [
        use,
        replace(use, change=-5),
        MemoryUse(kind="allocated", change=100, peak=900),
    ]


def test_memory_of_a_phase_is_the_largest_that_a_rank_saw() -> None:
    """Changes of 5 and 8, peaks of 90 and 70; the optimizer's is known on one rank only."""
    one = replace(phases(forward=(1,)), memory={"forward": MemoryUse(kind="allocated", change=5, peak=90)})
    uses = {
        "forward": MemoryUse(kind="allocated", change=8, peak=70),
        "optimizer": MemoryUse(kind="allocated", change=0, peak=10),
    }
    other = replace(one, memory=uses)
    assert memory_of_phases(measurement([one], [other])) == {
        "forward": MemoryUse(kind="allocated", change=8, peak=90),
        "optimizer": MemoryUse(kind="allocated", change=0, peak=10),
    }
    assert memory_of_phases(measurement([None])) == {}
