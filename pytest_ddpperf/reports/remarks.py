"""Remarks on a verdict, beside the summary's table: what it rests on, and what got better beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddpperf.records.counts import count_row
from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.findings import broken_reason, finding_text, words_of_note
from pytest_ddpperf.reports.lines import whom
from pytest_ddpperf.reports.names import names_of

_TOLD, _TOLD_OF_RED = 3, 2  # metrics of one benchmark; the failure of a red one has all of them
_EACH = 3  # benchmarks whose figures are all told, of one kind of remark
_UNSAID = APART | {"broken", "does_not_fit", "target_met", "suspected", "effective_batch_size", "told_late", "unpaired"}
"""Findings that change nothing for a reader of the summary; failures and the JSON file have them."""
_STALE = "better than its baseline by more than the tolerance: the baseline is stale, --ddpperf-save renews it"
_FEWER = "the baseline has more counts: if less is meant, --ddpperf-save renews it"


def red_text(result: Result) -> str:
    """Why a benchmark is red, apart from its step time: what could not be measured, or the metrics that got worse."""
    if result.verdict is Verdict.BROKEN or result.measurement.unfit:
        return broken_reason(result).partition("\n")[0]
    if result.failure and result.verdict is not Verdict.REGRESSED:
        return result.failure.partition("\n")[0].removeprefix(f"{result.verdict.value}: ")
    worse = phrases.decisive(result, {result.verdict})
    shared = [c for c in worse if c.note is not None and c.note.code == "not_the_code"]  # their change shows nothing
    told = [c for c in worse if c.series.metric != "step_time" or c in shared]
    texts = [f"{c.series.metric} {words_of_note(c.note)}" if c in shared else phrases.short_text(c) for c in told]
    return _few(texts, _TOLD_OF_RED) or ", ".join(result.reference.differs)


def _few(texts: Sequence[str], most: int = _TOLD) -> str:
    return "; ".join(phrases.first_of(texts, most))


def reasons(result: Result) -> list[str]:
    """Returns why a benchmark is red, a line for each metric; of one that could not be measured its remarks.

    Of one that is not red it is what became of its step time.
    """
    if result.failure and result.verdict is not Verdict.BROKEN:
        return result.failure.splitlines()
    if not result.red:
        return [phrases.change_line(step) for step in (phrases.find(result, "step_time"),) if step is not None]
    return list(map(phrases.change_line, phrases.decisive(result, {Verdict.REGRESSED}))) or list(
        phrases.findings(result)
    )


def all_findings(results: Sequence[Result]) -> list[str]:
    """All findings on benchmarks, each once, behind the names of those that it concerns."""
    named = zip(names_of(results), results, strict=True)
    return told_once(((name, each) for name, one in named for each in phrases.every_finding(one)), len(results))


def told_once(remarks: Iterable[tuple[str, Finding | str]], of: int) -> list[str]:
    """Each remark once, behind those of so many benchmarks that it concerns, from pairs of name and remark.

    Of many with one code, which differ in figures alone, only the first one is told.
    """
    alike: dict[str, dict[str, list[str]]] = {}
    for name, remark in remarks:
        code, text = (remark, remark) if isinstance(remark, str) else (remark.code, finding_text(remark))
        alike.setdefault(code, {}).setdefault(text, []).append(name)
    lines = []
    for texts in alike.values():
        number = sum(map(len, texts.values()))
        text, (first, *_) = next(iter(texts.items()))
        if number > _EACH and len(texts) > 1:
            who = f"all {of}" if number == of else f"{number} of {of}"
            lines.append(f"{who} benchmarks, such as {first}: {text}")
        else:
            lines += [f"{whom(names, of)}: {text}" for text, names in texts.items()]
    return lines


def every_remark(result: Result, *, accepting: bool) -> list[Finding | str]:
    """All remarks on a benchmark, those on its verdict first, which ``accepting`` leaves out."""
    parts = () if accepting else (_grounds, _stale, _fewer, _promises, _ours_alone)
    texts = [text for part in parts for text in part(result)]
    return [*texts, *phrases.every_finding(result, without=_UNSAID)]


def _grounds(result: Result) -> list[str]:
    """Returns what the row's verdict rests on."""
    if result.verdict is Verdict.NEW and result.baseline is not None:
        return _named_notes(phrases.decisive(result, {Verdict.NEW}))
    if result.verdict is Verdict.DOES_NOT_FIT:
        return [broken_reason(result)]
    if result.verdict is Verdict.IMPROVED:
        return _gains(result)
    if result.verdict is not Verdict.INCOMPATIBLE:
        return []
    if result.reference.differs:
        changes = phrases.incomparable_changes(result)
        return [_few(changes)] if changes else []
    # A finding says that a step does another amount of work.
    others = [c for c in phrases.decisive(result, {Verdict.INCOMPATIBLE}) if not count_row(c.series.metric).of_work]
    return [phrases.open_text(c, values=True) for c in others if c.note or c.series.metric != "step_time"]


def undecided_lines(named: Sequence[tuple[str, Result]]) -> list[str]:
    """The metrics of benchmarks that are not red that could not be decided, what could be worse by most first."""
    found = [
        (name, each)
        for name, result in named
        if not (result.red or result.verdict is Verdict.INCOMPATIBLE)
        for each in phrases.decisive(result, {Verdict.INCONCLUSIVE})
    ]
    largest = sorted(found, key=lambda one: -(one[1].bound or 0.0))
    return [f"undecided: {name}: {phrases.open_text(each, values=True)}" for name, each in largest]


def _gains(result: Result) -> list[str]:
    """That the baseline is stale; beside another revision what improved."""
    if result.paired is None:
        timed = any(comparison.series.scale != "exact" for comparison in result.comparisons)  # counts are findings
        return [_STALE] if timed else []
    better = [c for c in phrases.decisive(result, {Verdict.IMPROVED}) if c.series.metric != "step_time"]
    if not better:
        return []
    # What became of counts is told by findings.
    texts = [c.series.metric if c.series.scale == "exact" else phrases.short_text(c) for c in better]
    return [f"improved: {_few(texts)}"]


def _stale(result: Result) -> list[str]:
    """Metrics that got better, where others keep the result from being called improved."""
    # To save what has regressed elsewhere would store the regression.
    if result.paired is not None or result.verdict in {Verdict.IMPROVED, Verdict.REGRESSED} or result.reference.differs:
        return []
    better = [
        c for c in phrases.decisive(result, {Verdict.IMPROVED}) if c.series.scale != "exact"
    ]  # counts are findings
    open_ones = phrases.decisive(result, {Verdict.INCONCLUSIVE})
    if not better or any(_worsening(comparison) > 0 for comparison in open_ones):
        return []
    return [f"{_few(list(map(phrases.short_text, better)))}: the baseline is stale, --ddpperf-save renews it"]


def _fewer(result: Result) -> list[str]:
    """Returns how to renew a baseline that has more counts, where it may be stored and nothing else says so.

    Less beside something that got worse may be part of the same fault.
    """
    fell = any(finding.code == "fewer_counted" for finding in result.findings)
    told = result.verdict is Verdict.NEW or (result.verdict is Verdict.IMPROVED and _grounds(result))
    useless = result.verdict in {Verdict.BROKEN, Verdict.REGRESSED, Verdict.INCONCLUSIVE} or result.paired is not None
    return [] if not fell or told or useless else [_FEWER]


def _worsening(comparison: Comparison) -> float:
    """The change of a metric, above 0 if it looks worse."""
    change = comparison.change or 0.0
    return change if comparison.series.better == "lower" else -change


def _promises(result: Result) -> list[str]:
    """Returns what is shown to be no worse, and looks better."""
    return [
        f"{phrases.short_text(comparison)} {note}"
        for comparison in phrases.decisive(result, {Verdict.UNCHANGED})
        # The note of what stands in for another metric is no promise.
        if result.verdict is Verdict.UNCHANGED or not comparison.series.rules.stands_in
        if comparison.series.scale != "exact" and (note := words_of_note(comparison.note))
    ]


def _ours_alone(result: Result) -> list[str]:
    """Metrics that the other revision does not have, although it ran."""
    ran = result.paired is not None and not result.paired.lacking
    return _named_notes(phrases.decisive(result, {Verdict.NEW})) if ran else []


def _named_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Each note once, with the metrics that it is of."""
    metrics = phrases.names_by_remark(
        (comparison.series.metric, words_of_note(comparison.note)) for comparison in comparisons
    )
    return [f"{phrases.named_metrics(names)}: {note}" for note, names in metrics.items() if note]
