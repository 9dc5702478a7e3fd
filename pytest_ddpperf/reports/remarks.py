"""Remarks on a verdict, beside the summary's table: what it rests on, and what got better beside it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.counts import count_row
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.count_changes import counts_words
from pytest_ddpperf.reports.findings import broken_reason, finding_text, words_of_note
from pytest_ddpperf.reports.gathered import UNSAID, Remark, gathered, remark_of
from pytest_ddpperf.reports.phrases import (
    ACCEPT_PAIRED,
    could_be,
    decisive,
    every_finding,
    incomparable_changes,
    named_metrics,
    names_by_remark,
    note_text,
    seen_in,
    short_text,
)
from pytest_ddpperf.reports.table import RowNote

_TOLD = 3  # metrics of one benchmark
_MOST_RED = 10  # benchmarks of which it is told why they are red
_STALE = "better than its baseline by more than the tolerance: the baseline is stale, --ddpperf-save renews it"
_FEWER = "the baseline has more counts: if less is meant, --ddpperf-save renews it"
_ACCEPT_STORED = "each failed test tells the cause, and the command that accepts what is meant"


def unpaired_notes(results: Sequence[Result]) -> list[str]:
    """Why times of some benchmarks are compared with stored ones alone, each reason once."""
    findings = (finding for result in results for finding in result.findings if finding.code == "unpaired")
    return list(dict.fromkeys(map(finding_text, findings)))


def red_notes(named: Sequence[tuple[str, Result]]) -> list[str | RowNote]:
    """Why benchmarks are red, the worst first, and what to do."""
    red = sorted(((name, result) for name, result in named if result.red), key=lambda one: -one[1].severity)
    told = names_by_remark((name, (result.verdict.value, red_text(result, result.verdict))) for name, result in red)
    notes: list[str | RowNote] = [RowNote(text, tuple(names), before) for (before, text), names in told.items()]
    more = sum(len(names) for names in list(told.values())[_MOST_RED:])
    notes = [*notes[:_MOST_RED], *([f"and {more} more"] if more else [])]
    worse = [result for _, result in red if result.verdict is Verdict.REGRESSED]
    if worse:
        notes.append(f"what to do: {_ACCEPT_STORED if worse[0].paired is None else ACCEPT_PAIRED}")
    return notes


def red_text(result: Result, verdict: Verdict) -> str:
    """Why a benchmark fails with a verdict: what could not be measured, or the metrics that have it."""
    if result.verdict is Verdict.BROKEN or result.measurement.unfit:
        return broken_reason(result).partition("\n")[0]
    if result.failure and verdict is not Verdict.REGRESSED:
        return result.failure.partition("\n")[0].removeprefix(f"{verdict.value}: ")
    worse = decisive(result, {verdict})
    counts, others = ([c for c in worse if (c.series.scale == "exact") is exact] for exact in (True, False))
    shown = _TOLD - 1  # counts, so that a time is among those that are told
    worse = (*counts[:shown], *others, *counts[shown:])
    return _few(list(map(_worse_text, worse))) or ", ".join(result.differs)


def _worse_text(metric: Comparison) -> str:
    """What became of a metric that got worse; of what both sides share, why its change does not show it."""
    if metric.note is not None and metric.note.code == "not_the_code":
        return f"{metric.series.metric} {finding_text(metric.note)}"
    return ", ".join(filter(None, (short_text(metric), seen_in(metric))))


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - _TOLD
    return "; ".join([*texts[:_TOLD], *([f"and {more} more"] if more > 0 else [])])


def notes_of(named: Sequence[tuple[str, Result]], *, accepting: bool) -> list[RowNote]:
    """All remarks on benchmarks, each once; ``accepting`` leaves out those on verdicts."""
    return gathered(
        (name, remark)
        for name, result in named
        for remark in (
            *([] if accepting else verdict_remarks(result)),
            *(remark_of(finding) for finding in every_finding(result, without=UNSAID)),
        )
    )


def verdict_remarks(result: Result) -> list[Remark]:
    """What a row's verdict rests on, and what got better beside it, where the row itself does not show it."""
    undecided = [] if result.verdict is Verdict.INCOMPATIBLE else _open(decisive(result, {Verdict.INCONCLUSIVE}))
    return [*_grounds(result), *undecided, *_stale(result), *_fewer(result), *_promises(result), *_ours_alone(result)]


def _grounds(result: Result) -> list[Remark]:
    """What the row's verdict rests on."""
    if result.verdict is Verdict.NEW:
        return _new_remarks(result)
    if result.verdict is Verdict.DOES_NOT_FIT:
        return [Remark(text=broken_reason(result))]
    if result.verdict is Verdict.IMPROVED:
        return _gains(result)
    if result.verdict is Verdict.INCOMPATIBLE and result.differs:
        counts = counts_words(result)
        text = f"{'times of ' * bool(counts)}the baseline {'are' if counts else 'is'} not comparable: "
        text += "; ".join(filter(None, (", ".join(result.differs), counts, "--ddpperf-save stores one that is")))
        changes = incomparable_changes(result)
        return [Remark(text=text), *([Remark(text=_few(changes))] if changes else [])]
    if result.verdict is not Verdict.INCOMPATIBLE:
        return []
    # A finding says that a step does another amount of work.
    return _open([c for c in decisive(result, {Verdict.INCOMPATIBLE}) if not count_row(c.series.metric).of_work])


def _open(comparisons: Sequence[Comparison]) -> list[Remark]:
    """Metrics that could not be judged, and why; of the step time only what its row does not show."""
    remarks = []
    for comparison in comparisons:
        of_step, verdict = comparison.series.metric == "step_time", comparison.verdict
        if comparison.note or not of_step:
            shown = "step_time" if of_step else short_text(comparison)
            undecided = could_be([comparison]) if verdict is Verdict.INCONCLUSIVE else verdict.value
            text = f"{shown} {undecided}: {words_of_note(comparison.note)}".removesuffix(": ")
            remarks.append(_noted(comparison, text, verdict=verdict.value))
    return remarks


def _noted(comparison: Comparison, text: str, verdict: str = "") -> Remark:
    code, facts = (comparison.note.code, comparison.note.facts) if comparison.note else ("", {})
    metrics, undecided = (comparison.series.metric,), (comparison,) * (comparison.verdict is Verdict.INCONCLUSIVE)
    return Remark(text=text, code=code, facts=facts, metrics=metrics, verdict=verdict, undecided=undecided)


def _gains(result: Result) -> list[Remark]:
    """That the baseline is stale; beside another revision what improved."""
    if result.paired is None:
        timed = any(comparison.series.scale != "exact" for comparison in result.comparisons)  # counts are findings
        return [Remark(text=_STALE)] if timed else []
    better = [c for c in decisive(result, {Verdict.IMPROVED}) if c.series.metric != "step_time"]
    if not better:
        return []
    # What became of counts is told by findings.
    texts = [c.series.metric if c.series.scale == "exact" else short_text(c) for c in better]
    metrics = tuple(comparison.series.metric for comparison in better)
    return [Remark(text=f"improved: {_few(texts)}", code="improved", metrics=metrics, verdict="improved")]


def _stale(result: Result) -> list[Remark]:
    """Metrics that got better, where others keep the result from being called improved."""
    # To save what has regressed elsewhere would store the regression.
    if result.paired is not None or result.verdict in {Verdict.IMPROVED, Verdict.REGRESSED} or result.differs:
        return []
    better = [c for c in decisive(result, {Verdict.IMPROVED}) if c.series.scale != "exact"]  # counts are findings
    open_ones = decisive(result, {Verdict.INCONCLUSIVE})
    if not better or any(_worsening(comparison) > 0 for comparison in open_ones):
        return []
    text = f"{_few(list(map(short_text, better)))}: the baseline is stale, --ddpperf-save renews it"
    metrics = tuple(comparison.series.metric for comparison in better)
    return [Remark(text=text, code="stale", metrics=metrics)]


def _fewer(result: Result) -> list[Remark]:
    """How to renew a baseline that has more counts, where it may be stored and nothing else says so.

    Less beside something that got worse may be part of the same fault.
    """
    fell = any(finding.code == "fewer_counted" for finding in result.findings)
    told = result.verdict in {Verdict.IMPROVED, Verdict.NEW} and _grounds(result)
    useless = result.verdict in {Verdict.BROKEN, Verdict.REGRESSED, Verdict.INCONCLUSIVE} or result.paired is not None
    return [] if not fell or told or useless else [Remark(text=_FEWER)]


def _worsening(comparison: Comparison) -> float:
    """The change of a metric, above 0 where it looks worse."""
    change = comparison.change or 0.0
    return change if comparison.series.better == "lower" else -change


def _promises(result: Result) -> list[Remark]:
    """What is shown to be no worse, and looks better."""
    return [
        _noted(comparison, f"{short_text(comparison)} {note}")
        for comparison in decisive(result, {Verdict.UNCHANGED})
        # The note of what stands in for another metric is no promise.
        if result.verdict is Verdict.UNCHANGED or not comparison.series.rules.stands_in
        if (note := note_text(comparison))
    ]


def _new_remarks(result: Result) -> list[Remark]:
    if result.baseline is not None:
        return _named_notes(decisive(result, {Verdict.NEW}))
    counts = counts_words(result)
    of = f"no baseline of times, {counts}" if counts else "no baseline"
    return [Remark(text=f"{of}; --ddpperf-save stores one")] if result.paired is None else []


def _ours_alone(result: Result) -> list[Remark]:
    """Metrics that the other revision does not have, although it ran."""
    ran = result.paired is not None and not result.paired.lacking
    return _named_notes(decisive(result, {Verdict.NEW})) if ran else []


def _named_notes(comparisons: Sequence[Comparison]) -> list[Remark]:
    """Each note once, with the metrics that it is of."""
    metrics = names_by_remark((comparison.series.metric, words_of_note(comparison.note)) for comparison in comparisons)
    return [Remark(text=f"{named_metrics(names)}: {note}") for note, names in metrics.items() if note]
