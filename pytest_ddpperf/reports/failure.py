"""What a failing test says: the fact, where the baseline comes from, what else is known, how to accept it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Sequence

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.metrics.communication import EXPOSED, OVERHEAD
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import broken_reason, finding_text
from pytest_ddpperf.reports.lines import printable, words_of
from pytest_ddpperf.reports.phrases import (
    ACCEPT_PAIRED,
    change_text,
    commit_text,
    comparison_text,
    could_be,
    counts_origin,
    decisive,
    find,
    findings,
    incomparable_changes,
    names_by_remark,
    note_text,
    seen_in,
    short_text,
    without_derived,
)
from pytest_ddpperf.units import format_count, format_value

_MOVED = (Verdict.REGRESSED, Verdict.IMPROVED)
# The metrics that take a step apart, in words. Exposed communication is inside the phases.
_PARTS = {EXPOSED: "exposed communication", **{f"phase_{phase}": phase.replace("_", " ") for phase in PHASES}}
# What may be stored in answer to the failure, and the word for it. An undecided benchmark may hide a slowdown.
_ACCEPT = {
    Verdict.REGRESSED: "accept",
    Verdict.IMPROVED: "accept",
    Verdict.UNCHANGED: "accept",
    Verdict.OK: "accept",
    Verdict.NEW: "save one",
    Verdict.INCOMPATIBLE: "save one that is comparable",
}


def failures_text(failed: Sequence[tuple[Result, Verdict]], *, accept: str, failing: Collection[Verdict] = ()) -> str:
    """Why benchmarks fail their test: each by itself, then once what several have in common, with their names."""
    told = {result.name: _told(result, verdict, accept, failing) for result, verdict in failed}
    names = names_by_remark((name, detail) for name, (_, details) in told.items() for detail in details)
    common = {detail: whose for detail, whose in names.items() if len(whose) > 1}
    texts = [
        [*lines, *(f"  {detail}" for detail in details if detail not in common)] for lines, details in told.values()
    ]
    shared = [detail if len(whose) == len(told) else f"{words_of(whose)}: {detail}" for detail, whose in common.items()]
    texts.append([f"  {detail}" for detail in shared])
    return "\n\n".join("\n".join(map(printable, text)) for text in texts if text)


def reason_text(result: Result, verdict: Verdict, failing: Collection[Verdict]) -> str:
    """The first lines of why a benchmark fails its test, for reports; each metric with its note."""
    general, heads = _general(result, verdict), _heads(result, verdict, failing)
    if general:
        return "\n".join([general, *incomparable_changes(result)])
    return "\n".join("; ".join(filter(None, (comparison_text(one, seen_in(one)), note_text(one)))) for one in heads)


def _heads(result: Result, verdict: Verdict, failing: Collection[Verdict]) -> tuple[Comparison, ...]:
    """The metrics that fail the test, the worst first."""
    return tuple(sorted(decisive(result, {verdict, *failing}), key=lambda head: -head.verdict.severity))


def _told(result: Result, verdict: Verdict, accept: str, failing: Collection[Verdict]) -> tuple[list[str], list[str]]:
    """The first lines on a benchmark, and the details below them."""
    heads = _heads(result, verdict, failing)
    general = _general(result, verdict)
    lines = [comparison_text(comparison, seen_in(comparison)) for comparison in heads]
    if general:
        worse = decisive(result, {Verdict.REGRESSED}) if result.measurement.unfit else ()
        lines = [general, *(comparison_text(each, seen_in(each)) for each in worse), *incomparable_changes(result)]
    remarks = findings(result, without={"broken", "does_not_fit"})
    details = [
        _measured(result),
        *([] if general else _about_metrics(result, heads)),
        *(text for text in remarks if not general.endswith(text)),  # the first line
        *_cure(result, verdict, accept),
    ]
    return lines, list(dict.fromkeys(details))


def _cure(result: Result, verdict: Verdict, accept: str) -> list[str]:
    """How to accept what is meant; nothing is stored beside another revision."""
    if result.paired is None and result.measurement.unfit:
        return [f"accept: {accept} --ddpperf-force-save"]
    if result.paired is None:
        return [f"{_ACCEPT[verdict]}: {accept}"] if verdict in _ACCEPT else []
    return [f"accept: {ACCEPT_PAIRED}"] if verdict is Verdict.REGRESSED else []


def _general(result: Result, verdict: Verdict) -> str:
    """The first line where the benchmark as a whole fails, not one of its metrics; else empty."""
    if verdict is Verdict.BROKEN or result.measurement.unfit:
        return f"{verdict.value}: {broken_reason(result)}"
    if verdict is Verdict.NEW and result.baseline is None:
        return f"new: {result.origin}"
    lost = [finding_text(finding) for finding in result.findings if finding.code == "lost_metric"]
    if verdict is Verdict.INCOMPATIBLE and lost and not decisive(result, {Verdict.INCOMPATIBLE}):
        return f"incompatible: {lost[0]}"
    if verdict is Verdict.INCOMPATIBLE and result.differs:
        return f"incompatible: the baseline is not comparable: {', '.join(result.differs)}"
    return ""


def _measured(result: Result) -> str:
    measured, baseline = result.measurement, result.baseline
    parts = [
        *([] if measured.name in {measured.training, measured.mode} else [f"benchmark {measured.name}"]),
        f"strategy {measured.strategy}",
        *(f"{name} {value}" for name, value in measured.recipe.items()),
        *([] if measured.mode is None else [f"{measured.mode} scaling"]),
        format_count(measured.world_size, "rank"),
        measured.environment.backend,
    ]
    if measured.launches:
        steps = format_count(measured.plan.steps, "step")
        parts.append(f"{format_count(len(measured.launches), 'launch')} x {steps}")
    text = ", ".join(parts)
    if result.paired is not None and result.verdict is not Verdict.NEW:
        return f"{text}; {result.origin}"
    if baseline is None:
        return text
    origin = [environment_key(baseline.environment), baseline.date]
    if baseline.commit:
        origin.append(commit_text(baseline.commit, dirty=baseline.dirty))
    if baseline.counted is not None:
        origin.append(counts_origin(baseline))
    if result.pair is not None:
        origin.append(f"times side by side with {result.pair.revision}")
    return f"{text}; baseline {', '.join(origin)}"


def _about_metrics(result: Result, heads: tuple[Comparison, ...]) -> list[str]:
    """The notes of the failing metrics, each once, the other metrics that changed, and those that are undecided.

    Of several failing metrics a note names those that it concerns.
    """
    noted = names_by_remark((head.series.metric, note) for head in heads if (note := note_text(head)))
    notes = [note if len(heads) == 1 else f"{words_of(metrics)}: {note}" for note, metrics in noted.items()]
    return [*notes, *_moved(result, heads), *_undecided(result, heads)]


def _moved(result: Result, heads: tuple[Comparison, ...]) -> list[str]:
    """The other metrics that changed: hints at the cause."""
    told = {head.series.metric for head in heads}
    parts = parts_text(result) if "step_time" in told else ""
    told |= {*_PARTS, OVERHEAD} if parts or not _parts_explain(result) else set()
    moved = without_derived([c for c in result.comparisons if c in heads or c.verdict in _MOVED])
    lines = [parts] if parts else []
    for comparison in moved:
        if comparison.series.metric in told or comparison.series.scale == "exact":
            continue  # of the counts those that failed are among the heads, and those that fell among the findings
        line = comparison_text(comparison)
        if comparison.series.metric == "straggler_skew" and comparison.verdict is Verdict.REGRESSED:
            line += f": {_slowest(result.measurement)}"
        lines.append(line)
    return lines


def parts_text(result: Result) -> str:
    """Which parts of a step changed together with its time, and which did not, as far as their intervals tell.

    A part has changed if the interval of its change lies on one side of 0 and the change exceeds what the tolerance of
    the step time comes to. The part that changed most comes first. A part is unchanged if its whole interval lies
    within that limit. Nothing is said of other parts, nor of those that are below the limit on both sides. Nothing is
    said at all where the phases do not add up to the change of the step time.
    """
    step = find(result, "step_time")
    if step is None or step.baseline is None or not _parts_explain(result):
        return ""
    limit = step.tolerance * step.baseline
    found = {words: find(result, metric) for metric, words in _PARTS.items()}
    parts = {
        words: part
        for words, part in found.items()
        if part and part.baseline is not None and max(abs(part.baseline), abs(part.series.value)) > limit
    }
    moved = {words: part for words, part in parts.items() if _has_changed(part, limit)}
    largest_first = sorted(moved, key=lambda words: -abs(moved[words].change or 0.0))
    changed = [f"{words} {change_text(moved[words])}" for words in largest_first]
    unchanged = [words for words, part in parts.items() if _is_unchanged(part, limit)]
    within = f"{'each ' if len(unchanged) > 1 else ''}within {format_value(limit, 's')}"
    return "; ".join([*changed, *([f"{words_of(unchanged)} unchanged, {within}"] if unchanged else [])])


def _parts_explain(result: Result) -> bool:
    """Whether phases, which one launch shows, add up to about the change of the step time, which all launches show.

    Their sum has to lie in its interval, widened by its own width on both sides, and on its side of 0: that of all, or
    of those whose own interval lies on one side of 0, for one uncertain phase is no reason to hide a certain one.
    """
    phases = [phase for name in PHASES if (phase := find(result, f"phase_{name}")) and phase.change is not None]
    step = find(result, "step_time")
    if step is None or not phases:
        return True
    if step.baseline is None or step.change is None or (interval := step.change_interval) is None:
        return False
    certain = [each for each in phases if (own := each.change_interval) is not None and not own.low <= 0 <= own.high]
    width = interval.high - interval.low
    sums = [sum(each.change or 0.0 for each in some) / step.baseline for some in (phases, certain) if some]
    return any(share * step.change >= 0 and interval.low - width <= share <= interval.high + width for share in sums)


def _has_changed(part: Comparison, limit: float) -> bool:
    change, interval = part.change, part.change_interval
    return (
        change is not None and interval is not None and abs(change) > limit and not interval.low <= 0 <= interval.high
    )


def _is_unchanged(part: Comparison, limit: float) -> bool:
    interval = part.change_interval
    return interval is not None and -limit <= interval.low and interval.high <= limit


def _undecided(result: Result, heads: tuple[Comparison, ...]) -> list[str]:
    """The gated metrics that were still open when the failure was known."""
    undecided = [comparison for comparison in decisive(result, {Verdict.INCONCLUSIVE}) if comparison not in heads]
    figures = [short_text(c) + (f" {could_be([c])}" if c.bound is not None else "") for c in undecided]
    others = [": ".join(filter(None, (text, note_text(c)))) for text, c in zip(figures, undecided, strict=True)]
    return [f"undecided: {'; '.join(others)}"] if others else []


def _slowest(measurement: Measurement) -> str:
    """Which rank was the slowest (by its median step) in most launches."""
    slowest = Counter(
        max(launch.ranks, key=lambda rank: statistics.median(rank.step_times)).rank for launch in measurement.launches
    )
    if not slowest:
        return "no launch tells which rank"
    rank, times = slowest.most_common(1)[0]
    return f"rank {rank} was the slowest in {times} of {format_count(len(measurement.launches), 'launch')}"
