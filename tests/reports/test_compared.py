"""What pays of several ways, in a line for each comparison."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.compared import what_pays
from tests.factories import make_new_result, make_series


def way(name: str, speedup: float | None, memory: float = 1.0, test: str = "t.py::test_ways") -> Result:
    """Of a comparison over base; None for the base itself."""
    series = [] if speedup is None else [make_series("speedup", speedup), make_series("memory_ratio", memory)]
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
    assert what_pays(results)[-2:] == ["test_4: fastest quick", "and 2 more comparisons"]
