"""Conclusions from benchmarks that were measured side by side: the best variants, and how training scales."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verbs import SideBySide
from pytest_ddpperf.reports.diagnosis import CAUSES
from pytest_ddpperf.reports.lines import curve_of
from pytest_ddpperf.reports.phrases import find, first_of
from pytest_ddpperf.stats.intervals import possible
from pytest_ddpperf.units import format_count, format_percent, format_values

_MOST = 5  # comparisons, and curves, in the summary
_LOSES = 0.05  # share of the ideal scaling: a smaller loss is not explained
_TOLD = 0.05  # share of the loss: a smaller part is not shown
_FEW = 2  # unbeaten variants that are named, at most
LOST_TO = {**CAUSES, "computing": "slower computing", "cores": "shared cores", "unclear": "an unknown cause"}


def what_pays(results: Sequence[Result]) -> list[str]:
    """Returns a line for each comparison: the fastest and smallest variants, several if intervals overlap."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.measurement.over is not None:
            groups.setdefault((result.test, result.measurement.over), []).append(result)
    lines = []
    for (test, over), others in groups.items():
        if len({one.name for one in others}) < len(others):
            continue  # the test compares several times
        every = [*(one for one in results if (one.test, one.name) == (test, over)), *others]
        measured = tuple(one.measurement for one in every)
        compared = SideBySide(over=over, names=tuple(one.name for one in every), measurements=measured)
        bests = {"fastest": compared.fastest, "least memory": compared.leanest}
        known = len(compared.compared)
        told = [f"{word} {' or '.join(names)}" for word, names in bests.items() if 0 < len(names) < known]
        if len(told) > 1 and len(compared.unbeaten) <= _FEW < known:
            told.append(f"no variant is faster and needs less memory than {' or '.join(compared.unbeaten)}")
        if told:
            lines.append(f"{test.partition('::')[2]}: {'; '.join(told)}")
    return first_of(lines, _MOST)


def how_it_scales(results: Sequence[Result]) -> list[str]:
    """Returns lines on each scaling curve: each point's quality, serial fraction, and the useful number of ranks."""
    curves: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.measurement.mode is not None:
            curves.setdefault((result.test, curve_of(result.measurement.name)), []).append(result)
    lines = [
        line
        for (test, _), points in curves.items()
        for line in (_scaling_line(test, points), _loss_line(test, points))
        if line
    ]
    return lines[: 2 * _MOST]


def _scaling_line(test: str, points: Sequence[Result]) -> str:
    """Returns the line on one curve; empty if no point after the first has separate cores or GPUs for its ranks."""
    from pytest_ddpperf.analysis.scaling import ScalingPoint, fit_law, status, stops_paying

    base, *others = sorted((point.measurement for point in points), key=lambda point: point.world_size)
    scaled = [point for point in others if {"speedup", "scaling_efficiency"} <= {one.metric for one in point.series}]
    own = [point for point in scaled if not point.environment.oversubscribed]
    if not own:
        return ""
    ranks = base.world_size
    fit = fit_law(
        [ScalingPoint(ranks=point.world_size / ranks, speedups=point["speedup"].samples) for point in own],
        "amdahl" if base.mode == "strong" else "gustafson",
    )
    words = ((status(max(0.0, p["scaling_efficiency"].value), p["speedup"].value), p.world_size) for p in own)
    told = ", ".join(
        f"{word} with {' and '.join(str(size) for _, size in alike)}" for word, alike in groupby(words, itemgetter(0))
    )
    pays = stops_paying(fit, ranks)
    end = "" if pays is None else f"; from {format_count(pays, 'rank')} on, one more rank adds under half a rank's work"
    left = [str(point.world_size) for point in others if point.environment.oversubscribed]
    out = f"; the fit omits {' and '.join(left)} ranks, which share cores or GPUs" if left else ""
    interval = possible(fit.interval, 0.0, 1.0)
    ends = f" [{100 * interval.low:.1f} .. {100 * interval.high:.1f}]" if interval is not None else ""
    serial = f"{format_percent(min(max(0.0, fit.serial), 1.0))}{ends} ({fit.law.capitalize()})"
    return f"{test.partition('::')[2]}: {told} ranks; serial fraction {serial}{end}{out}"


def _loss_line(test: str, points: Sequence[Result]) -> str:
    """Returns the line on the seconds that the largest group loses by each cause; empty if it loses little."""
    from pytest_ddpperf.analysis.losses import scaling_loss

    first, *others = sorted(points, key=lambda point: point.measurement.world_size)
    scaled: list[tuple[Result, Comparison | None]] = [
        (point, found) for point in others if (found := find(point, "scaling_efficiency")) is not None
    ]
    last, found = (scaled or [(first, None)])[-1]
    known = first.step.diagnosis, last.step.diagnosis
    if found is None or found.series.value > 1 - _LOSES or known[0] is None or known[1] is None:
        return ""
    lost = scaling_loss(known[0], known[1], found.series.value)
    told = [(LOST_TO[kind], seconds) for kind, seconds in lost.kinds.items() if seconds > _TOLD * lost.seconds]
    whole, step, *each = format_values([lost.seconds, lost.step, *(seconds for _, seconds in told)], "s")
    causes = ", ".join(f"{words} {text}" for (words, _), text in zip(told, each, strict=True))
    return f"{test.partition('::')[2]}: {last.measurement.world_size} ranks lose {whole} of a step of {step}: {causes}"
