"""What real runs came to: how often each change was told for what it is, how long that took, how noisy rounds are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.quality.project import CHANGES, UNCHANGED
from benchmarks.quality.report import rate_text
from benchmarks.quality.runs import STORED_RUNS, SUITE, TOLD, Run, Runs
from pytest_ddpperf.metrics.table import CPU_TIME, STEP_TIME, TAIL
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import CONFIRMED
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.reports.terminal import render
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.units import format_count

NOISY = (STEP_TIME, TAIL, CPU_TIME)
FAR = 3  # standard deviations
WIDE = 20  # percentage points: such an interval tells little
RED = (Verdict.REGRESSED.value, Verdict.BROKEN.value)


def report(found: Runs) -> str:
    """All of it, as text."""
    runs = found.runs
    made = [one for run in runs if run.change != SUITE for one in run.by_length()]
    since = min(run.began for run in runs)
    parts = [f"{len(runs)} runs since {since} on {found.environment}, plugin's tree {found.code}"]
    for alike in sorted({_alike(run) for run in made}):
        parts += _parts_of([run for run in made if _alike(run) == alike])
    suites = [run for run in runs if run.change == SUITE]
    for alike in sorted({_alike(run) for run in suites}):
        of_one = [run for run in suites if _alike(run) == alike]
        parts += [render(suite_table(of_one)), *red_lines(of_one), *missed_lines(of_one)]
    return "\n\n".join(parts)


def _alike(run: Run) -> tuple[str, float, int]:
    """What tells runs apart that are not counted together: length, ``max_time`` (0 where none was given), load."""
    return run.length, run.max_time or 0.0, run.load


def _parts_of(runs: Sequence[Run]) -> list[str]:
    """All on runs of one length under the same terms."""
    first = runs[0]
    usual = first.max_time is None and not first.load
    parts = [render(changes_table(runs, first.length))] if usual else []
    parts.append(render(widths_table(runs)))
    same = [name for name, change in CHANGES.items() if change.expected is Verdict.UNCHANGED]
    for lines in (red_lines, missed_lines):
        for name in same:
            parts += lines([run for run in runs if run.change == name])
    noise = noise_table([run for run in runs if run.change == UNCHANGED])
    return [*parts, *([] if noise is None else [render(noise)])]


def _under(run: Run) -> str:
    """What a run was made under, where that is not the usual."""
    max_time = "" if run.max_time is None else f", max_time {run.max_time:g} s"
    return max_time + (f", beside {format_count(run.load, 'busy process')}" if run.load else "")


def widths_table(runs: Sequence[Run]) -> Table:
    """What became of each change, and how much the intervals tell, of runs of one length under the same terms."""
    made = {name: [run for run in runs if run.change == name] for name in CHANGES}
    return Table(
        headers=(
            *("change", "runs", "red", "incon-\nclusive", "un-\nchanged", "im-\nproved", "found\n(unchanged: red)"),
            *("changed\nby", "width of\ninterval", f"above\n{WIDE:g}", "meas-\nuring s", "run\ns"),
        ),
        rows=tuple(_width_row(name, of_one) for name, of_one in made.items() if of_one),
        title=(
            f"a step of {runs[0].length}{_under(runs[0])}; change of step_time, width of its\n"
            "95 % interval in percentage points, and seconds are medians"
        ),
        right=0,
    )


def _width_row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    results = [result for run in runs for result in run.results]
    verdicts = Counter(result["verdict"] for result in results)
    change = CHANGES[name]
    red = sum(verdicts[verdict] for verdict in RED)
    same = change.expected is Verdict.UNCHANGED
    told = Rate(red, len(results), _independent(name, len(results)))
    found = Rate(verdicts[change.expected.value], len(results), len(results))
    intervals = [ends for result in results if (ends := _ends(_metric(result, STEP_TIME))) is not None]
    widths = [100 * (high - low) for low, high in intervals]
    others = (Verdict.INCONCLUSIVE, Verdict.UNCHANGED, Verdict.IMPROVED)
    return (
        *(name, str(len(runs)), str(red), *(str(verdicts[verdict.value]) for verdict in others)),
        rate_text(told if same else found),
        _median(results, "change", "+.1%"),
        f"{statistics.median(widths):.1f}" if widths else NOTHING,
        f"{sum(width > WIDE for width in widths) / len(widths):.0%}" if widths else NOTHING,
        f"{statistics.median(result['seconds'] for result in results):.0f}",
        f"{statistics.median(run.seconds for run in runs):.0f}",
    )


def _ends(metric: Mapping[str, Any]) -> tuple[float, float] | None:
    """Those of the 95 % interval of a metric's change, of which JSON leaves out the infinite ones."""
    ends = metric.get("change_interval")
    if ends is None:
        return None
    return (
        -math.inf if ends["low"] is None else ends["low"],
        math.inf if ends["high"] is None else ends["high"],
    )


def _independent(name: str, results: int) -> int:
    """How many of these are independent at least: runs beside one baseline share its error."""
    change = CHANGES.get(name)
    return math.ceil(results / STORED_RUNS) if change is not None and change.against is None else results


def changes_table(runs: Sequence[Run], length: str) -> Table:
    """A row for each change that there are runs of, all of steps of one length."""
    made = {name: [run for run in runs if run.change == name] for name in CHANGES}
    return Table(
        headers=(
            *(
                "change",
                "runs",
                *(verdict.value for verdict in TOLD),
                "had a\nsuspect",
                "found",
                "step time\nchanged by",
            ),
            *("could\nhave seen", "measuring\ns", "whole run\ns", "found in how many runs by"),
        ),
        rows=tuple(_change_row(name, of_one) for name, of_one in made.items() if of_one),
        title=(
            f"a step of {length} against another commit, or a stored baseline; change, what could have been seen and "
            "seconds are medians"
        ),
    )


def _change_row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    results = [result for run in runs for result in run.results]
    verdicts = Counter(result["verdict"] for result in results)
    expected = CHANGES[name].expected
    same = expected is Verdict.UNCHANGED
    return (
        name,
        str(len(runs)),
        *(str(verdicts[verdict.value]) for verdict in TOLD),
        str(sum(any(CONFIRMED in finding for finding in result["findings"]) for result in results)),
        NOTHING if same else rate_text(Rate(verdicts[expected.value], len(results), len(results))),
        _median(results, "change", "+.1%"),
        _median(results, "mde", ".1%"),
        f"{statistics.median(result['seconds'] for result in results):.0f}",
        f"{statistics.median(run.seconds for run in runs):.0f}",
        "" if same else _metrics_with(expected, results),
    )


def _median(results: Iterable[Mapping[str, Any]], figure: str, form: str) -> str:
    """Of a figure of the step time, over the results that have it."""
    found = [one for result in results if (one := _metric(result, STEP_TIME).get(figure)) is not None]
    return format(statistics.median(found), form) if found else NOTHING


def _metrics_with(verdict: Verdict, results: Iterable[Mapping[str, Any]]) -> str:
    """The gated metrics with this verdict, and in how many results they have it."""
    found = Counter(
        name
        for result in results
        for name, metric in result["metrics"].items()
        if metric["gated"] and metric["verdict"] == verdict.value
    )
    return ", ".join(f"{name} {times}" for name, times in found.most_common())


def suite_table(runs: Sequence[Run]) -> Table:
    """What became of the example suite against its own commit, all under the same terms."""
    results = [result for run in runs for result in run.results]
    verdicts = Counter(result["verdict"] for result in results)
    red = sum(any(result["verdict"] in RED for result in run.results) for run in runs)
    other = len(results) - sum(verdicts[verdict.value] for verdict in TOLD)
    row = (
        *(str(len(runs)), f"{len(results) / len(runs):g}", *(str(verdicts[verdict.value]) for verdict in TOLD)),
        *(str(other), rate_text(Rate(red, len(runs), len(runs)))),
        f"{statistics.median(run.seconds for run in runs):.0f}",
    )
    return Table(
        headers=("runs", "benchmarks\nof a run", *(verdict.value for verdict in TOLD), "other", "red runs", "run\ns"),
        rows=(row,),
        title=f"{SUITE} against its own commit{_under(runs[0])}; verdicts are those of all benchmarks of all runs",
        left=0,
        right=0,
    )


def red_lines(runs: Sequence[Run]) -> list[str]:
    """How often unchanged code was red, and each time that it was."""
    results = [(run, result) for run in runs for result in run.results]
    if not results:
        return []
    red = [(run, result) for run, result in results if result["verdict"] in RED]
    rate = Rate(len(red), len(results), _independent(runs[0].change, len(results)))
    lines = [f"unchanged code was red in {rate_text(rate)} of its benchmarks{_beside(runs[0])}"]
    for run, result in red:
        metrics = result["metrics"].items()
        said = [_words(name, one) for name, one in metrics if one["gated"] and one["verdict"] in RED]
        lines.append(f"  {run.began} {result['test']}: {', '.join(said) or result['findings']}")
    return ["\n".join(lines)]


def missed_lines(runs: Sequence[Run]) -> list[str]:
    """How often the interval that is printed beside a change leaves out what it is: none."""
    told = []
    for name in NOISY:
        metrics = (_metric(result, name) for run in runs for result in run.results)
        intervals = [ends for one in metrics if (ends := _ends(one)) is not None]
        missed = sum(not low <= 0 <= high for low, high in intervals)
        if intervals:
            rate = Rate(missed, len(intervals), _independent(runs[0].change, len(intervals)))
            told.append(f"{name} in {rate_text(rate)}")
    if not told:
        return []
    which = _beside(runs[0])
    return [f"the 95 % interval of what unchanged code changed{which} leaves out 0: {', '.join(told)}"]


def _beside(run: Run) -> str:
    change = CHANGES.get(run.change)
    return " beside a stored baseline" if change is not None and change.against is None else ""


def _words(name: str, metric: Mapping[str, Any]) -> str:
    """A metric that got worse: by how much, or what its note says."""
    ends = metric["change_interval"]
    if metric["scale"] != "ratio" or ends is None:
        return f"{name} {metric['note']} ({metric['baseline']:g} -> {metric['value']:g})"
    return f"{name} {metric['change']:+.1%} [{ends['low']:+.1%} .. {ends['high']:+.1%}]"


def noise_table(runs: Sequence[Run]) -> Table | None:
    """How far both sides of a round of unchanged code lie apart; None where nothing tells.

    All of it about no change, which is what there is.
    """
    rows = []
    for metric in NOISY:
        series = [found for run in runs for result in run.results if len(found := rounds_of(result, metric)) > 1]
        if series:
            rows.append(_noise_row(metric, series))
    if not rows:
        return None
    return Table(
        headers=(
            *("metric", "rounds", "apart by\n(root mean square)", f"beyond {FAR} times that\n(normal: 0.3 %)"),
            "correlation\nof neighbours",
        ),
        rows=tuple(rows),
        title="both sides of a round of unchanged code",
        right=0,
    )


def _noise_row(metric: str, series: Sequence[Sequence[float]]) -> tuple[str, ...]:
    every = [one for of_run in series for one in of_run]
    square = math.fsum(one * one for one in every) / len(every)
    neighbours = [a * b for of_run in series for a, b in pairwise(of_run)]
    error = 1 / math.sqrt(len(neighbours))  # of a correlation, where there is none
    beyond = sum(abs(one) > FAR * math.sqrt(square) for one in every)
    return (
        metric,
        str(len(every)),
        f"{math.sqrt(square):.1%}",
        rate_text(Rate(beyond, len(every), len(every))),
        f"{math.fsum(neighbours) / len(neighbours) / square:+.2f} +- {error:.2f}" if square else NOTHING,
    )


def rounds_of(result: Mapping[str, Any], metric: str) -> list[float]:
    """By what one side of each round exceeds the other, as a logarithm; nothing where either was not measured."""
    found = _metric(result, metric)
    new, base = found.get("samples", []), found.get("baseline_samples", [])
    if len(new) != len(base) or not all((*new, *base)):
        return []
    return [math.log(one / other) for one, other in zip(new, base, strict=True)]


def _metric(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metric: Mapping[str, Any] = result["metrics"].get(name, {})
    return metric
