"""Benchmarks as tables: all metrics of each with remarks, and in brief."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_ddpperf.instruments.memory import LABELS
from pytest_ddpperf.judge.detection import UNPROVEN
from pytest_ddpperf.metrics.table import RESIDENT
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.compared import how_it_scales, what_pays
from pytest_ddpperf.reports.count_changes import counts_text, counts_words
from pytest_ddpperf.reports.lines import INDENT
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.overall import FAILED, PASSED, kind_of, kinds_text, ruled_out
from pytest_ddpperf.reports.remarks import red_text
from pytest_ddpperf.reports.table import NOTHING, Table, table_of
from pytest_ddpperf.units import (
    Scale,
    format_count,
    format_number,
    format_percent,
    ordinal,
    scale,
    signed_percent,
    span,
)

_BOUND_MEANING = f"the step is slower by no more than this, one-sided, with {format_percent(1 - UNPROVEN)} confidence"
_VERDICTS = {
    Verdict.INCONCLUSIVE: "a slowdown beyond the resolution (--ddpperf-must-detect) may hide",
    Verdict.DOES_NOT_FIT: "a rank ran out of memory; the others were measured without it",
}
_STORED_TIMES = "stored times"
_MOST = 30  # benchmarks that are not red and have a row of their own
_FAILED_AS = {FAILED: "failed ({})"}  # by another rule than its verdict
_Column: TypeAlias = "tuple[str, Callable[[Result], str]]"  # header and cell
_MetricColumn: TypeAlias = "tuple[str, str, Callable[[Comparison, Scale], str]]"  # header, metric and cell


def summary_table(results: Sequence[Result], accepted: Collection[str] = (), *, here: str = "") -> Table:
    """``benchmark_table`` with what pays, how benchmarks scale, and what its words mean."""
    results = worst_first(results)
    table = benchmark_table(results, accepted)
    return replace(
        table,
        notes=(*what_pays(results), *how_it_scales(results)),
        legend=_legend(results, here, {header.partition("\n")[0] for header in table.headers[1:]}),
    )


def benchmark_table(results: Sequence[Result], accepted: Collection[str] = ()) -> Table:
    """One row for each benchmark: what was measured, how it changed, the verdict.

    Columns that no benchmark fills (throughput without a number of samples, scaling efficiency) are omitted.
    ``accepted``: the tests whose results became the baseline.
    """
    names = dict(zip(map(id, results), names_of(results), strict=True))
    sizes = dict.fromkeys(result.measurement.world_size for result in results)
    columns: list[_Column] = [
        ("benchmark", lambda result: names[id(result)]),
        *([("ranks", lambda result: str(result.measurement.world_size))] if len(sizes) > 1 else []),
        *(_metric_column(*column, results) for column in _metric_columns(results)),
        ("counts", counts_text),
        ("verdict", lambda result: _word(result, stored=result.test in accepted)),
    ]
    machines = dict.fromkeys(phrases.environment_text(result.measurement.environment) for result in results)
    ranks = f", {format_count(results[0].measurement.world_size, 'rank')}" if len(sizes) == 1 else ""
    return table_of(results, dict(columns), every=False, title="; ".join(machines) + ranks)


def worst_first(results: Sequence[Result]) -> list[Result]:
    """The benchmarks of tests that failed, then by the worst verdict of their tests, else in their order."""
    worst: dict[str, int] = {}
    for result in results:
        worst[result.test] = max(result.severity, worst.get(result.test, 0))
    return sorted(results, key=lambda result: -worst[result.test])


def _metric_columns(results: Sequence[Result]) -> list[_MetricColumn]:
    """The columns that some benchmark fills: those of times, or of counts where nothing was timed."""
    steps = _filled(results, "step_time")
    speedups = _filled(results, "speedup") if any(result.measurement.over for result in results) else []
    timed: list[_MetricColumn] = [
        (_header("step time", steps), "step_time", _value_with_interval),
        ("throughput\n{unit}", "throughput" if _filled(results, "throughput") else "token_throughput", _value),
        ("memory\n{unit}", "peak_allocated" if _filled(results, "peak_allocated") else RESIDENT, _value),
        ("eff.\n{unit}", "scaling_efficiency", _value),
        *([(_header("speedup", speedups), "speedup", _value_with_interval)] if speedups else []),
        (phrases.interval_header("change\n%", (step.change_interval for step in steps)), "step_time", _change),
        ("at most\n%", "step_time", lambda step, _: phrases.bound_text(step).removesuffix(" %")),
    ]
    counted: list[_MetricColumn] = [
        # A mean over several steps need not be whole.
        ("calls\n{unit}", "collective_calls", lambda calls, _: format_number(calls.series.value)),
        ("sent\n{unit}", "collective_send_bytes", _value),
        ("FLOPs\n{unit}", "flops", _value),
        ("peak\n{unit}", "peak_tensor_bytes", _value),
    ]
    columns = timed if _filled(results, "step_time") else counted
    return [(header, metric, cell) for header, metric, cell in columns if _filled(results, metric)]


def _header(word: str, comparisons: Sequence[Comparison]) -> str:
    return phrases.interval_header(f"{word}\n{{unit}}", (comparison.series.interval for comparison in comparisons))


def _filled(results: Sequence[Result], metric: str) -> list[Comparison]:
    return [comparison for result in results if (comparison := phrases.find(result, metric)) is not None]


def _metric_column(
    header: str, metric: str, cell: Callable[[Comparison, Scale], str], results: Sequence[Result]
) -> _Column:
    """A column in one unit, which fits all of its values."""
    filled = _filled(results, metric)
    common = scale([comparison.series.value for comparison in filled], filled[0].series.unit)

    def text(result: Result) -> str:
        comparison = phrases.find(result, metric)
        return NOTHING if comparison is None else cell(comparison, common)

    return header.format(unit=common.unit).replace("\n ", "\n").rstrip(), text


def _value(comparison: Comparison, common: Scale) -> str:
    return common.number(comparison.series.value)


def _value_with_interval(comparison: Comparison, common: Scale) -> str:
    series = comparison.series
    noisy = series.interval is None and len(series.samples) > 1
    return phrases.with_interval(common.number, series.value, series.interval, noisy=noisy)


def _change(step_time: Comparison, _common: Scale) -> str:
    if step_time.change is None or not phrases.judges(step_time):
        return NOTHING
    ends = step_time.change_interval
    return phrases.with_interval(
        signed_percent, step_time.change, ends, noisy=ends is not None and phrases.is_noisy(ends)
    )


def _word(result: Result, *, stored: bool) -> str:
    """The verdict, and what it does not say of itself."""
    if stored and result.verdict is Verdict.REGRESSED:
        return f"{result.verdict.value} (accepted)"
    return f"{result.verdict.value} ({_STORED_TIMES})" if phrases.by_stored_times(result) else result.verdict.value


def brief_table(results: Sequence[Result], accepted: Collection[str] = (), *, most: int = _MOST) -> Table:
    """One row for each benchmark, below its test if that has several: the step time, the verdict, what else changed.

    Tests with red benchmarks come first. Beyond so many (``most``), benchmarks that are not red are summed up by test.
    """
    names = dict(zip(map(id, results), names_of(results), strict=True))
    tests: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: 0 if kind_of(one) == PASSED else -one.severity):
        tests.setdefault(result.test.partition("[")[0], []).append(result)
    columns: list[_Column] = [
        *(_metric_column(*column, results) for column in _brief_columns(results)),
        ("verdict", lambda one: _FAILED_AS.get(kind_of(one), "{}").format(_word(one, stored=one.test in accepted))),
        ("counts", lambda one: counts_words(one).removeprefix("counts ")),
    ]
    columns = [(header, cell) for header, cell in columns if any(cell(one) not in {"", NOTHING} for one in results)]
    rows: list[tuple[str, ...]] = []
    nothing = [""] * len(columns)
    for several in tests.values():
        shown = [one for one in several if one.red or (most := most - 1) >= 0]
        rest = [one for one in several if not any(one is each for each in shown)]
        shown, rest = (several, []) if len(rest) == 1 else (shown, rest)
        function = several[0].test.partition("::")[2].partition("[")[0]
        test, found, _ = names[id(several[0])].partition(function)
        if len(several) > 1:
            rows.append((test + found, *nothing))
        for one in shown:
            name = names[id(one)]
            short = INDENT + name.partition(function)[2].strip() if len(several) > 1 else name
            rows.append((short, *(cell(one) or NOTHING for _, cell in columns)))
            if (one.red or one.measurement.unfit) and (why := red_text(one)):
                rows.append((INDENT * 2 + why, *nothing))
        if rest:
            told = "; ".join(filter(None, (kinds_text(rest), ruled_out(rest))))
            rows.append((f"{INDENT}{len(rest)} {'more' if shown else 'benchmarks'}: {told}", *nothing))
    headers = ("benchmark", *(header for header, _ in columns))
    return Table(headers=headers, rows=tuple(rows), right=1 + (headers[-1] == "counts"))


def _brief_columns(results: Sequence[Result]) -> list[_MetricColumn]:
    """The step time before and now, its change, and how it scales; what was counted if nothing was timed."""
    columns = _metric_columns(results)
    if not _filled(results, "step_time"):
        return columns
    scaling: list[_MetricColumn] = [("eff.", "scaling_efficiency", _value), ("speedup", "speedup", _value)]
    return [
        ("step time\n{unit}", "step_time", _before_and_now),
        *(column for column in columns if column[0].startswith("change")),
        *(column for column in scaling if _filled(results, column[1])),
    ]


def _before_and_now(step_time: Comparison, common: Scale) -> str:
    known = step_time.baseline is not None and phrases.judges(step_time)
    before = f"{common.number(step_time.baseline)} -> " if known and step_time.baseline is not None else ""
    return f"{before}{common.number(step_time.series.value)}"


def _legend(results: Sequence[Result], here: str, headers: set[str]) -> dict[str, str]:
    """Returns what headers and verdicts mean that do not tell it themselves."""
    memory = [LABELS[kind] for kind in (RESIDENT, "peak_allocated") if _filled(results, kind)]
    others = " or ".join(dict.fromkeys(result.paired.named for result in results if result.paired is not None))
    over = dict.fromkeys(result.measurement.over for result in results if result.measurement.over)
    known = {result.verdict for result in results}
    steps = [result.measurement.plan.steps for result in results if result.measurement.launches] or [1]
    ok = {phrases.by_stored_times(result) for result in results if result.verdict is Verdict.OK}
    meanings = {
        "compared": f"with {others}{f', this being {here}' if here else ''}" if others else "",
        "memory": "; or ".join(memory),
        "eff.": "scaling efficiency, 1 if ranks do not slow each other down",
        "speedup": f"over {' or '.join(over)}, measured side by side" if over else "",
        "change": f"of the step time, from {_compared_with(results, others, here)}",
        "at most": f"{_BOUND_MEANING}; long steps are seen that come at least in every {span(ordinal, steps)} step",
        "calls": "of collectives, by a rank in a step",
        "sent": "by a rank in a step's collectives",
        "peak": "of the bytes in live tensors",
        **{verdict.value: meaning for verdict, meaning in _VERDICTS.items() if verdict in known},
        "unchanged": _unchanged_meaning(results),
        "ok": "slower by no more than the resolution (--ddpperf-must-detect)" if False in ok else "",
        _STORED_TIMES: "not slower by more than the tolerance, of times that show gross slowdowns alone" * (True in ok),
    }
    words = {*(verdict.value for verdict in Verdict), _STORED_TIMES, *headers}
    if "change" not in headers:
        words.add("compared")
    return {word: meaning for word, meaning in meanings.items() if meaning and word in words}


def _compared_with(results: Sequence[Result], others: str, here: str) -> str:
    """From what the step time changed."""
    if others:
        return f"{others}{f' to {here}' if here else ''}, measured side by side"
    compared = [result for result in results if (step := phrases.find(result, "step_time")) and step.change is not None]
    pairs = [result.pair is not None for result in compared]
    if all(pairs):
        return "the commit of the baseline, measured side by side"
    return f"the stored baseline{'; of some from its commit, measured side by side' if any(pairs) else ''}"


def _unchanged_meaning(results: Sequence[Result]) -> str:
    """Returns what is shown of the step times of unchanged benchmarks, where any is."""
    unchanged = [result for result in results if result.verdict is Verdict.UNCHANGED]
    steps = [comparison for comparison in _filled(unchanged, "step_time") if comparison.verdict is Verdict.UNCHANGED]
    margins = [comparison.margin for comparison in steps if comparison.margin is not None]
    return f"shown to be slower by less than {span(format_percent, margins)}" if margins else ""
