from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_ddpperf.metrics.scaling import efficiency, negative_scaling, scaling_series, speedup
from pytest_ddpperf.records import Environment, Launch, Measurement, Mode, Plan, RankLaunch


def measurement(world_size: int, times: Mapping[int, float], *, cores: int = 8) -> Measurement:
    """Step times by round; all ranks and all steps alike."""
    environment = Environment("cpu", "some cpu", 0, "some cpu", cores, 1, 1, "gloo", world_size, "2.13", None)
    launches = tuple(
        Launch(i, tuple(RankLaunch(r, (time,), {}, None, None, None) for r in range(world_size)), 1.0)
        for i, time in times.items()
    )
    return Measurement(f"w{world_size}", "ddp", "weak", Plan(1, 1), environment, launches)


@pytest.mark.parametrize(
    ("mode", "base_size", "expected_speedup", "expected_efficiency"),
    [
        ("strong", 1, 3.2, 0.8),  # T1 / T4 = 0.16 / 0.05; 3.2 / 4
        ("weak", 1, 12.8, 3.2),  # 4 * T1 / T4; T1 / T4
        ("strong", 2, 3.2, 1.6),  # T2 / T4; 2 T2 / (4 T4)
        ("weak", 2, 6.4, 3.2),  # 4 T2 / (2 T4); T2 / T4
    ],
)
def test_definitions_worked_by_hand(
    mode: Mode, base_size: int, expected_speedup: float, expected_efficiency: float
) -> None:
    assert speedup(0.16, 0.05, mode, world_size=4, base_size=base_size) == pytest.approx(expected_speedup)
    assert efficiency(0.16, 0.05, mode, world_size=4, base_size=base_size) == pytest.approx(expected_efficiency)


@pytest.mark.parametrize(("mode", "time"), [("strong", 0.25), ("weak", 1.0)])
def test_ideal_scaling_is_an_efficiency_of_one_and_a_speedup_of_n(mode: Mode, time: float) -> None:
    assert efficiency(1.0, time, mode, world_size=4) == 1
    assert speedup(1.0, time, mode, world_size=4) == 4


def test_samples_are_paired_by_round() -> None:
    """Only rounds 1 and 2 have both: 1.0 / 1.25 and 2.0 / 2.0, whatever the order of measuring."""
    base = measurement(1, {0: 9.0, 2: 2.0, 1: 1.0})
    point = measurement(2, {1: 1.25, 2: 2.0, 3: 7.0})

    by_name = {series.metric: series for series in scaling_series(base, point, "weak")}

    assert by_name["scaling_efficiency"].samples == (0.8, 1.0)
    assert by_name["speedup"].samples == (1.6, 2.0)


def test_without_a_common_round_nothing_is_said() -> None:
    assert scaling_series(measurement(1, {0: 1.0}), measurement(2, {1: 1.0}), "weak") == ()


@pytest.mark.parametrize(("cores", "gated"), [(2, True), (1, False)])
def test_ranks_that_share_a_core_are_not_held_to_their_efficiency(cores: int, gated: bool) -> None:  # noqa: FBT001
    point = measurement(2, {0: 1.0}, cores=cores)

    assert [one.gated for one in scaling_series(measurement(1, {0: 1.0}), point, "weak")] == [gated, False]


def test_negative_scaling_is_named() -> None:
    """Strong: 1.0 / 2.0 and 1.0 / 2.1; the geometric mean is 0.488."""
    series = scaling_series(measurement(1, {0: 1.0, 1: 1.0}), measurement(4, {0: 2.0, 1: 2.1}), "strong")

    assert negative_scaling(series, 1, 4) == ("negative scaling: 4 ranks do less work per second than 1 (x0.49)",)


@pytest.mark.parametrize(
    "times",
    [
        {0: 0.5, 1: 0.5},  # twice as fast
        {0: 1.04, 1: 1.0},  # 2 % slower, but two launches that differ by 4 % do not prove it
    ],
)
def test_what_may_be_chance_is_not_called_negative_scaling(times: dict[int, float]) -> None:
    series = scaling_series(measurement(1, {0: 1.0, 1: 1.0}), measurement(4, times), "strong")

    assert negative_scaling(series, 1, 4) == ()
