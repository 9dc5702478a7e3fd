"""What real runs came to: how often each change was told for what it is, how long that took, how noisy rounds are."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from benchmarks.quality.project import CHANGES, SUITE
from benchmarks.quality.rates import NOTHING, rate_text
from benchmarks.quality.runs import TOLD, Run, Runs
from benchmarks.quality.steps import UNCHANGED
from benchmarks.quality.verdicts import CONFIRMED
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.units import format_count

NOISY = (STEP_TIME, "cpu_time")
FAR = 3  # standard deviations
WIDE = 20  # percentage points: such an interval tells little
RED = ("regressed", "broken")


def report(found: Runs) -> str:
    """All of it, as text: runs of one length under the same terms together, then the example suite."""
    since = min(run.began for run in found.runs)
    parts = [f"{len(found.runs)} runs since {since} on {found.environment}, plugin's tree {found.code}"]
    for runs in _alike([run for run in found.runs if run.change != SUITE]):
        parts += _parts_of(runs)
    for runs in _alike([run for run in found.runs if run.change == SUITE]):
        parts += [render(suite_table(runs)), *red_lines(runs), *missed_lines(runs)]
    return "\n\n".join(parts)


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that are counted together, in groups."""

    def terms(run: Run) -> tuple[str, float, int, str]:
        return run.length, run.max_time or 0.0, run.load, run.budget

    return [list(same) for _, same in groupby(sorted(runs, key=terms), terms)]


def _parts_of(runs: Sequence[Run]) -> list[str]:
    usual = runs[0].max_time is None and not runs[0].load
    parts = [render(changes_table(runs))] if usual else []
    parts.append(render(widths_table(runs)))
    for lines in (red_lines, missed_lines):
        for name, change in CHANGES.items():
            if change.expected == UNCHANGED:
                parts += lines([run for run in runs if run.change == name])
    noise = noise_table([run for run in runs if run.change == UNCHANGED])
    return [*parts, *([] if noise is None else [render(noise)])]


def _under(runs: Sequence[Run]) -> str:
    """What runs were made under, where that is not the usual."""
    run = runs[0]
    terms = (
        "" if run.max_time is None else f"max_time {run.max_time:g} s",
        f"budget {run.budget}" if run.budget else "",
        f"beside {format_count(run.load, 'busy process')}" if run.load else "",
    )
    return "".join(f", {term}" for term in terms if term)


def _cells(name: str, runs: Sequence[Run]) -> dict[str, str]:
    """All that tables say of the runs of one change, by the header of the column."""
    results = [result for run in runs for result in run.results]
    number, verdicts = len(results), Counter(result["verdict"] for result in results)
    expected = CHANGES[name].expected if name in CHANGES else UNCHANGED
    same, found = expected == UNCHANGED, rate_text(Rate(verdicts[expected], number, number))
    red = Rate(sum(verdicts[verdict] for verdict in RED), number, number)
    steps = [_metric(result, STEP_TIME) for result in results]
    widths = [100 * (ends[1] - ends[0]) for step in steps if (ends := _ends(step)) is not None]
    change = _median("+.1%", [step.get("change") for step in steps])
    measuring = _median(".0f", [result["seconds"] for result in results])
    whole = _median(".0f", [run.seconds for run in runs])
    of_verdicts = {verdict: str(verdicts[verdict]) for verdict in TOLD}
    return {
        "change": name,
        "runs": str(len(runs)),
        "benchmarks\nof a run": f"{number / len(runs):g}",
        **of_verdicts,
        "other": str(number - sum(verdicts[verdict] for verdict in TOLD)),
        "red": str(red.found),
        "incon-\nclusive": of_verdicts["inconclusive"],
        "ok": of_verdicts["ok"],
        "un-\nchanged": of_verdicts["unchanged"],
        "im-\nproved": of_verdicts["improved"],
        "had a\nsuspect": str(sum(any(CONFIRMED in finding for finding in result["findings"]) for result in results)),
        "found": NOTHING if same else found,
        "found\n(unchanged: red)": rate_text(red) if same else found,
        "step time\nchanged by": change,
        "changed\nby": change,
        "at\nmost": _median("+.1%", [step.get("bound") for step in steps]),
        "could\nhave seen": _median(".1%", [step.get("mde") for step in steps]),
        "width of\ninterval": _median(".1f", widths),
        f"above\n{WIDE:g}": f"{sum(width > WIDE for width in widths) / len(widths):.0%}" if widths else NOTHING,
        "measuring\ns": measuring,
        "meas-\nuring s": measuring,
        "whole run\ns": whole,
        "run\ns": whole,
        "found in how many runs by": "" if same else _metrics_with(expected, results),
    }


def _median(form: str, figures: Iterable[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return format(statistics.median(known), form) if known else NOTHING


def _metrics_with(verdict: str, results: Iterable[Mapping[str, Any]]) -> str:
    """The gated metrics with this verdict, and in how many results they have it."""
    found = Counter(
        name
        for result in results
        for name, metric in result["metrics"].items()
        if metric["gated"] and metric["verdict"] == verdict
    )
    return ", ".join(f"{name} {times}" for name, times in found.most_common())


def _rows(runs: Sequence[Run], headers: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """A row for each change that there are runs of."""
    made = {name: [run for run in runs if run.change == name] for name in CHANGES}
    rows = [_cells(name, same) for name, same in made.items() if same]
    return tuple(tuple(row[header] for header in headers) for row in rows)


def changes_table(runs: Sequence[Run]) -> Table:
    """What became of each change, of runs of one length."""
    headers = (
        *("change", "runs", *TOLD, "had a\nsuspect", "found", "step time\nchanged by"),
        *("could\nhave seen", "measuring\ns", "whole run\ns", "found in how many runs by"),
    )
    title = (
        f"a step of {runs[0].length} against another commit; change, what could have been seen and seconds are medians"
    )
    return Table(headers, _rows(runs, headers), title=title)


def widths_table(runs: Sequence[Run]) -> Table:
    """What became of each change, and how much the intervals tell, of runs of one length under the same terms."""
    headers = (
        *("change", "runs", "red", "incon-\nclusive", "ok", "un-\nchanged", "im-\nproved", "found\n(unchanged: red)"),
        *("changed\nby", "at\nmost", "width of\ninterval", f"above\n{WIDE:g}", "meas-\nuring s", "run\ns"),
    )
    title = (
        f"a step of {runs[0].length}{_under(runs)}; change of step_time, the slowdown\n"
        "that is ruled out, width of its 95 % interval in percentage points, and seconds are medians"
    )
    return Table(headers, _rows(runs, headers), title=title, right=0)


def suite_table(runs: Sequence[Run]) -> Table:
    """What became of the example suite against its own commit, all under the same terms."""
    red = sum(any(result["verdict"] in RED for result in run.results) for run in runs)
    headers = ("runs", "benchmarks\nof a run", *TOLD, "other", "red runs", "at\nmost", "run\ns")
    cells = {**_cells(SUITE, runs), "red runs": rate_text(Rate(red, len(runs), len(runs)))}
    title = f"{SUITE} against its own commit{_under(runs)}; verdicts are those of all benchmarks of all runs"
    return Table(headers, (tuple(cells[header] for header in headers),), title=title, left=0, right=0)


def red_lines(runs: Sequence[Run]) -> list[str]:
    """How often unchanged code was red, and each time that it was."""
    results = [(run, result) for run in runs for result in run.results]
    if not results:
        return []
    red = [(run, result) for run, result in results if result["verdict"] in RED]
    rate = Rate(len(red), len(results), len(results))
    lines = [f"unchanged code was red in {rate_text(rate)} of its benchmarks"]
    for run, result in red:
        metrics = result["metrics"].items()
        said = [_words(name, metric) for name, metric in metrics if metric["gated"] and metric["verdict"] in RED]
        lines.append(f"  {run.began} {result['test']}: {', '.join(said) or result['findings']}")
    return ["\n".join(lines)]


def _words(name: str, metric: Mapping[str, Any]) -> str:
    """A metric that got worse: by how much, or what its note says."""
    ends = metric["change_interval"]
    if metric["scale"] != "ratio" or ends is None:
        return f"{name} {metric['note']} ({metric['baseline']:g} -> {metric['value']:g})"
    return f"{name} {metric['change']:+.1%} [{ends['low']:+.1%} .. {ends['high']:+.1%}]"


def missed_lines(runs: Sequence[Run]) -> list[str]:
    """How often the interval that is printed beside a change leaves out what it is: none."""
    told = []
    for metric in NOISY:
        ends = [_ends(_metric(result, metric)) for run in runs for result in run.results]
        known = [interval for interval in ends if interval is not None]
        missed = sum(not low <= 0 <= high for low, high in known)
        if known:
            rate = Rate(missed, len(known), len(known))
            told.append(f"{metric} in {rate_text(rate)}")
    if not told:
        return []
    return [f"the 95 % interval of what unchanged code changed leaves out 0: {', '.join(told)}"]


def noise_table(runs: Sequence[Run]) -> Table | None:
    """How far both sides of a round of unchanged code lie apart, about no change; None where nothing tells."""
    rows = []
    for metric in NOISY:
        series = [rounds_of(result, metric) for run in runs for result in run.results]
        if any(len(rounds) > 1 for rounds in series):
            rows.append(_noise_row(metric, [rounds for rounds in series if len(rounds) > 1]))
    apart, beyond = "apart by\n(root mean square)", f"beyond {FAR} times that\n(normal: 0.3 %)"
    headers = ("metric", "rounds", apart, beyond, "correlation\nof neighbours")
    title = "both sides of a round of unchanged code"
    return Table(headers=headers, rows=tuple(rows), title=title, right=0) if rows else None


def _noise_row(metric: str, series: Iterable[Sequence[float]]) -> tuple[str, ...]:
    every = [difference for rounds in series for difference in rounds]
    square = math.fsum(difference**2 for difference in every) / len(every)
    neighbours = [first * second for rounds in series for first, second in pairwise(rounds)]
    error = 1 / math.sqrt(len(neighbours))  # of a correlation, where there is none
    beyond = sum(abs(difference) > FAR * math.sqrt(square) for difference in every)
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
    return [math.log(mine / theirs) for mine, theirs in zip(new, base, strict=True)]


def _metric(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metric: Mapping[str, Any] = result["metrics"].get(name, {})
    return metric


def _ends(metric: Mapping[str, Any]) -> tuple[float, float] | None:
    """Those of the 95 % interval of a metric's change, of which JSON leaves out the infinite ones."""
    ends = metric.get("change_interval")
    if ends is None:
        return None
    return -math.inf if ends["low"] is None else ends["low"], math.inf if ends["high"] is None else ends["high"]
