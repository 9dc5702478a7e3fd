"""The message of a failing test, on one screen: verdict, cause, changes, how they were confirmed, and what to do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

from pytest_ddpperf.errors import IncorrectTraining, RankFailed
from pytest_ddpperf.metrics.communication import OVERHEAD
from pytest_ddpperf.records.counts import count_row, quantity_texts
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.causes import EXPLAINING, PARTS, causes, gains, grounds, parts_text
from pytest_ddpperf.reports.count_changes import count_difference
from pytest_ddpperf.reports.findings import MACHINE, finding_text
from pytest_ddpperf.reports.lines import INDENT, command, cut_after, folded, labelled, printable, words_of
from pytest_ddpperf.reports.table import in_columns
from pytest_ddpperf.units import format_count

WIDTH = 80  # columns, if the width of the terminal is unknown
LINES = 20  # of a failure, with the line of the test, which is added to it
_ROWS, _FEW_ROWS = 8, 4  # rows at most; before fewer rows than the second are shown, blank lines go
_FEWEST_COLUMNS = 4  # name, both values and verdict
_PARAGRAPH = 2  # lines; twice as many of a cause
MOST_OF_RANKS = 12  # lines on what ranks did, without their stacks
# The label of the command that stores the result. An undecided benchmark may hide a slowdown, so it has none.
_CURES = {
    **dict.fromkeys((Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.OK), "Intended?"),
    **dict.fromkeys((Verdict.NEW, Verdict.INCOMPATIBLE), "Save one"),
}


def failures_text(
    failed: Sequence[tuple[Result, Verdict]],
    *,
    accept: str,
    failing: Collection[Verdict] = (),
    width: int = WIDTH,
    verbose: bool = False,
) -> str:
    """Returns a message that says why tests fail: the worst benchmark in detail, the others by name.

    With ``verbose``, all benchmarks are described in detail. ``accept``: the command that accepts an intended change,
    without its options. ``failing``: the verdicts that fail a test.
    """
    worst, *others = ordered = sorted(failed, key=lambda one: -one[1].severity)
    more = "-v, " * (not verbose) + "--ddpperf-report=html:FILE"
    tail = [*_cure(*worst, accept, width), *labelled("More", more, width)]
    if verbose:
        return _joined([*(part for one in ordered for part in _sections(*one, failing, width, None)), tail], "\n\n")
    if others:
        names = labelled("Also red", f"{words_of([result.name for result, _ in others])}: -v", width)
        tail = [*cut_after(_PARAGRAPH, names, width), *tail]
    text = ""
    for gap, least in ("\n\n", _FEW_ROWS), ("\n", 1):
        for rows in range(_ROWS, least - 1, -1):
            text = _joined([*_sections(*worst, failing, width, rows), tail], gap)
            if text.count("\n") + 1 < LINES:
                return text
    return text


def error_text(error: IncorrectTraining | RankFailed, width: int = WIDTH, *, verbose: bool = False) -> str:
    """Returns an error of ranks as text: title, cause, each rank, and the stack of the rank that failed first."""
    failed = error if isinstance(error, RankFailed) else RankFailed("")
    prose = str(error)
    for part in filter(None, (failed.stack, failed.others)):
        prose = re.sub(rf"^{re.escape(part)}$", "", prose, flags=re.MULTILINE)  # it may be a word of a line, too
    told = [line.strip() for line in prose.split("\n")[1:] if line.strip()]
    label, title = "Which", ["BROKEN: it does not train as a single process does"]
    if error is failed:  # without a benchmark a test asks for ranks alone
        label, title = "Ranks", ["BROKEN: it could not be measured"] * (failed.benchmark is not None)
    ranks = cut_after(None if verbose else MOST_OF_RANKS, _under(label, told, width), width)
    more = labelled("More", "-v: the stacks of the other ranks", width) if failed.others and not verbose else []
    parts = [title, [*_under("Cause", error.causes, width), *ranks], [failed.stack], [failed.others] * verbose, more]
    return _joined([part for part in parts if any(part)], "\n\n")


def _under(label: str, texts: Sequence[str], width: int) -> list[str]:
    return [line for i, text in enumerate(texts) for line in labelled("" if i else label, text, width)]


def _causes(told: Sequence[str], width: int, most: int | None) -> list[str]:
    """Returns the lines of causes: at most ``most`` for each, and in total ``most`` or all lines of the first two."""
    paragraphs = [cut_after(most, _under("" if i else "Cause", [text], width), width) for i, text in enumerate(told)]
    first = sum(map(len, paragraphs[:2]))
    return cut_after(most and max(most, first), [line for each in paragraphs for line in each], width)


def _joined(sections: Sequence[Sequence[str]], gap: str) -> str:
    return gap.join("\n".join(section) for section in sections if section)


def _sections(
    result: Result, verdict: Verdict, failing: Collection[Verdict], width: int, rows: int | None
) -> list[list[str]]:
    """Returns the parts of a failure's message: title, causes, a table of at most ``rows`` metrics, and paragraphs."""
    most, (general, heads) = None if rows is None else _PARAGRAPH, grounds(result, verdict, failing)
    told, better = general or causes(result, heads), [] if general else _under("", gains(result, heads), width)
    shown, more = _in_table(result, heads, rows)
    if verdict is Verdict.BROKEN:  # less work is no improvement of it
        shown = [replace(each, gated=False) for each in shown]
    table = failure_table(shown, heads, width) if shown else []
    details = _details(result, heads, told) if rows is None else []
    paragraphs = [*_paragraphs(result, heads), *details]
    return [
        cut_after(most, folded(printable(_title(result, verdict)), width, INDENT), width),
        [*_causes(told, width, most and 2 * most), *cut_after(most and 2 * most, better, width)],
        [*table, *([f"{more} more: -v"] if more else [])],
        [line for label, text in paragraphs for line in cut_after(most, labelled(label, text, width), width)],
    ]


def _title(result: Result, verdict: Verdict) -> str:
    measured, baseline = result.measurement, result.baseline
    against = ""
    if result.paired is not None:
        against = f" compared with {result.paired.named}"
    elif baseline is not None:
        commit = f" {phrases.commit_text(baseline.commit, dirty=baseline.dirty)}" if baseline.commit else ""
        counts = f" ({phrases.counts_origin(baseline)})" if baseline.counted is not None else ""
        against = f" compared with baseline{commit} of {baseline.date}{counts}"
    name = f"{measured.training}, {measured.mode} scaling" if measured.name == measured.mode else measured.name
    group = f"{format_count(measured.world_size, 'rank')}, {measured.environment.backend}"
    return f"{name}: {verdict.value.upper().replace('_', ' ')}{against}, {group}"


def _in_table(result: Result, heads: Sequence[Comparison], rows: int | None) -> tuple[list[Comparison], int]:
    """Returns at most ``rows`` metrics for a table, failing ones (``heads``) first, and the number of omitted ones."""
    changed = [c for c in result.comparisons if c.verdict in {Verdict.REGRESSED, Verdict.IMPROVED} and c not in heads]
    told = phrases.without_derived([c for c in result.comparisons if c in heads or c in changed])
    of_step = {c.series.metric for c in changed if c.series.rules.repeats_step_time} | {*PARTS, OVERHEAD}
    others = [c for c in told if c in changed and c.series.scale != "exact" and c.series.metric not in of_step]
    hints = [c for c in told if c in others or (c in changed and c.gated)]
    undecided = [c for c in phrases.decisive(result, {Verdict.INCONCLUSIVE}) if c not in heads]
    # Bytes that are a mean over steps that differ follow from the calls, if these have a row.
    followed = {"collective_bytes"} if any(head.series.metric == "collective_calls" for head in heads) else ()
    first = [c for c in (*heads, *hints, *undecided) if c.series.metric not in followed or c.series.value.is_integer()]
    every = [*first, *(c for c in (*heads, *changed) if c not in first)]
    if rows is None:
        return every, 0
    shown, timed = first[:rows], [c for c in heads if c.series.scale != "exact"][:1]
    if len(first) > rows > 1 and timed and timed[0] not in shown:
        shown[-1:] = timed
    return shown, len(every) - len(shown)


def _paragraphs(result: Result, heads: Sequence[Comparison]) -> list[tuple[str, str]]:
    red = [head for head in heads if head.verdict is Verdict.REGRESSED and head.series.scale != "exact"]
    if not red:
        return []
    metric, seen = red[0].series.metric, phrases.seen_in(red[0])
    told = [f"{f'{metric} ' * (metric != 'step_time')}{seen}" if seen else ""]
    told += [
        f"the first {format_count(each.facts['launches'], 'launch')} raised the suspicion, the later ones confirm it"
        for each in phrases.every_finding(result)
        if each.code == "suspected" and any(head.series.metric in " ".join(each.facts["metrics"]) for head in red)
    ]
    told += [finding_text(head.note) for head in red if head.note is not None and head.note.code not in EXPLAINING]
    machine = "; ".join(finding_text(each) for each in phrases.every_finding(result) if each.code in MACHINE)
    labels = {"Confirmed": "; ".join(filter(None, dict.fromkeys(told))), "Machine": machine}
    return [(label, text) for label, text in labels.items() if text]


def _details(result: Result, heads: Sequence[Comparison], shown: Collection[str]) -> list[tuple[str, str]]:
    """Returns the (label, text) pairs that ``-v`` adds, without failing metrics (``heads``) and texts in ``shown``."""
    undecided = [c for c in phrases.decisive(result, {Verdict.INCONCLUSIVE}) if c not in heads]
    said = {"suspected", *MACHINE} if _paragraphs(result, heads) else ()
    notes = [finding_text(each) for each in phrases.every_finding(result, without=said)]
    opened = [("Open", phrases.open_text(c)) for c in undecided]
    every = [("Phases", parts_text(result)), *opened, *(("Note", note) for note in dict.fromkeys(notes))]
    return [(label, text) for label, text in every if text and text not in shown]


def _cure(result: Result, verdict: Verdict, accept: str, width: int) -> list[str]:
    """Returns lines that say how to accept an intended change: by ``--ddpperf-allow``, or by saving a new baseline."""
    if result.paired is not None:
        red = [worse.series.metric for worse in phrases.decisive(result, {Verdict.REGRESSED})]
        if not red or result.verdict is Verdict.BROKEN:
            return []
        option = f"--ddpperf-allow={shlex.quote(f'{result.test} {red[0]}')}"
        run = ", ".join(["for this run", *([f"once more for {words_of(red[1:])}"] if red[1:] else [])])
        test = [f"accept={{{one!r}: LIMIT}}, reason=WHY for the test" for one in red if not count_row(one).of_work][:1]
        behind = command("Intended?", option, width)
        if max(map(len, behind)) <= width:  # in one line, so that it can be copied
            return [*behind, *labelled("", ", or ".join([run, *test]), width)]
        return [*labelled("Intended?", ", or ".join([*test, run]), width), f"  {option}"]
    if result.measurement.unfit:
        return command("Intended?", f"{accept} --ddpperf-force-save", width)
    return command(_CURES[verdict], accept, width) if verdict in _CURES else []


def failure_table(rows: Sequence[Comparison], failing: Collection[Comparison], width: int) -> list[str]:
    """Returns a table of metrics as lines, with as many columns as fit; marks the metrics in ``failing``."""
    levels = {row.change_interval.confidence for row in rows if row.change_interval is not None}
    interval = ", ".join(map(phrases.confidence_text, sorted(levels))) or "interval"
    notes = phrases.meaning_of_mark(rows)
    cells = []
    for row in rows:
        before, now = ("", *phrases.value_texts(row))[-2:]
        change, *others = _judged(row)
        mark = phrases.MARK if phrases.mean_change(row) else " " * bool(notes)
        verdict = "FAIL" if row in failing else row.verdict.value if row.gated else ""
        cells.append((row.series.metric, before, now, change + mark, *others, verdict))
    every = zip(("", "reference", "now", "change", interval, "limit", " "), *cells, strict=True)
    columns = [column for column in every if any(map(str.strip, column[1:]))]
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + 2 * len(widths) - 2 > width and len(widths) > _FEWEST_COLUMNS:
        del widths[-2], columns[-2]
    numbers = [i for i, column in enumerate(columns) if column[0].strip()]
    lines = in_columns(list(zip(*columns, strict=True)), widths, numbers)
    return [*lines, *(line for note in notes for line in folded(note, width, INDENT))]


def _judged(row: Comparison) -> tuple[str, str, str]:
    """Returns three texts: a change, its interval, and the largest change that cannot fail a test (``+1.5 %``)."""
    exact, base, metric = row.series.scale == "exact", row.baseline, row.series.metric
    if base is None or row.verdict is Verdict.INCOMPATIBLE:
        return "", "exact" * (exact and base is not None), ""
    if not exact:
        sign = "+" if row.series.better == "lower" else "-"
        limit = f"{sign}{phrases.size_text(row.tolerance, row)}"
        return phrases.signed(row.change, row), phrases.interval_text(row), limit
    floor = count_row(metric)
    least = max(floor.floor, 0.0 if floor.floor_alone else floor.floor_share * base)
    change = "" if row.change is None else count_difference(metric, base, row.series.value)
    limit = f"+{quantity_texts(metric, [least])[0]}" if least else "0"
    if row.change is not None and change == limit:
        change, limit = (f"+{text}" for text in quantity_texts(metric, [row.change, least]))
    return change, "exact", limit
