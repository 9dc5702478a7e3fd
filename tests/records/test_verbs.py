"""What a test asks of several measurements: one of them by its name, and how they stand to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.errors import NotTimed
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Interval, Measurement
from pytest_ddpperf.records.verbs import ScalingCurve, SideBySide
from tests.factories import make_environment, make_measurement, make_series


def measured(name: str, world_size: int, **values: float) -> Measurement:
    series = (make_series(metric, value, unit="1", better="higher") for metric, value in values.items())
    return make_measurement(name=name, environment=make_environment(world_size=world_size), series=tuple(series))


CURVE = ScalingCurve(
    mode="weak",
    points=(measured("single", 1), measured("ddp", 2, speedup=1.8, scaling_efficiency=0.9), measured("ddp", 4)),
)
COMPARED = SideBySide(
    over="naive",
    names=("naive", "flat"),
    measurements=(measured("naive", 2), measured("flat", 2, speedup=1.25)),
    canonical=str.lower,
)


def test_a_curve_has_speedup_and_efficiency_by_world_size() -> None:
    assert (CURVE.speedup(2), CURVE.efficiency(2)) == (1.8, 0.9)


def test_the_reference_of_a_comparison_has_a_speedup_of_1() -> None:
    assert COMPARED["NAIVE"]["speedup"].value == 1
    assert COMPARED["flat"]["speedup"].value == 1.25
    assert [CURVE.point(1)[metric].value for metric in ("speedup", "scaling_efficiency")] == [1, 1]
    only_counted = replace(COMPARED.measurements[0], counts=Counts(totals={}, details={}, unstable={}))
    with pytest.raises(NotTimed):
        _ = replace(COMPARED, measurements=(only_counted, COMPARED.measurements[1]))["naive"]["speedup"]


def test_for_a_point_that_was_not_measured_the_error_lists_the_measured_ones() -> None:
    with pytest.raises(KeyError, match=r"no point has 3 ranks; the measured points have \[1, 2, 4\]"):
        CURVE.point(3)


def test_a_variant_is_found_whatever_the_case_of_its_name() -> None:
    assert COMPARED["FLAT"].name == "flat"
    assert COMPARED.speedup("Flat") == 1.25


def test_for_a_variant_that_was_not_measured_the_error_lists_the_measured_ones() -> None:
    with pytest.raises(KeyError, match=r"'ddp' was not measured; give one of \['naive', 'flat'\]"):
        COMPARED["ddp"]


def way(name: str, speed: tuple[float, float, float], memory: tuple[float, float, float]) -> Measurement:
    """A way with value and interval of both."""
    one = measured(name, 2, speedup=speed[1], memory_ratio=memory[1])
    series = (
        replace(each, interval=Interval(low=low, high=high, confidence=0.95))
        for each, (low, _, high) in zip(one.series, (speed, memory), strict=True)
    )
    return replace(one, series=tuple(series))


def test_unbeaten_variants_are_the_pareto_front_of_speed_and_memory() -> None:
    """By speed and memory: quick and wide are not told apart, lean takes least, and quick beats slow in both."""
    ways = (
        measured("base", 2),
        way("quick", (1.8, 2.0, 2.2), (0.7, 0.8, 0.9)),
        way("wide", (1.7, 1.9, 2.1), (1.9, 2.0, 2.1)),
        way("lean", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
        way("slow", (0.3, 0.4, 0.5), (0.85, 0.9, 0.95)),
        replace(measured("unfit", 2), findings=(Finding("does_not_fit", {"reason": "", "fitted": False}),)),
    )
    compared = SideBySide(over="base", names=tuple(each.name for each in ways), measurements=ways)
    assert compared.fastest == ("quick", "wide")
    assert compared.leanest == ("lean",)
    assert compared.unbeaten == ("quick", "lean")


def test_an_unknown_speedup_makes_no_variant_the_only_fastest() -> None:
    """An interval that says nothing is none, and the one that is best by its value may be any of them."""
    noisy = measured("noisy", 2, speedup=3.0, memory_ratio=1.0)
    ways = (measured("base", 2), noisy, way("quick", (1.8, 2.0, 2.2), (0.7, 0.8, 0.9)))
    compared = SideBySide(over="base", names=tuple(each.name for each in ways), measurements=ways)
    assert compared.fastest == ("noisy", "base", "quick")
    assert replace(compared, names=("base", "quick"), measurements=(ways[0], ways[2])).fastest == ("quick",)


def test_variants_that_were_only_counted_are_neither_fastest_nor_leanest() -> None:
    assert (COMPARED.fastest, COMPARED.leanest, COMPARED.unbeaten) == ((), (), ())
