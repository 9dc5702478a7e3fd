"""The summary of a run: its end on the terminal, and tables of its benchmarks, in detail and in brief."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pytest_ddpperf.instruments.memory import LABELS
from pytest_ddpperf.judge.detection import UNPROVEN
from pytest_ddpperf.metrics.table import RESIDENT
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import breakdown, phrases, remarks
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.diagnosis import diagnosis_lines
from pytest_ddpperf.reports.findings import MACHINE, finding_text
from pytest_ddpperf.reports.lines import INDENT, columns, with_names, wrapped
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.stored import stored_lines
from pytest_ddpperf.reports.table import NOTHING, Paint, Table, interval_header, render, with_interval, with_meanings
from pytest_ddpperf.units import format_count, format_number, format_percent, ordinal, scale, signed_percent, span

_LISTED = 5  # lines of one kind: warnings, and undecided metrics; -v shows all
_WARNINGS = frozenset(
    {
        *(MACHINE - {"measured_beside"}),  # the session's own warning has that
        # What was trained, and how.
        *("ranks_send_nothing", "equal_batches", "evaluating", "other_batch_size", "memory_growth", "full_gpu_memory"),
        *("faster_than_network", "unseen_work", "negative_scaling", "calls_unseen", "no_time_to_measure"),
        "without_gpu",
        # What it is compared with.
        *("slower_than_stored", "lost_metric", "lost_counts", "alike_baselines", "thin_baseline"),
        *("unpaired", "cannot_run", "other_environment", "same_code", "tests_differ", "no_name_to_look_up"),
        "tool_measured",
        *("target_open", "never_met", "acceptance", "unsure_counts"),
    }
)
"""Codes of findings that make a result doubtful whatever its verdict, and so are shown as warnings."""
_NOT_COMPARED = frozenset({Verdict.NEW, Verdict.INCOMPATIBLE})
_DO = "what to do: each failure above says the cause, and what to do if the change is intended"
_MORE = "phases, communication, diagnosis, times, notes: -v, --ddpperf-report=html:FILE"
_TOLD = 3  # counts of a benchmark that are not red
_MOST = 30  # benchmarks that are not red and have a row of their own
_MOST_OF = "at most"  # before the one-sided limit of a change


def last_lines(made: Outputs) -> list[str]:
    """Returns complaints and the verdict on the run, which are printed if pytest has no terminal reporter."""
    verdict = f"ddpperf: {remarks.headline(made, _accepted(made))}"
    return [*made.complaints, *([verdict] if made.results else [])]


def summary_parts(
    made: Outputs, width: int | None = None, paint: Paint = lambda text, _: text, *, verbosity: int = 0
) -> list[tuple[str, str]]:
    """Returns (title, text) pairs of the summary's parts, the verdict first.

    ``paint``: a function that colours a text. ``verbosity``: 1 for ``-v``, -1 for ``-q``.
    """
    results, title, lines = made.results, "ddpperf", _screen(made, width, paint, verbosity)
    if results:
        verdict = last_lines(made)[-1]
        if width is None or columns(verdict) + 4 <= width:  # with a sign and a space at both ends
            title = verdict
        else:
            lines[:0] = wrapped([verdict], width)
    parts = {title: "\n".join(lines)}
    calls = (made.searches, made.convergences, made.predictions, made.advice, made.calibrated)
    tables = call_tables(*calls) if any(calls) else {}
    if verbosity > 0:
        tables |= {
            "phases": [breakdown.phase_table(results)],
            "sections": [breakdown.section_table(results)],
            "diagnosis": [Table((), (), tuple(diagnosis_lines(results)))],
            "communication": [breakdown.communication_table(results)],
            "collectives": [breakdown.collective_table(results)],
            "time": [breakdown.time_table(results)],
        }
    for part, several in tables.items():
        shown = [each if verbosity > 0 else replace(each, legend={}) for each in several if each.rows or each.notes]
        parts[f"ddpperf {part}"] = "\n\n".join(render(each, width, paint) for each in shown)
    told = [(each, text) for each, text in parts.items() if text or (results and each == title)]
    return [*told, *made.added]


def _accepted(made: Outputs) -> set[str]:
    not_stored = {*made.stored.failed, *(one.test for one in made.stored.unfit)}
    return {one.test for one in made.results} - not_stored if made.accepting else set()


def colour_of(made: Outputs) -> str:
    """Returns the summary's colour: red for failed tests, yellow for warnings or undecided benchmarks, else green."""
    if made.unmeasured or any(one.failure for one in made.results):
        return "red"
    is_open = any(one.verdict.severity >= Verdict.DOES_NOT_FIT.severity for one in made.results)
    return "yellow" if made.complaints or made.interrupted or is_open else "green"


def _screen(made: Outputs, width: int | None, paint: Paint, verbosity: int) -> list[str]:
    results, more, common = made.results, verbosity > 0, remarks.common_text(made.common_change)
    slower = made.common_change is not None and made.common_change.slower
    warnings = [*made.complaints, *(common * (slower and verbosity >= 0)), *(_warnings(made) if verbosity == 0 else [])]
    lines = [paint(line, "yellow") for line in wrapped([f"WARNING {text}" for text in warnings], width)]
    if verbosity < 0:
        red = [one for one in results if one.red]
        return [*lines, *(render(brief_table(red, _accepted(made)), width, paint).splitlines() if red else [])]
    if results:
        table = summary_table(results, _accepted(made)) if more else brief_table(results, _accepted(made))
        notes = _notes(made, every=more)
        lines += [*([""] if lines else []), *render(table, width, paint).splitlines()]
        lines += [*wrapped(notes, width, clipped=True), ""]
    meanings = remarks.green_meanings(results)
    closing = [
        *([_DO] if any(one.failure for one in results) else []),
        *([] if made.accepting else _not_compared(results)),
        *remarks.overall_lines(results),
        *(["; ".join(f"{word}: {text}" for word, text in meanings.items())] if len(meanings) > 1 and not more else []),
        *(common * (more and not slower)),
        *filter(None, [made.recorded, f"measured: {made.here}" if more and made.here else ""]),
        *([phrases.machines_text(results)] if results and not more else []),
        *([] if more or not results else [_MORE]),
    ]
    stored = [] if made.stored == Stored() else stored_lines(made.stored, width)
    return [*lines, *stored, *wrapped([*(line for _, line in made.traces), *closing], width)]


def _notes(made: Outputs, *, every: bool) -> list[str]:
    """Returns lines on undecided metrics; with ``every``, all notes on benchmarks."""
    named = with_names(made.results)
    notes = [] if made.accepting else remarks.undecided_lines(named, every=every)
    if not every:
        return phrases.first_of(notes, _LISTED)
    untold = [(name, one) for name, one in named if made.accepting or not one.red]  # failure messages have the others
    told = ((name, remark) for name, one in untold for remark in remarks.every_remark(one, accepting=made.accepting))
    return [*notes, *remarks.told_once(told, len(named))]


def _warnings(made: Outputs) -> list[str]:
    """Returns warnings about results, without repetitions; omits most warnings that a failure's message already has."""
    results = made.results
    doubts = [
        (name, finding)
        for name, result in with_names(results)
        for finding in phrases.every_finding(result)
        if finding.code in _WARNINGS and (made.accepting or not result.red or finding.code == "unpaired")
    ]
    doubts.sort(key=lambda remark: remark[1].code != "unpaired")
    return phrases.first_of(remarks.told_once(doubts, len(results)), _LISTED)


def _not_compared(results: Sequence[Result]) -> list[str]:
    """Returns a line on benchmarks that were not compared: their number, the reasons, and a cure; or an empty list."""
    reasons: list[str] = []
    found = [one for one in results if one.verdict in _NOT_COMPARED]
    for one in found:
        lacking = "" if one.paired is None else one.paired.lacking.partition("\n")[0]
        notes = (each.note for each in phrases.decisive(one, {Verdict.INCOMPATIBLE}) if each.note)
        reasons.append(lacking or ", ".join(one.reference.differs) or finding_text(next(notes, None)))
    why = "; ".join(filter(None, dict.fromkeys(reasons)))
    stored = any(one.paired is None for one in found)
    cure = ": --ddpperf-save stores a baseline for later runs" if stored else ""
    number = f"{len(found)} of {format_count(len(results), 'benchmark')}{why and f' ({why})'}"
    return [f"not compared: {number}{cure}"] if found else []


def summary_table(results: Sequence[Result], accepted: Collection[str] = ()) -> Table:
    """Returns ``benchmark_table`` with a legend."""
    results = worst_first(results)
    return with_meanings(benchmark_table(results, accepted), _meanings(results))


def benchmark_table(results: Sequence[Result], accepted: Collection[str] = (), *, brief: bool = False) -> Table:
    """Returns one row for each benchmark: its figures, its change, and the verdict.

    A ``brief`` row has the step time before and now, its change, the scaling, whether counts changed, and the verdict.
    Empty columns, such as unknown throughput, are omitted. ``accepted``: the tests whose results became the baseline.
    """
    made: dict[str, list[str]] = {"benchmark": [name for name, _ in with_names(results)]}

    def column(header: str, unit: str, cells: list[str], intervals: Iterable[Interval | None] = ()) -> None:
        if any(cells):
            header = interval_header(f"{header}\n{unit}", intervals).replace("\n ", "\n").rstrip()
            made[header] = [cell or NOTHING for cell in cells]

    def metric(header: str, name: str, *, interval: bool = False) -> None:
        found = [None if each is None else each.series for each in (phrases.find(result, name) for result in results)]
        known = [each for each in found if each is not None]
        common = scale([each.value for each in known], known[0].unit if known else "1")
        cells = []
        for each in found:
            ends = each.interval if each is not None and interval else None
            noisy = interval and each is not None and ends is None and len(each.samples) > 1
            cells.append("" if each is None else with_interval(common.number, each.value, ends, noisy=noisy))
        column(header, common.unit, cells, [each.interval for each in known if interval])

    measured = {comparison.series.metric for result in results for comparison in result.comparisons}
    steps = [phrases.find(result, "step_time") for result in results]
    judged = [step if step is not None and step.verdict is not Verdict.INCOMPATIBLE else None for step in steps]
    texts = [_change(step, brief=brief) for step in judged]
    shown = [
        getattr(step, "change_interval", None) for step, text in zip(judged, texts, strict=True) if _MOST_OF not in text
    ]
    change = ("change", "%", texts, shown)
    if not any(steps):
        calls = [phrases.find(result, "collective_calls") for result in results]
        column("calls", "", [format_number(each.series.value) if each else "" for each in calls])  # a mean is not whole
        metric("sent", "collective_send_bytes")
        metric("FLOPs", "flops")
        metric("peak", "peak_tensor_bytes")
    elif brief:
        common = scale([step.series.value for step in steps if step], "s")
        before = ["" if each is None or each.baseline is None else common.number(each.baseline) for each in judged]
        now = ["" if step is None else common.number(step.series.value) for step in steps]
        column("step time", common.unit, [" -> ".join(filter(None, pair)) for pair in zip(before, now, strict=True)])
        column(*change)
    else:  # the most useful columns come first, because a narrow window shows no more
        column(*change)
        column("at most", "%", [phrases.bound_text(step).removesuffix(" %") if step else "" for step in steps])
        metric("step time", "step_time", interval=True)
        metric("throughput", "throughput" if "throughput" in measured else "token_throughput")
        metric("memory", "peak_allocated" if "peak_allocated" in measured else RESIDENT)
    metric("eff.", "scaling_efficiency")
    metric("speedup", "speedup", interval=not brief)
    sizes = [result.measurement.world_size for result in results]
    column("ranks", "", [str(size) * (len({*sizes}) > 1 and not brief) for size in sizes])
    column("counts", "", [phrases.counts_text(one, brief=brief) for one in results])
    alone = [f" ({remarks.STORED_TIMES})" * phrases.by_stored_times(one) for one in results]
    column("verdict", "", [remarks.verdict_word(one, accepted) + by for one, by in zip(results, alone, strict=True)])
    title = phrases.machines_text(results) if results and not brief else ""
    notes = tuple(phrases.meaning_of_mark(filter(None, judged)))
    return Table(headers=tuple(made), rows=tuple(zip(*made.values(), strict=True)), title=title, notes=notes)


def worst_first(results: Sequence[Result]) -> list[Result]:
    """Returns the benchmarks, sorted by the worst result of their test; failed tests are first."""
    worst: dict[str, int] = {}
    for result in results:
        worst[result.test] = max(result.severity, worst.get(result.test, 0))
    return sorted(results, key=lambda result: -worst[result.test])


def _change(step: Comparison | None, *, brief: bool) -> str:
    """Returns a change with its interval. If ``brief``, the upper bound replaces the interval of a passed benchmark."""
    if step is None or step.change is None:
        return ""
    noisy = phrases.interval_text(step) == phrases.NOISY
    text = with_interval(signed_percent, step.change, step.change_interval, noisy=noisy)
    change, space, rest = text.partition(" ")
    if brief and step.bound is not None and step.verdict in {Verdict.UNCHANGED, Verdict.OK}:
        rest = f"[{_MOST_OF} {signed_percent(step.bound)}]"
    return f"{change}{phrases.MARK * bool(phrases.mean_change(step))}{space}{rest}"


def brief_table(results: Sequence[Result], accepted: Collection[str] = ()) -> Table:
    """Returns a brief table of tests with their benchmarks; tests with failures come first.

    Below a benchmark is the cause of its failure, or the counts that fell. After ``_MOST`` rows, a row sums up a test.
    """
    table = benchmark_table(results, accepted, brief=True)
    cells = dict(zip(map(id, results), table.rows, strict=True))
    tests: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: 0 if remarks.passed(one) else -one.severity):
        tests.setdefault(result.test.partition("[")[0], []).append(result)
    rows, steps = list[tuple[str, ...]](), list[Comparison]()
    nothing, most = [""] * (len(table.headers) - 1), _MOST
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
            steps += [each for each in one.comparisons if each.series.metric == "step_time"]
            if one.red or one.measurement.unfit:
                why = remarks.cause_in_words(one, below=True)
            else:
                gated = [c for c in one.comparisons if c.gated and c.verdict is Verdict.IMPROVED]
                fewer = [phrases.short_text(c) for c in gated if c.series.scale == "exact"]
                why = ", ".join(fewer[:_TOLD])
            rows += [(INDENT * 2 + why, *nothing)] if why else []
        if rest:
            told = "; ".join(filter(None, (remarks.kinds_text(rest), remarks.ruled_out(rest))))
            rows.append((f"{INDENT}{len(rest)} {'more' if shown else 'benchmarks'}: {told}", *nothing))
    return replace(table, rows=tuple(rows), notes=tuple(phrases.meaning_of_mark(steps)))


def _meanings(results: Sequence[Result]) -> dict[str, str]:
    kinds = (RESIDENT, "peak_allocated")
    memory = [LABELS[kind] for kind in kinds if any(phrases.find(result, kind) for result in results)]
    over = dict.fromkeys(result.measurement.over for result in results if result.measurement.over)
    steps = [result.measurement.plan.steps for result in results if result.measurement.launches] or [1]
    return {
        "memory": "; or ".join(memory),
        "eff.": "scaling efficiency, 1 if ranks do not slow each other down",
        "speedup": f"over {' or '.join(over)}, measured side by side" if over else "",
        "change": "change of the step time from the reference to now",
        "at most": "upper limit of the slowdown, one-sided, with "
        f"{format_percent(1 - UNPROVEN)} confidence; includes long steps that recur at least every "
        f"{span(ordinal, steps)} step",
        "calls": "calls of collectives by a rank in a step",
        "sent": "bytes that a rank sends in a step's collectives",
        "peak": "of the bytes in live tensors",
        "inconclusive": "the run may hide a slowdown of more than --ddpperf-must-detect",
        "does_not_fit": "a rank ran out of memory; only the other benchmarks were measured",
        **remarks.green_meanings(results),
    }
