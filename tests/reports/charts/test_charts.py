from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.baselines.history.database import HistoryRun
from pytest_ddpperf.baselines.history.trend import Point, Trend
from pytest_ddpperf.judge.quality import trained
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verbs import LOSS, Convergence, Curve
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.charts.chart import (
    Axis,
    Chart,
    ChartPoint,
    ChartSeries,
    numbered,
    remark_of,
    thinned,
    view_of,
)
from pytest_ddpperf.reports.charts.of_run import charts_of
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.formats.trends_page import trend_chart
from tests.factories import make_interval
from tests.reports.golden_runs import RUNS, metric, result, strategy
from tests.reports.made import made_chart, make_document
from tests.reports.test_trend import BENCHMARK

SCALED = "perf/test_scaling.py::test_weak"


def charts(kind: str, made: Run) -> list[Chart]:
    return [chart for chart in charts_of(made) if chart.kind == kind]


def points(series: ChartSeries) -> list[tuple[float, ...]]:
    """The points, those with an interval as four numbers."""
    return [
        (each.x, each.y) if each.low is None or each.high is None else (each.x, each.y, each.low, each.high)
        for each in series.points
    ]


def scaled(ranks: int, step: float, **more: float) -> Result:
    """A point of a weak scaling curve."""
    related = tuple(metric(name, value, Verdict.UNCHANGED, 0.0) for name, value in more.items())
    return result(
        SCALED,
        Verdict.UNCHANGED,
        step,
        0.0,
        related,
        world_size=ranks,
        measured=strategy(f"ddp w{ranks} over w2", mode="weak"),
    )


CURVE = (
    scaled(2, 0.02),
    scaled(4, 0.025, scaling_efficiency=0.8, speedup=1.6),
    scaled(8, 0.04, scaling_efficiency=0.5, speedup=2.0),
)


def test_a_scaling_curve_is_drawn_with_its_ideal() -> None:
    made = make_document(*CURVE)
    (speedup,) = charts("speedup", made)
    assert (speedup.title, speedup.subject, speedup.style) == (
        "speedup by number of ranks, weak scaling",
        SCALED,
        "lines",
    )
    (curve,), (ideal,) = speedup.series, speedup.references
    assert (curve.name, points(curve)) == ("ddp", [(2, 1.0), (4, 1.6, 1.584, 1.616), (8, 2.0, 1.98, 2.02)])
    assert (ideal.name, points(ideal)) == ("ideal", [(2, 1.0), (4, 2.0), (8, 4.0)])
    assert (speedup.y, remark_of(speedup)) == (Axis(name="speedup over 2 ranks", unit="1"), "bars and bands: 95 % CI")
    assert speedup.benchmark is None

    (efficiency,) = charts("efficiency", made)
    assert [point[:2] for point in points(efficiency.series[0])] == [(2, 1.0), (4, 0.8), (8, 0.5)]
    assert points(efficiency.references[0]) == [(2, 1.0), (4, 1.0), (8, 1.0)]

    (rates,) = charts("rank_throughput", made)  # 32 samples a step
    assert points(rates.series[0]) == [(2, 1600, 1584, 1616), (4, 1280, 1267.2, 1292.8), (8, 800, 792, 808)]
    assert points(rates.references[0]) == [(2, 1600), (4, 3200), (8, 6400)]
    assert rates.y.unit == "samples/s"


def test_a_single_point_is_no_curve_and_a_single_launch_no_distribution() -> None:
    assert charts("launches", make_document(slower(samples=(0.2,)))) == []
    made = make_document(CURVE[0])
    assert [charts(kind, made) for kind in ("speedup", "efficiency", "rank_throughput")] == [[], [], []]


def test_each_step_of_each_launch_is_shown() -> None:
    def change(data: Any) -> None:
        data["results"][0]["step_times"] = [[0.1, 0.2], [0.3]]

    (chart,) = charts("steps", make_document(CURVE[0], change=change))
    assert [(each.name, points(each)) for each in chart.series] == [
        ("launch 1", [(1, 0.1), (2, 0.2)]),
        ("launch 2", [(1, 0.3)]),
    ]
    assert (chart.y.unit, chart.note, chart.benchmark) == ("s", "after 5 steps of warm-up", 0)


def slower(**step: Any) -> Result:
    return result("t.py::test_a", Verdict.REGRESSED, 0.2, 0.25, step_time=step)


def test_launches_are_drawn_with_the_launches_of_the_baseline() -> None:
    memory = metric(
        "peak_resident", 200.0, Verdict.REGRESSED, 0.25, samples=(190.0, 210.0), base_samples=(150.0, 160.0, 512 / 3)
    )
    (chart,) = charts("launches", make_document(result("t.py::test_a", Verdict.REGRESSED, 0.2, 0.25, (memory,))))
    ours, theirs = chart.series
    assert (ours.name, points(ours)) == ("this run", [(1, 190), (2, 210)])
    assert (theirs.name, points(theirs)) == ("baseline", [(1, 150), (2, 160), (3, 170.666667)])
    now, base = chart.references
    assert (now.name, points(now)) == ("this run, all launches", [(1, 200, 198, 202), (3, 200, 198, 202)])
    assert (base.name, points(base)) == ("baseline, all launches", [(1, 160), (3, 160)])
    assert (chart.title, chart.x.name, chart.y.unit) == ("peak_resident by launch", "launch", "B")


def test_memory_is_shown_by_rank_and_category_and_by_phase() -> None:
    def change(data: Any) -> None:
        data["results"][0]["memory_by_rank"] = {"peak_resident": [100.0, 120.0], "ooms": [0.0, 0.0]}
        data["results"][0]["memory_by_phase"] = {
            "backward": {"kind": "allocated", "change": -10, "peak": 50},
            "forward": {"kind": "allocated", "change": 30, "peak": 40},
        }

    made = make_document(slower(), change=change)
    (chart,) = charts("memory", made)
    assert [(each.name, points(each)) for each in chart.series] == [("peak resident", [(0, 100.0), (1, 120.0)])]
    assert (chart.x.labels, chart.y.unit) == (("0", "1"), "B")
    (phases,) = charts("memory_phases", made)
    assert phases.x.labels == ("forward", "backward")
    assert [points(each) for each in phases.series] == [[(0, 30), (1, -10)], [(0, 40), (1, 50)]]


def test_bucket_sizes_are_a_sweep_if_nothing_else_differs() -> None:
    def swept(options: str, step: float) -> Result:
        text = f"ddp[{options}]"
        return result(f"t.py::test_b[{text}]", Verdict.NEW, step, measured={"name": text, "strategy": text})

    made = make_document(
        swept("bucket_cap_mb=25,static_graph=true", 0.3),
        swept("bucket_cap_mb=5,static_graph=true", 0.4),
        swept("bucket_cap_mb=25", 0.5),
        swept("static_graph=true", 0.6),
        *(swept(f"bucket_cap_mb={size},static_graph=true", 0.7) for size in ("auto", "none", "true", "inf", "nan")),
    )
    (chart,) = charts("bucket_sizes", made)
    assert [(each.name, points(each)) for each in chart.series] == [
        ("this run", [(5, 0.4, 0.396, 0.404), (25, 0.3, 0.297, 0.303)])
    ]
    assert (chart.x.log, chart.subject) == (True, "t.py::test_b, ddp static_graph=true, 2 ranks")


def test_throughput_of_variants_is_side_by_side() -> None:
    ways = [
        result("t.py::test_c", Verdict.OK, step, 0.25, measured=strategy(name))
        for name, step in (("naive", 0.4), ("ddp", 0.2))
    ]
    (chart,) = charts("throughput", make_document(*ways))
    now, before = chart.series
    assert chart.x.labels == ("test_c naive", "test_c ddp")
    assert points(now) == [(0, 80, 79.2, 80.8), (1, 160, 158.4, 161.6)]
    assert [point[1] for point in points(before)] == pytest.approx([100, 200])  # 1 / 1.25 of it is what is left
    assert (chart.y.unit, chart.subject) == ("samples/s", "t.py::test_c on 2 ranks")


def test_the_epoch_time_of_both_runs_is_drawn() -> None:
    epoch = metric("epoch_time", 10.0, Verdict.REGRESSED, 0.25, samples=(9.9, 10.1), base_samples=(7.9, 8.0, 8.1))
    (chart,) = charts("epoch_time", make_document(result("t.py::test_d", Verdict.REGRESSED, 0.2, 0.25, (epoch,))))
    now, before = chart.series
    assert (before.name, points(before)) == ("baseline", [(0, 8.0)])
    assert points(now) == [(0, 10.0, 9.9, 10.1)]
    assert charts("epoch_time", make_document(slower())) == []


def test_trainings_converge_step_by_step() -> None:
    curves = [Curve(steps=(10, 20), values={LOSS: (2.0, last)}) for last in (0.4, 0.5, 0.6)]
    ways = tuple(trained(name, curves) for name in "ab")
    found = Convergence(test="t.py::test_e", world_size=2, metric=LOSS, strategies=ways, kept=())
    (chart,) = charts("convergence", make_document(convergences=[found]))
    assert [each.name for each in chart.series] == ["a", "b"]
    first, last = points(chart.series[0])
    assert first == (10, 2.0, 2.0, 2.0)
    # Their standard error 0.1 / 3 ** 0.5, times the quantile 4.30265 of Student's t with two degrees of freedom.
    assert last == pytest.approx((20, 0.5, 0.5 - 0.248414, 0.5 + 0.248414), rel=1e-5)


def test_a_trend_is_a_chart() -> None:
    run = HistoryRun(date="2026-10-02T10:00:00+00:00", commit="a1b2c3d4e5")
    first = Point(run=run, runs=1, value=1.0, interval=make_interval(0.9, 1.1), level=1.01, change=None)
    second = replace(first, run=replace(run, commit=None), value=2.0, interval=None)
    chart = trend_chart(Trend(benchmark=BENCHMARK, points=(first, second), changes=(), outliers=(1,)))
    assert [(each.name, points(each)) for each in chart.series] == [
        ("step_time", [(0, 1.0, 0.9, 1.1)]),
        ("far from its neighbours", [(1, 2.0)]),
    ]
    assert [points(each) for each in chart.references] == [[(0, 1.01), (1, 1.01)]]
    assert chart.x.labels == ("a1b2c3d (2026-10-02)", "2026-10-02 10:00")


@pytest.mark.parametrize(
    ("points", "low", "high", "cut"),
    [
        # Both values take 20: an interval widens that by 10 to either side. 6 % of what is shown are free around it.
        ((ChartPoint(0, 120, 115, 128), ChartPoint(1, 140)), 115 - 1.5, 140 + 1.5, False),
        ((ChartPoint(0, 120, 10, 900), ChartPoint(1, 140)), 110 - 2.4, 150 + 2.4, True),
        ((ChartPoint(0, 20), ChartPoint(1, 60)), 0, 63.6, False),  # 0 is near
        ((ChartPoint(0, 100),), 95, 105, False),
        ((ChartPoint(0, 0),), 0, 1, False),
        ((ChartPoint(0, -10), ChartPoint(1, 10)), -11.2, 11.2, False),
    ],
)
def test_an_axis_shows_all_values_and_no_interval_hides_them(
    points: tuple[ChartPoint, ...], low: float, high: float, *, cut: bool
) -> None:
    *ends, is_cut = view_of(made_chart(ChartSeries("one", points)))
    assert ends == pytest.approx([low, high])
    assert is_cut == cut


def test_a_thinned_chart_keeps_the_largest_values() -> None:
    (chart,) = charts("steps", make_document(CURVE[0]))
    whole = replace(chart, series=(numbered("launch 1", [1, 5, 2, 3, 7], first=1),), note="")
    assert thinned(whole, 5) == whole
    thin = thinned(whole, 3)
    assert (points(thin.series[0]), thin.note) == ([(2, 5), (4, 3), (5, 7)], "of every 2 points the largest is shown")


def test_values_that_are_not_finite_are_omitted() -> None:
    assert numbered("a", [1.0, None, float("nan"), 2.0]) == ChartSeries("a", (ChartPoint(0, 1.0), ChartPoint(3, 2.0)))


def test_every_chart_has_data() -> None:
    made = charts_of(make_document(*RUNS[30].results))
    assert all(each.points for chart in made for each in (*chart.series, *chart.references))
    assert charts_of(make_document()) == ()
