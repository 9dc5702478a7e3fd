from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.metrics import scaling
from pytest_ddpperf.metrics.scaling import memory_series, negative_scaling, scaling_series, speedup_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Measurement, Mode
from pytest_ddpperf.stats.launches import OWN_APART, OWN_IN_TURNS
from tests.factories import make_environment, make_launch, make_measurement


def measurement(world_size: int, times: Mapping[int, float], *, cores: int = 8) -> Measurement:
    """Step times by round; all ranks and all steps alike."""
    environment = make_environment(cores=cores, world_size=world_size)
    launches = tuple(make_launch(*[(time,)] * world_size, round=i) for i, time in times.items())
    return make_measurement(name=f"w{world_size}", mode="weak", environment=environment, launches=launches)


@pytest.mark.parametrize(
    ("mode", "base_size", "expected_speedup", "expected_efficiency"),
    [
        ("strong", 1, 3.2, 0.8),  # T1 / T4 = 0.16 / 0.05; 3.2 / 4
        ("weak", 1, 12.8, 3.2),  # 4 * T1 / T4; T1 / T4
        ("strong", 2, 3.2, 1.6),  # T2 / T4; 2 T2 / (4 T4)
        ("weak", 2, 6.4, 3.2),  # 4 T2 / (2 T4); T2 / T4
    ],
)
def test_scaling_metrics_agree_with_those_worked_by_hand(
    mode: Mode, base_size: int, expected_speedup: float, expected_efficiency: float
) -> None:
    scaled = scaling_series(measurement(base_size, {0: 0.16}), measurement(4, {0: 0.05}), mode)
    assert [each.value for each in scaled] == pytest.approx([expected_efficiency, expected_speedup])


@pytest.mark.parametrize(("mode", "time"), [("strong", 0.25), ("weak", 1.0)])
def test_ideal_scaling_is_an_efficiency_of_one_and_a_speedup_of_n(mode: Mode, time: float) -> None:
    scaled = scaling_series(measurement(1, {0: 1.0}), measurement(4, {0: time}), mode)
    assert [each.value for each in scaled] == [1, 4]


def counted(point: Measurement, *flops: float) -> Measurement:
    """A point whose ranks were counted; of several numbers each is a rank's."""
    totals, by_rank = {"flops": max(flops, default=0.0)}, {"flops": flops} if len(flops) > 1 else {}
    return replace(point, counts=Counts(totals=totals, details={}, unstable={}, by_rank=by_rank))


def test_the_work_of_a_model_that_grows_is_counted_on_a_rank() -> None:
    """From 100 to 150 FLOPs in 1.0 s and 1.2 s: 1.0 / 1.2 x 1.5; to 300 in 3.0 s: 1.0 / 3.0 x 3."""
    base, two = counted(measurement(1, {0: 1.0}), 100), counted(measurement(2, {0: 1.2}), 140, 160)
    four = counted(measurement(4, {0: 3.0}), 300)
    _, *points = scaling.with_efficiency([base, two, four], "weak", grows=True)
    assert [{one.metric: one.value for one in point.series} for point in points] == [
        pytest.approx({"scaling_efficiency": 1.25, "speedup": 2.5}),
        pytest.approx({"scaling_efficiency": 1.0, "speedup": 4.0}),
    ]
    assert [[(one.code, one.facts["work"]) for one in point.findings] for point in points] == [
        [("grown_work", 1.5)],
        [("grown_work", 3.0)],
    ]


def test_a_model_that_grows_scales_negatively_by_the_work_from_point_to_point() -> None:
    """From 2 to 4 ranks work doubles and time quintuples: 4/2 x 2 / 5 = 0.8 of the work per second."""
    sizes = ((1, 1.0, 1), (2, 1.0, 1), (4, 5.0, 2))
    points = [counted(measurement(n, {0: time, 1: time}), flops) for n, time, flops in sizes]
    lost = [
        one for one in scaling.with_efficiency(points, "weak", grows=True)[2].findings if one.code == "negative_scaling"
    ]
    assert [(one.facts["base_size"], one.facts["speedup"]) for one in lost] == [(2, pytest.approx(0.8))]


@pytest.mark.parametrize("other", [measurement(2, {0: 1.0}), counted(measurement(2, {0: 1.0}))])
def test_a_model_that_grows_needs_flops(other: Measurement) -> None:
    with pytest.raises(WorkloadError, match=r"^w2: no FLOPs were counted, but the efficiency of a model that grows"):
        scaling.with_efficiency([counted(measurement(1, {0: 1.0}), 100), other], "weak", grows=True)


def test_samples_are_paired_by_round() -> None:
    """Only rounds 1 and 2 have both: 1.0 / 1.25 and 2.0 / 2.0, whatever the order of measuring."""
    base = measurement(1, {0: 9.0, 2: 2.0, 1: 1.0})
    point = measurement(2, {1: 1.25, 2: 2.0, 3: 7.0})

    by_name = {series.metric: series for series in scaling_series(base, point, "weak")}
    assert by_name["scaling_efficiency"].samples == (0.8, 1.0)
    assert by_name["speedup"].samples == (1.6, 2.0)
    assert scaling_series(measurement(1, {0: 1.0}), measurement(2, {1: 1.0}), "weak") == ()


@pytest.mark.parametrize(("cores", "gated"), [(2, True), (1, False)])
def test_the_efficiency_of_ranks_that_share_a_core_is_not_gated(cores: int, gated: bool) -> None:  # noqa: FBT001
    point = measurement(2, {0: 1.0}, cores=cores)
    assert [one.gated for one in scaling_series(measurement(1, {0: 1.0}), point, "weak")] == [gated, False]


def test_negative_scaling_is_named() -> None:
    """Strong: 1.0 / 2.0, 1.0 / 2.1 and 1.0 / 2.05; the geometric mean is 0.488."""
    rounds = {0: 2.0, 1: 2.1, 2: 2.05}
    series = scaling_series(measurement(1, dict.fromkeys(rounds, 1.0)), measurement(4, rounds), "strong")
    (finding,) = negative_scaling(series, 1, 4)
    assert (finding.code, finding.facts["world_size"], finding.facts["base_size"]) == ("negative_scaling", 4, 1)
    assert finding.facts["speedup"] == pytest.approx(0.488, abs=5e-4)


@pytest.mark.parametrize(
    "times",
    [
        {0: 0.5, 1: 0.5},  # twice as fast
        {0: 1.04, 1: 1.0, 2: 1.02},  # 2 % slower, but three launches that differ by 4 % do not prove it
        {0: 2.0, 1: 2.1},  # half as fast in two launches, whose scatter nothing tells
        {0: 2.0, 1: 9.0, 2: 1.0},  # an interval of more than a factor of three is none
    ],
)
def test_a_slowdown_that_may_be_chance_is_not_called_negative_scaling(times: dict[int, float]) -> None:
    series = scaling_series(measurement(1, dict.fromkeys(times, 1.0)), measurement(4, times), "strong")
    assert negative_scaling(series, 1, 4) == ()


def in_blocks(times: tuple[float, ...], *, turns: bool) -> Measurement:
    """Of one launch whose steps last so long."""
    return replace(measurement(2, {0: 1.0}), launches=(make_launch(times),), turns=turns)


@pytest.mark.parametrize(("turns", "own"), [(True, OWN_IN_TURNS), (False, OWN_APART)])
def test_pairs_of_blocks_know_the_scatter_of_a_quotient(own: float, *, turns: bool) -> None:
    """Without one block a step takes 1.01 s or 1 s: the mean of the logarithms lies half of ln 1.01 from either.

    Blocks of the other one differ by twice as much, and move it so. A longer step of the other one is a lower speedup.
    """
    base, other = (in_blocks((1.0, 1.0, slow, slow), turns=turns) for slow in (1.01, 1.01**2))
    (speedup_of,) = speedup_series(base, other)
    assert speedup_of.own == own
    (moved,) = speedup_of.within
    assert moved == pytest.approx((math.log(1.01) / 2, -math.log(1.01) / 2))
    assert speedup_of.interval is not None
    assert [one.within for one in scaling_series(base, other, "weak")] == [speedup_of.within] * 2


def taking(seconds: float, *, samples: float | None = None, memory: dict[str, float] | None = None) -> Measurement:
    """Of one launch with two ranks; the second one takes a tenth more memory."""
    one = measurement(2, {0: seconds})
    ranks = tuple(
        replace(
            one.launches[0].ranks[0],
            rank=rank,
            samples_per_step=samples,
            memory={kind: nbytes * (1 + 0.1 * rank) for kind, nbytes in (memory or {}).items()},
        )
        for rank in range(2)
    )
    return replace(one, launches=(replace(one.launches[0], ranks=ranks),))


@pytest.mark.parametrize(
    ("base", "other", "expected"),
    [
        pytest.param(8.0, 32.0, 1.6, id="four times the samples in 2.5 times the time"),
        pytest.param(8.0, 8.0, 0.4, id="as many samples"),
        pytest.param(None, 32.0, 0.4, id="where one side does not tell, steps are compared"),
    ],
)
def test_a_speedup_is_of_samples_per_second(base: float | None, other: float | None, expected: float) -> None:
    (found,) = speedup_series(taking(0.1, samples=base), taking(0.25, samples=other))
    assert found.samples == pytest.approx((expected,))


def test_the_memory_of_a_variant_belongs_to_the_rank_that_takes_most() -> None:
    """1.1 times 300 over 1.1 times 200 bytes; what is allocated tells more than what is resident."""
    base = taking(1.0, memory={"peak_resident": 1000, "peak_allocated": 200})
    (found,) = memory_series(base, taking(1.0, memory={"peak_resident": 10, "peak_allocated": 300}))
    assert (found.metric, found.better, found.gated) == ("memory_ratio", "lower", False)
    assert found.samples == pytest.approx((1.5,))
    assert not found.drifts
    assert memory_series(base, taking(1.0)) == ()
    assert memory_series(base, replace(base, environment=replace(base.environment, device="cuda"))) == ()


def test_the_speedup_of_a_variant_is_gated_and_the_speedup_of_a_strategy_is_not() -> None:
    base, fast = replace(taking(0.2), name="base"), replace(taking(0.1), name="fast")
    for gated in (True, False):
        same, other = scaling.with_speedup([base, fast], "base", gated=gated)
        assert (same, other.over) == (base, "base")
        assert other["speedup"].value == pytest.approx(2.0)
        assert other["speedup"].gated is gated


def test_no_gain_of_variants_whose_threads_share_cores_is_gated() -> None:
    """Two ranks of four threads on eight cores have a core each; on seven they have not."""
    for cores, gated in ((8, True), (7, False)):
        crowded = replace(measurement(2, {0: 0.1}, cores=cores), name="more threads")
        crowded = replace(crowded, environment=replace(crowded.environment, threads=4))
        base = replace(measurement(2, {0: 0.2}, cores=cores), name="base")
        for first, second in ((base, crowded), (crowded, base)):
            _, other = scaling.with_speedup([first, second], first.name, gated=True)
            assert other["speedup"].gated is gated
