"""What the benchmarks of a session came to: how many have each verdict, and the change that their tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.reports.count_changes import counts_words
from pytest_ddpperf.reports.phrases import commit_text, confidence_text, find
from pytest_ddpperf.stats.suites import CommonChange, common_change
from pytest_ddpperf.units import format_change, format_count, format_percent, signed_percent, span

_TELLING = 0.4  # the width of an interval of the common change beyond which it says nothing
PASSED, FAILED = "passed", "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overall:
    """A session in figures: it gates nothing."""

    verdicts: Mapping[str, int]  # how many benchmarks have each, 0 of them too
    common_change: CommonChange | None  # of the step times of tests


def overall(results: Sequence[Result]) -> Overall:
    """The figures of all results together."""
    numbers = Counter(result.verdict for result in results)
    paired: dict[str, list[float]] = {}
    for result in results:
        step = find(result, "step_time")
        if step is not None and step.change is not None and step.paired:
            paired.setdefault(result.test, []).append(step.change)
    verdicts = {verdict.value: numbers[verdict] for verdict in Verdict}
    return Overall(verdicts=verdicts, common_change=common_change([*paired.values()]))


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
    numbers = Counter(filter(None, told))
    texts = (word if number == len(those) else f"{number} {word}" for word, number in numbers.items())
    return f" ({', '.join(texts)})" if numbers else ""


def new_text(result: Result) -> str:
    """Returns what a new benchmark is compared with: ``no times stored; counts same``."""
    if result.paired is not None:
        return "not in the other revision" if result.paired.lacking else ""
    counts = counts_words(result)
    return f"no times stored; {counts}" if counts else "no baseline" if result.baseline is None else ""


def _against(results: Sequence[Result]) -> list[str]:
    """Returns what benchmarks are compared with, if with anything."""
    revisions = dict.fromkeys(one.paired.named.removeprefix("revision ") for one in results if one.paired is not None)
    if revisions:
        return [f"against {' and '.join(revisions)}"]
    stored = [one.baseline for one in results if one.baseline is not None and one.verdict is not Verdict.NEW]
    commits = {commit_text(one.commit, dirty=one.dirty) for one in stored if one.commit}
    of = commits.pop() if len(commits) == 1 else span(str, (one.date for one in stored)) if stored else ""
    return [f"against the baseline of {of}"] if of else []


def ruled_out(results: Iterable[Result]) -> str:
    """The slowdown that none of those that passed has; empty if it is not known of all whose times are judged."""
    steps = [step for one in results if kind_of(one) == PASSED and (step := find(one, "step_time")) and step.gated]
    bounds = [max(step.bound, 0.0) for step in steps if step.bound is not None]
    return f"none slower by more than {format_percent(max(bounds))}" if bounds and len(bounds) == len(steps) else ""


def common_text(results: Sequence[Result], *, slower: bool) -> list[str]:
    """The change that all tests have in common, if it is known well enough; with ``slower`` only a slowdown."""
    common = overall(results).common_change
    if common is None or not (common.slower or (common.interval.high - common.interval.low <= _TELLING and not slower)):
        return []
    ends = " .. ".join(map(signed_percent, (common.interval.low, common.interval.high)))
    change = f"{format_change(common.change)} [{confidence_text(common.interval.confidence)} {ends}]"
    return [f"all {common.tests} tests together: step time {change}{' slower' if common.slower else ''}"]


def overall_lines(results: Sequence[Result]) -> list[str]:
    """What holds for all benchmarks: how many targets were missed and met, and which slowdowns are ruled out."""
    codes = Counter(finding.code for result in results for finding in result.findings)
    numbers = {"missed": codes["target_missed"], "inconclusive": codes["target_open"], "met": codes["target_met"]}
    told = [f"{number} {word}" for word, number in numbers.items() if number]
    targets = [f"{format_count(sum(numbers.values()), 'target')}: {', '.join(told)}"] if told else []
    bound = ruled_out(results)
    return [*targets, *([f"passed: {bound} (one-sided 95 % confidence for each)"] if bound else [])]
