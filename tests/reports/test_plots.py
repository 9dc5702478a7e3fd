"""Charts as pictures: what matplotlib is given, and which files there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports import plots
from pytest_ddpperf.reports.charts.chart import CUT, Axis, Chart, ChartPoint, ChartSeries
from pytest_ddpperf.reports.plots import figure_of, write_plots
from tests.reports.formats.samples import HOSTILE
from tests.reports.golden_runs import RUNS
from tests.reports.made import made_chart, make_document

PNG = b"\x89PNG"
NOW = ChartSeries("this run", (ChartPoint(0, 0.02, 0.018, 0.024), ChartPoint(1, 0.03)))
LINES = made_chart(
    NOW,
    ChartSeries("baseline", (ChartPoint(0, 0.021), ChartPoint(1, 0.031))),
    title="step time",
    subject="t.py::test_a",
    x=Axis(name="ranks", labels=("two", "four")),
    y=Axis(name="step time", unit="s"),
    references=(ChartSeries("typical", tuple(ChartPoint(x, 0.025, 0.02, 0.03) for x in (0, 1)), of=NOW.name),),
    note="made up",
)


def axes_of(chart: Chart) -> Any:
    (axes,) = figure_of(chart).axes
    return axes


def test_values_are_drawn_in_a_unit_that_reads_well_with_their_intervals() -> None:
    axes = axes_of(LINES)
    now = axes.containers[0]
    assert now[0].get_ydata().tolist() == [20.0, 30.0]
    (bars,) = now[2]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[18.0, 24.0], [30.0, 30.0]]
    assert axes.get_ylabel() == "step time (ms)"
    assert axes.get_xlabel() == "ranks"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["two", "four"]
    assert axes.get_title(loc="left").splitlines() == ["step time", "t.py::test_a", "made up; bars and bands: 95 % CI"]


def test_a_reference_has_the_colour_of_its_series_and_a_band() -> None:
    axes = axes_of(LINES)
    assert axes.lines[-1].get_color() == axes.containers[0][0].get_color()
    (band,) = [each for each in axes.collections if each.get_alpha() == 0.15]
    assert (band.get_datalim(axes.transData).y0, band.get_datalim(axes.transData).y1) == (20.0, 30.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["typical", "this run", "baseline"]


def test_points_that_share_a_place_stand_side_by_side() -> None:
    first, second = (each[0].get_xdata().tolist() for each in axes_of(replace(LINES, style="points")).containers)
    assert first == [-0.06, 0.94]
    assert second == [0.06, 1.06]


def test_an_interval_that_is_far_wider_than_all_values_does_not_hide_them() -> None:
    wide = replace(LINES, series=(ChartSeries("this run", (ChartPoint(0, 0.02, 0.01, 9.0), ChartPoint(1, 0.04))),))
    axes = axes_of(replace(wide, references=()))
    assert axes.get_ylim() == pytest.approx((0, 53))  # as of view_of
    assert axes.get_title(loc="left").endswith(CUT)
    assert CUT not in axes_of(LINES).get_title(loc="left")


def test_numbers_of_ranks_are_the_ticks_of_their_axis() -> None:
    sizes = ChartSeries("this run", (ChartPoint(1, 0.02), ChartPoint(25, 0.03)))
    axes = axes_of(made_chart(sizes, x=Axis(name="bucket_cap_mb", log=True)))
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "25"]


def test_each_chart_has_a_file(tmp_path: Path) -> None:
    drawn = write_plots(make_document(*RUNS[7].results[:2]), tmp_path / "deep" / "pictures", "--plots")
    assert {file.parent for file in drawn} == {tmp_path / "deep" / "pictures"}
    assert {file.name for file in drawn} == {
        "throughput.perf.test_strategies.test_step-on-2-ranks.png",
        *(f"steps.perf.test_strategies.test_step-{name}-{name}-w2.png" for name in ("ddp", "flat")),
    }
    assert all(file.read_bytes().startswith(PNG) for file in drawn)


def test_charts_of_one_kind_and_subject_have_numbered_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "charts_of", lambda _: [replace(LINES, title=title) for title in ("weak", "strong")])
    drawn = write_plots(make_document(), tmp_path, "--plots")
    assert [file.name for file in drawn] == [f"made_up.t.test_a{number}.png" for number in ("", ".2")]
    assert drawn[0].read_bytes() != drawn[1].read_bytes()


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """A dollar sign begins no formula, and no name leaves the folder."""

    def renamed(data: Any) -> None:
        data["results"][0] |= {"test": f"t.py::test_c[../$x^{HOSTILE}\u4e2d]", "name": "$\\frac{"}

    (drawn,) = write_plots(make_document(RUNS[7].results[0], change=renamed), tmp_path, "--plots")
    assert drawn.parent == tmp_path
    assert drawn.read_bytes().startswith(PNG)


def test_matplotlib_settings_of_the_user_do_not_change_the_plots(tmp_path: Path) -> None:
    """Formulas need a program that may be absent, and colours and sizes are chosen for each other."""
    made = make_document(RUNS[7].results[0])
    (plain,) = write_plots(made, tmp_path / "plain", "--plots")
    mine: dict[Any, Any] = {"text.usetex": True, "figure.facecolor": "black", "font.size": 30.0}
    with mpl.rc_context(mine):
        (drawn,) = write_plots(made, tmp_path / "mine", "--plots")
        assert {name: mpl.rcParams[name] for name in mine} == mine
    assert drawn.read_bytes() == plain.read_bytes()


def test_a_picture_that_fails_leaves_the_earlier_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_document(RUNS[7].results[0])
    (drawn,) = write_plots(made, tmp_path, "--plots")
    earlier = drawn.read_bytes()

    def cut_off(_: Figure, file: Any, **__: Any) -> None:
        (file.write_bytes if isinstance(file, Path) else file.write)(PNG)
        raise MemoryError

    monkeypatch.setattr(Figure, "savefig", cut_off)
    with pytest.raises(MemoryError):
        write_plots(made, tmp_path, "--plots")
    assert drawn.read_bytes() == earlier
    assert [file.name for file in tmp_path.iterdir()] == [drawn.name]


def test_plots_that_cannot_be_drawn_or_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_document(RUNS[7].results[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"--plots: .*file cannot be written: this is a file; make this path"):
        write_plots(made, tmp_path / "file", "--plots")
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(SettingError, match=r"--plots needs matplotlib.* pip install matplotlib"):
        write_plots(made, tmp_path, "--plots")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
