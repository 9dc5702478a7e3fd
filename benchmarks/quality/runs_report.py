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
from pytest_ddpperf.measure import CONFIRMED
from pytest_ddpperf.metrics import STEP_TIME
from pytest_ddpperf.metrics.table import CPU_TIME, TAIL
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.reports.terminal import render
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.verdict import Verdict

NOISY = (STEP_TIME, TAIL, CPU_TIME)
FAR = 3  # standard deviations
RED = (Verdict.REGRESSED.value, Verdict.BROKEN.value)


def report(found: Runs) -> str:
    """All of it, as text."""
    runs = found.runs
    since = min(run.began for run in runs)
    parts = [f"{len(runs)} runs since {since} on {found.environment}, plugin's tree {found.code}"]
    for length in sorted({run.length for run in runs if run.change != SUITE}):
        of_length = [run for run in runs if run.length == length]
        parts.append(render(changes_table(of_length, length)))
        for name, change in CHANGES.items():
            if change.expected is Verdict.UNCHANGED:
                parts += red_lines([run for run in of_length if run.change == name])
        parts += missed_lines([run for run in of_length if run.change == UNCHANGED])
        noise = noise_table([run for run in of_length if run.change == UNCHANGED])
        parts += [] if noise is None else [render(noise)]
    suites = [run for run in runs if run.change == SUITE]
    if suites:
        parts += [render(suite_table(suites)), *red_lines(suites), *missed_lines(suites)]
    return "\n\n".join(parts)


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
    """What became of the example suite against its own commit."""
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
        title=f"{SUITE} against its own commit; verdicts are those of all benchmarks of all runs",
        left=0,
        right=0,
    )


def red_lines(runs: Sequence[Run]) -> list[str]:
    """How often unchanged code was red, and each time that it was."""
    results = [(run, result) for run in runs for result in run.results]
    if not results:
        return []
    red = [(run, result) for run, result in results if result["verdict"] in RED]
    change = CHANGES.get(runs[0].change)
    # Runs beside one baseline share its error.
    sharing = STORED_RUNS if change is not None and change.against is None else 1
    rate = Rate(len(red), len(results), math.ceil(len(results) / sharing))
    which = "" if change is None or sharing == 1 else " beside a stored baseline"
    lines = [f"unchanged code was red in {rate_text(rate)} of its benchmarks{which}"]
    for run, result in red:
        metrics = result["metrics"].items()
        said = [_words(name, one) for name, one in metrics if one["gated"] and one["verdict"] in RED]
        lines.append(f"  {run.began} {result['test']}: {', '.join(said) or result['findings']}")
    return ["\n".join(lines)]


def missed_lines(runs: Sequence[Run]) -> list[str]:
    """How often the interval that is printed beside a change leaves out what it is: none."""
    told = []
    for name in NOISY:
        metrics = (result["metrics"].get(name) for run in runs for result in run.results)
        intervals = [
            one["change_interval"] for one in metrics if one is not None and one["change_interval"] is not None
        ]
        missed = sum(not one["low"] <= 0 <= one["high"] for one in intervals)
        if intervals:
            told.append(f"{name} in {rate_text(Rate(missed, len(intervals), len(intervals)))}")
    return [f"the 95 % interval of what unchanged code changed leaves out 0: {', '.join(told)}"] if told else []


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
