"""Benchmarks as tables: all metrics of each with remarks, and in brief."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_ddpperf.instruments.memory import LABELS
from pytest_ddpperf.judge.detection import UNPROVEN
from pytest_ddpperf.metrics.table import RESIDENT
from pytest_ddpperf.records.counts import count_row
from pytest_ddpperf.records.measurement import Interval, Series
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.comparisons import how_it_scales, what_pays
from pytest_ddpperf.reports.lines import INDENT, names_of
from pytest_ddpperf.reports.remarks import FAILED, PASSED, kind_of, kinds_text, red_text, ruled_out
from pytest_ddpperf.reports.table import Column, Quantity, Table, table_of
from pytest_ddpperf.units import format_count, format_number, format_percent, ordinal, signed_percent, span

_BOUND_MEANING = f"the step is slower by no more than this, one-sided, with {format_percent(1 - UNPROVEN)} confidence"
_VERDICTS = {
    Verdict.INCONCLUSIVE: "a slowdown beyond the resolution (--ddpperf-must-detect) may hide",
    Verdict.DOES_NOT_FIT: "a rank ran out of memory; the others were measured without it",
}
_STORED_TIMES = "stored times"
_MOST = 30  # benchmarks that are not red and have a row of their own
_FAILED_AS = {FAILED: "failed ({})"}  # by another rule than its verdict
_Cell: TypeAlias = "Callable[[Comparison, Callable[[float], str]], str]"


def summary_table(results: Sequence[Result], accepted: Collection[str] = ()) -> Table:
    """``benchmark_table`` with what pays, how benchmarks scale, and what its words mean."""
    results = worst_first(results)
    table = benchmark_table(results, accepted)
    return replace(
        table,
        notes=(*what_pays(results), *how_it_scales(results)),
        legend=_legend(results, {header.partition("\n")[0] for header in table.headers[1:]}),
    )


def benchmark_table(results: Sequence[Result], accepted: Collection[str] = (), *, brief: bool = False) -> Table:
    """One row for each benchmark: what was measured, how it changed, the verdict.

    In brief the step time before and now, its change, how it scales, the verdict and whether counts changed. Columns
    that no benchmark fills (throughput without a number of samples, scaling efficiency) are omitted.
    ``accepted``: the tests whose results became the baseline.
    """
    names = dict(zip(map(id, results), names_of(results), strict=True))
    sizes = dict.fromkeys(result.measurement.world_size for result in results)

    def metric(name: str, text: _Cell | None = _value) -> Quantity[Result]:
        return _metric_column(name, text, results)

    columns: dict[str, Column[Result]] = {"benchmark": lambda result: names[id(result)]}
    scaling = {"eff.": metric("scaling_efficiency"), "speedup": metric("speedup", _value if brief else None)}
    change = {"change": _change_column()}
    if not _filled(results, "step_time"):
        columns |= {
            # A mean over several steps need not be whole.
            "calls": metric("collective_calls", lambda calls, _: format_number(calls.series.value)),
            "sent": metric("collective_send_bytes"),
            "FLOPs": metric("flops"),
            "peak": metric("peak_tensor_bytes"),
        }
    elif brief:
        columns |= {"step time": metric("step_time", _before_and_now), **change, **scaling}
    else:
        compared = any(result.measurement.over for result in results)
        columns |= {  # what tells most first, for a narrow window shows no more
            **change,
            "at most\n%": lambda result: "".join(
                phrases.bound_text(step).removesuffix(" %") for step in _filled([result], "step_time")
            ),
            "step time": metric("step_time", None),
            "throughput": metric("throughput" if _filled(results, "throughput") else "token_throughput"),
            "memory": metric("peak_allocated" if _filled(results, "peak_allocated") else RESIDENT),
            **(scaling if compared else {"eff.": scaling["eff."]}),
        }
    judged: dict[str, Column[Result]] = {
        "ranks": lambda result: str(result.measurement.world_size) if len(sizes) > 1 else "",
        "counts": (lambda one: phrases.counts_words(one).removeprefix("counts ")) if brief else counts_text,
        "verdict": lambda one: _FAILED_AS.get(kind_of(one) if brief else "", "{}").format(_word(one, accepted)),
    }
    columns |= {name: judged[name] for name in (("verdict", "counts") if brief else judged)}
    machines = dict.fromkeys(phrases.environment_text(result.measurement.environment) for result in results)
    ranks = f", {format_count(results[0].measurement.world_size, 'rank')}" if len(sizes) == 1 else ""
    return table_of(results, columns, every=False, title="" if brief else "; ".join(machines) + ranks)


def worst_first(results: Sequence[Result]) -> list[Result]:
    """The benchmarks of tests that failed, then by the worst verdict of their tests, else in their order."""
    worst: dict[str, int] = {}
    for result in results:
        worst[result.test] = max(result.severity, worst.get(result.test, 0))
    return sorted(results, key=lambda result: -worst[result.test])


def _filled(results: Sequence[Result], metric: str) -> list[Comparison]:
    return [comparison for result in results if (comparison := phrases.find(result, metric)) is not None]


def _metric_column(metric: str, text: _Cell | None, results: Sequence[Result]) -> Quantity[Result]:
    """A column in one unit, which fits all of its values; without ``text`` with their intervals."""
    units = [comparison.series.unit for comparison in _filled(results, metric)]

    def series(result: Result) -> Series | None:
        return getattr(phrases.find(result, metric), "series", None)

    def cell(result: Result, number: Callable[[float], str]) -> str:
        found = result[metric]
        if text:
            return text(found, number)
        noisy = found.series.interval is None and len(found.series.samples) > 1
        return phrases.with_interval(number, found.series.value, found.series.interval, noisy=noisy)

    return Quantity(
        value=lambda result: getattr(series(result), "value", None),
        unit=(*units, "1")[0],
        interval=lambda result: None if text else getattr(series(result), "interval", None),
        text=cell,
        apart=True,
    )


def _value(comparison: Comparison, number: Callable[[float], str]) -> str:
    return number(comparison.series.value)


def _change_column() -> Quantity[Result]:
    """The change of the step time, with its interval."""

    def interval(result: Result) -> Interval | None:
        return getattr(phrases.find(result, "step_time"), "change_interval", None)

    def change(result: Result) -> float | None:
        return next((step.change for step in _filled([result], "step_time") if phrases.judges(step)), None)

    def text(result: Result, _number: Callable[[float], str]) -> str:
        ends = interval(result)
        noisy = ends is not None and phrases.is_noisy(ends)
        return phrases.with_interval(signed_percent, change(result) or 0.0, ends, noisy=noisy)

    return Quantity(value=change, unit="%", interval=interval, text=text)


def _word(result: Result, accepted: Collection[str]) -> str:
    """The verdict, and what it does not say of itself."""
    if result.test in accepted and result.verdict is Verdict.REGRESSED:
        return f"{result.verdict.value} (accepted)"
    return f"{result.verdict.value} ({_STORED_TIMES})" if phrases.by_stored_times(result) else result.verdict.value


def counts_text(result: Result) -> str:
    """Returns what became of the counts: ``14 same over 20 steps``, ``2 changed``, ``11 same, 3 vary over 20 steps``.

    Empty if none is compared. The steps are those that both sides have looked at, at least.
    """
    compared, changed = phrases.compared_counts(result)
    counts = result.measurement.counts
    sides = [] if counts is None or result.reference.counted is None else [counts, result.reference.counted.counts]
    steps = min((side.steps for side in sides if side is not None), default=0)
    vary = 0 if counts is None else sum(count_row(metric).gated for metric in counts.unstable)
    told = f"{changed} changed" if changed else f"{compared} same" if compared else ""
    text = ", ".join(filter(None, (told, f"{vary} vary" if vary and sides else "")))
    return f"{text} over {steps} steps" if text and steps and not changed else text


def brief_table(results: Sequence[Result], accepted: Collection[str] = (), *, most: int = _MOST) -> Table:
    """The table in brief, each benchmark below its test if that has several, what else changed below each.

    Tests with red benchmarks come first. Beyond so many (``most``), benchmarks that are not red are summed up by test.
    """
    table = benchmark_table(results, accepted, brief=True)
    cells = dict(zip(map(id, results), table.rows, strict=True))
    tests: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: 0 if kind_of(one) == PASSED else -one.severity):
        tests.setdefault(result.test.partition("[")[0], []).append(result)
    rows: list[tuple[str, ...]] = []
    nothing = [""] * (len(table.headers) - 1)
    for several in tests.values():
        shown = [one for one in several if one.red or (most := most - 1) >= 0]
        rest = [one for one in several if not any(one is each for each in shown)]
        shown, rest = (several, []) if len(rest) == 1 else (shown, rest)
        function = several[0].test.partition("::")[2].partition("[")[0]
        test, found, _ = cells[id(several[0])][0].partition(function)
        if len(several) > 1:
            rows.append((test + found, *nothing))
        for one in shown:
            name, *figures = cells[id(one)]
            short = INDENT + name.partition(function)[2].strip() if len(several) > 1 else name
            rows.append((short, *figures))
            if (one.red or one.measurement.unfit) and (why := red_text(one)):
                rows.append((INDENT * 2 + why, *nothing))
        if rest:
            told = "; ".join(filter(None, (kinds_text(rest), ruled_out(rest))))
            rows.append((f"{INDENT}{len(rest)} {'more' if shown else 'benchmarks'}: {told}", *nothing))
    return replace(table, rows=tuple(rows), right=1 + (table.headers[-1] == "counts"))


def _before_and_now(step_time: Comparison, number: Callable[[float], str]) -> str:
    known = [step_time.baseline] if step_time.baseline is not None and phrases.judges(step_time) else []
    return " -> ".join(map(number, [*known, step_time.series.value]))


def _legend(results: Sequence[Result], headers: set[str]) -> dict[str, str]:
    """Returns what headers and verdicts mean that do not tell it themselves."""
    memory = [LABELS[kind] for kind in (RESIDENT, "peak_allocated") if _filled(results, kind)]
    over = dict.fromkeys(result.measurement.over for result in results if result.measurement.over)
    verdicts = {result.verdict for result in results}
    steps = [result.measurement.plan.steps for result in results if result.measurement.launches] or [1]
    ok = {phrases.by_stored_times(result) for result in results if result.verdict is Verdict.OK}
    meanings = {
        "memory": "; or ".join(memory),
        "eff.": "scaling efficiency, 1 if ranks do not slow each other down",
        "speedup": f"over {' or '.join(over)}, measured side by side" if over else "",
        "change": "of the step time, from the reference to now",
        "at most": f"{_BOUND_MEANING}; long steps are seen that come at least in every {span(ordinal, steps)} step",
        "calls": "of collectives, by a rank in a step",
        "sent": "by a rank in a step's collectives",
        "peak": "of the bytes in live tensors",
        **{verdict.value: meaning for verdict, meaning in _VERDICTS.items() if verdict in verdicts},
        "unchanged": _unchanged_meaning(results),
        "ok": "slower by no more than the resolution (--ddpperf-must-detect)" if False in ok else "",
        _STORED_TIMES: "not slower by more than the tolerance, of times that show gross slowdowns alone" * (True in ok),
    }
    words = {*(verdict.value for verdict in Verdict), _STORED_TIMES, *headers}
    return {word: meaning for word, meaning in meanings.items() if meaning and word in words}


def _unchanged_meaning(results: Sequence[Result]) -> str:
    """Returns what is shown of the step times of unchanged benchmarks, where any is."""
    unchanged = [result for result in results if result.verdict is Verdict.UNCHANGED]
    steps = [comparison for comparison in _filled(unchanged, "step_time") if comparison.verdict is Verdict.UNCHANGED]
    margins = [comparison.margin for comparison in steps if comparison.margin is not None]
    return f"shown to be slower by less than {span(format_percent, margins)}" if margins else ""
