"""The verdict on the whole run, and remarks on the verdicts of benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_ddpperf.records.counts import count_row
from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.causes import parts_text
from pytest_ddpperf.reports.findings import broken_reason, finding_text, words_of_note
from pytest_ddpperf.reports.lines import names_of, whom
from pytest_ddpperf.units import format_change, format_count, format_percent, signed_percent, span

if TYPE_CHECKING:
    from pytest_ddpperf.reports.documents.entries import Run
    from pytest_ddpperf.stats.suites import CommonChange

_TELLING = 0.4  # the width of an interval of the common change beyond which it says nothing
PASSED, FAILED = "passed", "failed"
_TOLD, _TOLD_OF_RED = 3, 2  # metrics of one benchmark; the failure of a red one has all of them
_EACH = 3  # benchmarks whose figures are all told, of one kind of remark
_UNSAID = APART | {"broken", "does_not_fit", "target_met", "suspected", "effective_batch_size", "told_late", "unpaired"}
"""Findings that change nothing for a reader of the summary; failures and the JSON file have them."""
_FIGURE = re.compile(r"\d[\d.,]*")
_STALE = ": the baseline is stale, --ddpperf-save renews it if that is intended"


def headline(results: Sequence[Result], accepted: Collection[str] = ()) -> str:
    """The verdict on the whole: ``1 regressed, 24 passed | against 3f2a1c0 (main)``.

    What neither got worse nor passed is named by its verdict. ``accepted`` are the tests whose results became the
    baseline.
    """
    if not results:
        return "no benchmark was judged"
    return " | ".join([kinds_text(results, accepted), *_against(results)])


def kinds_text(results: Sequence[Result], accepted: Collection[str] = ()) -> str:
    """Returns how many benchmarks are of each kind, the worst first."""
    alike: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: -one.severity):
        alike.setdefault(kind_of(result), []).append(result)
    return ", ".join(f"{len(those)} {kind}{_more(kind, those, accepted)}" for kind, those in alike.items())


def kind_of(result: Result) -> str:
    """Returns what a benchmark counts as."""
    if result.verdict in {Verdict.REGRESSED, Verdict.BROKEN} or not result.failure:
        return PASSED if result.verdict in GREEN else result.verdict.value.replace("_", " ")
    return FAILED


def _more(kind: str, those: Sequence[Result], accepted: Collection[str]) -> str:
    """Returns what the number of benchmarks of one kind does not say, in brackets."""
    told: list[str] = []
    if kind == FAILED:
        told = [one.verdict.value.replace("_", " ") for one in those]
    elif kind == Verdict.REGRESSED.value:
        told = ["accepted" for one in those if one.test in accepted]
    elif kind == Verdict.NEW.value:
        told = [new_text(one) for one in those]
    elif kind == Verdict.INCOMPATIBLE.value:
        told = [next(iter((*one.reference.counted_differs, *one.reference.differs)), "") for one in those]
    numbers = Counter(filter(None, told))
    texts = (word if number == len(those) else f"{number} {word}" for word, number in numbers.items())
    return f" ({', '.join(texts)})" if numbers else ""


def new_text(result: Result) -> str:
    """Returns what a new benchmark is compared with: ``no times stored; counts same``."""
    if result.paired is not None:
        return "not in the other revision" if result.paired.lacking else ""
    counts = phrases.counts_words(result)
    return f"no times stored; {counts}" if counts else "no baseline" if result.baseline is None else ""


def _against(results: Sequence[Result]) -> list[str]:
    """Returns what benchmarks are compared with, if with anything."""
    revisions = dict.fromkeys(one.paired.named.removeprefix("revision ") for one in results if one.paired is not None)
    if revisions:
        return [f"against {' and '.join(revisions)}"]
    stored = [one.baseline for one in results if one.baseline is not None and one.verdict is not Verdict.NEW]
    commits = {phrases.commit_text(one.commit, dirty=one.dirty) for one in stored if one.commit}
    of = commits.pop() if len(commits) == 1 else span(str, (one.date for one in stored)) if stored else ""
    return [f"against the baseline of {of}"] if of else []


def ruled_out(results: Iterable[Result]) -> str:
    """The slowdown that none of those that passed has; empty if it is not known of all whose times are judged."""
    passed = (phrases.find(one, "step_time") for one in results if kind_of(one) == PASSED)
    steps = [step for step in passed if step is not None and step.gated]
    bounds = [max(step.bound, 0.0) for step in steps if step.bound is not None]
    return f"none slower by more than {format_percent(max(bounds))}" if bounds and len(bounds) == len(steps) else ""


def facts_line(run: Run) -> str:
    """The code, the day, the machines and what benchmarks are compared with, in one line."""
    branch = f" of {run.branch}" if run.branch else ""
    commit = f"commit {phrases.commit_text(run.commit, dirty=run.dirty)}{branch}" if run.commit else ""
    machines = dict.fromkeys(phrases.environment_text(result.measurement.environment) for result in run.results)
    against = "; ".join(filter(None, dict.fromkeys(result.reference.origin for result in run.results)))
    return "; ".join(filter(None, (commit, run.date, *machines, against and f"compared with {against}")))


def common_text(common: CommonChange | None) -> list[str]:
    """The change that all tests have in common, if it is a slowdown or known well enough."""
    if common is None or not (common.slower or common.interval.high - common.interval.low <= _TELLING):
        return []
    ends = " .. ".join(map(signed_percent, (common.interval.low, common.interval.high)))
    change = f"{format_change(common.change)} [{phrases.confidence_text(common.interval.confidence)} {ends}]"
    return [f"all {common.tests} tests together: step time {change}{' slower' if common.slower else ''}"]


def overall_lines(results: Sequence[Result]) -> list[str]:
    """What holds for all benchmarks: how many targets were missed and met, and which slowdowns are ruled out."""
    codes = Counter(finding.code for result in results for finding in result.findings)
    numbers = {"missed": codes["target_missed"], "inconclusive": codes["target_open"], "met": codes["target_met"]}
    told = [f"{number} {word}" for word, number in numbers.items() if number]
    targets = [f"{format_count(sum(numbers.values()), 'target')}: {', '.join(told)}"] if told else []
    bound = ruled_out(results)
    return [*targets, *([f"passed: {bound} (one-sided 95 % confidence for each)"] if bound else [])]


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


def red_lines(result: Result) -> list[str]:
    """Returns why a benchmark is red; if no count says it, the parts of a step that changed come first."""
    lines, parts = reasons(result), parts_text(result)
    counted = any(each.series.scale == "exact" for each in phrases.decisive(result, {Verdict.REGRESSED}))
    return [*([f"cause: {parts}"] if parts and not counted else []), *lines]


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
        code = _FIGURE.sub("", text) if code == "read_again" else code  # files have no codes
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
    parts = () if accepting else (_grounds, _gains, _without_reference)
    texts = [text for part in parts for text in part(result)]
    return [*texts, *phrases.every_finding(result, without=_UNSAID)]


def _grounds(result: Result) -> list[str]:
    """Returns what the row's verdict rests on."""
    if result.verdict is Verdict.DOES_NOT_FIT:
        return [broken_reason(result)]
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
    """Returns what improved, and that the baseline is stale where it may be renewed; a row shows the step time."""
    better = phrases.decisive(result, {Verdict.IMPROVED})
    told = [c for c in better if result.paired is None or c.series.metric != "step_time"]
    if not told or result.verdict in {Verdict.NEW, Verdict.INCOMPATIBLE}:
        return []
    # What became of counts is told by findings.
    texts = [c.series.metric if c.series.scale == "exact" else phrases.short_text(c) for c in told]
    return [f"improved: {_few(texts)}{_STALE * (result.paired is None and result.verdict in GREEN)}"]


def _without_reference(result: Result) -> list[str]:
    """Each reason why the reference lacks metrics, with these; none if it has nothing of the benchmark."""
    new = result.verdict is Verdict.NEW and result.baseline is not None
    compared = new if result.paired is None else not result.paired.lacking
    lacking = () if not compared else phrases.decisive(result, {Verdict.NEW})
    metrics = phrases.names_by_remark((each.series.metric, words_of_note(each.note)) for each in lacking)
    return [f"{phrases.named_metrics(names)}: {note}" for note, names in metrics.items() if note]
