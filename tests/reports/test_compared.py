"""What pays of several ways, in a line for each comparison."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Interval, MetricRules
from pytest_ddpperf.records.phases import PHASES, PhaseTimes
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.comparisons import how_it_scales, what_pays
from tests.factories import analysed, make_environment, make_new_result, make_rank_launch, make_series


def way(name: str, speedup: float | None, memory: float = 1.0, test: str = "t.py::test_ways") -> Result:
    """Of a comparison over base; None for the base itself."""
    series = []
    if speedup is not None:
        sure = Interval(low=0.99 * speedup, high=1.01 * speedup, confidence=0.95)
        of_bytes = MetricRules(drifts=False)
        series = [
            make_series("speedup", speedup, better="higher", interval=sure),
            make_series("memory_ratio", memory, rules=of_bytes),
        ]
    result = make_new_result(test, *series)
    measurement = replace(result.measurement, name=name, over=None if speedup is None else "base", series=tuple(series))
    return replace(result, measurement=measurement)


def test_each_comparison_has_a_line() -> None:
    results = [
        *(way("base", None), way("quick", 2.0, 1.5), way("lean", 0.5, 0.5)),
        *(way("base", None, test="t.py::test_two"), way("worse", 0.5, 2.0, test="t.py::test_two")),
        way("alone", None, test="t.py::test_alone"),
    ]
    assert what_pays(results) == [
        "test_ways: fastest quick; least memory lean",
        "test_two: fastest base; least memory base",
    ]


def test_of_many_comparisons_few_are_told() -> None:
    results = [
        each
        for number in range(7)
        for test in [f"t.py::test_{number}"]
        for each in (way("base", None, test=test), way("quick", 2.0, test=test))
    ]
    assert what_pays(results)[-2:] == ["test_4: fastest quick", "and 2 more"]


def point(
    ranks: int, speedup: float | None = None, cores: int = 8, mode: str = "strong", launches: tuple[Launch, ...] = ()
) -> Result:
    """Of a scaling curve; None for its base."""
    relative = {} if speedup is None else {"speedup": speedup, "scaling_efficiency": speedup / ranks}
    series = [make_series(name, value, unit="1") for name, value in relative.items()]
    environment = make_environment(world_size=ranks, cores=cores)
    named = {"name": f"{mode} w{ranks}", "mode": mode}  # as ddpperf.scaling names them
    return analysed(make_new_result("t.py::test_curve", *series, **named, environment=environment, launches=launches))


def test_a_curve_has_its_serial_fraction_and_where_it_stops_to_pay() -> None:
    """By Amdahl's law with 20 % serial: 1.667 and 2.5 times the speed; the third rank would add 0.476."""
    (line,) = how_it_scales([point(1), point(2, 1 / 0.6), point(4, 2.5)])
    told = "test_curve: good with 2, fair with 4 ranks; serial fraction 20 % [20.0 .. 20.0] (Amdahl); "
    assert line == f"{told}from 2 ranks on, one more rank adds under half a rank's work"


def test_a_serial_fraction_is_a_share_and_an_interval_of_any_share_is_not_told() -> None:
    """1.03, 1.06 and 1.95 of 2 ranks leave 94, 89 and 3 %: 61.8 % on average, and -66 to 190 % by Student's t."""
    base, wide = point(1), point(2, 1.1)
    speedups = make_series("speedup", 1.1, unit="1", samples=(1.03, 1.06, 1.95))
    relative = tuple(each if each.metric != "speedup" else speedups for each in wide.measurement.series)
    (line,) = how_it_scales([base, replace(wide, measurement=replace(wide.measurement, series=relative))])
    assert "; serial fraction 61.8 % (Amdahl)" in line
    (line,) = how_it_scales([base, point(2, 2.1)])  # more than twice the speed
    assert "; serial fraction 0 % (Amdahl)" in line


def test_a_weak_curve_is_held_against_gustafsons_law() -> None:
    assert how_it_scales([point(1, mode="weak"), point(2, 1.8, mode="weak")]) == [
        "test_curve: excellent with 2 ranks; serial fraction 20 % [20.0 .. 20.0] (Gustafson)"
    ]


def taken_apart(**phases: float) -> tuple[Launch, ...]:
    """A launch of one rank with equal steps of these phases."""
    seconds = {phase: (phases.get(phase, 0.0),) * 4 for phase in PHASES}
    rank = make_rank_launch(0, (sum(phases.values()),) * 4, phases=PhaseTimes(seconds=seconds))
    return (Launch(round=0, seconds=1.0, ranks=(rank,)),)


def test_what_a_curve_loses_is_told_by_cause() -> None:
    curve = [
        point(1, mode="weak", launches=taken_apart(forward=0.1)),
        point(2, 1.0, mode="weak", launches=taken_apart(forward=0.1, data_wait=0.1)),
    ]
    assert how_it_scales(curve)[1:] == ["test_curve: 2 ranks lose 100 ms of a step of 200 ms: waiting for data 100 ms"]
    little = [curve[0], point(2, 1.94, mode="weak", launches=taken_apart(forward=0.103))]
    assert len(how_it_scales(little)) == 1


def test_points_that_share_cores_are_left_out_of_it() -> None:
    curve = [point(1, cores=2), point(2, 0.8, cores=2), point(4, 0.1, cores=2)]
    (line,) = how_it_scales(curve)
    assert line.startswith("test_curve: negative scaling with 2 ranks; serial fraction 100 % (")
    assert line.endswith("; the fit omits 4 ranks, which share cores or GPUs")
    assert how_it_scales([curve[0], curve[2]]) == []
