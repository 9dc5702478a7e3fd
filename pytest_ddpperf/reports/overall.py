"""What the benchmarks of a session came to: verdicts, the change that their tests share, what pays, what scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.side_by_side import SideBySide
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.reports.count_changes import counts_words
from pytest_ddpperf.reports.diagnosis import CAUSES
from pytest_ddpperf.reports.names import curve_of
from pytest_ddpperf.reports.phrases import commit_text, confidence_text, find, first_of
from pytest_ddpperf.stats.intervals import possible
from pytest_ddpperf.stats.suites import CommonChange, common_change
from pytest_ddpperf.units import format_change, format_count, format_percent, format_values, signed_percent, span

if TYPE_CHECKING:
    from pytest_ddpperf.analysis.scaling import LawFit

_MOST = 5  # comparisons, and curves, that the summary tells of
_LOSES = 0.05  # of the ideal: a smaller loss needs no explanation
_TOLD = 0.05  # of the loss: a smaller part of it is not told
_FEW = 2  # ways that none beats: more say nothing
LOST_TO = {**CAUSES, "computing": "slower computing", "cores": "shared cores", "unclear": "what no instrument sees"}
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
    elif kind == Verdict.INCOMPATIBLE.value:
        told = [next(iter((*one.reference.counted_differs, *one.reference.differs)), "") for one in those]
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


def what_pays(results: Sequence[Result]) -> list[str]:
    """A line for each comparison of a run."""
    lines = [_line(test, compared) for test, compared in _comparisons(results)]
    return first_of(list(filter(None, lines)), _MOST, " comparisons")


def _comparisons(results: Sequence[Result]) -> list[tuple[str, SideBySide]]:
    """The comparisons of each test, with the base first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.measurement.over is not None:
            groups.setdefault((result.test, result.measurement.over), []).append(result)
    return [
        (test, SideBySide(over=over, names=tuple(one.name for one in all_of), measurements=measured))
        for (test, over), others in groups.items()
        if len({one.name for one in others}) == len(others)  # else the test compares several times
        and (all_of := [*(one for one in results if (one.test, one.name) == (test, over)), *others])
        and (measured := tuple(one.measurement for one in all_of))
    ]


def _line(test: str, compared: SideBySide) -> str:
    """Returns what pays in one comparison; several names where their intervals do not tell them apart."""
    known = len(compared.compared)
    told = [
        f"{word} {' or '.join(names)}"
        for word, names in (("fastest", compared.fastest), ("least memory", compared.leanest))
        if 0 < len(names) < known
    ]
    if len(told) > 1 and len(compared.unbeaten) <= _FEW < known:
        told.append(f"beaten in both by none: {' and '.join(compared.unbeaten)}")
    return f"{test.partition('::')[2]}: {'; '.join(told)}" if told else ""


def how_it_scales(results: Sequence[Result]) -> list[str]:
    """A line for each scaling curve: a word for each point, the serial fraction, where one more rank stops to pay."""
    curves: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.measurement.mode is not None:
            curves.setdefault((result.test, curve_of(result.measurement.name)), []).append(result)
    lines = [
        line
        for (test, _), points in curves.items()
        for line in (_scaling_line(test, points), _loss_line(test, points))
        if line
    ]
    return lines[: 2 * _MOST]


def _scaling_line(test: str, points: Sequence[Result]) -> str:
    """Returns what one curve says; empty if no point beyond the first has cores or GPUs of its own."""
    from pytest_ddpperf.analysis.scaling import ScalingPoint, fit_law, status, stops_paying

    base, *others = sorted((point.measurement for point in points), key=lambda point: point.world_size)
    scaled = [point for point in others if {"speedup", "scaling_efficiency"} <= {one.metric for one in point.series}]
    own = [point for point in scaled if not point.environment.oversubscribed]
    if not own:
        return ""
    ranks = base.world_size
    fit = fit_law(
        [ScalingPoint(ranks=point.world_size / ranks, speedups=point["speedup"].samples) for point in own],
        "amdahl" if base.mode == "strong" else "gustafson",
    )
    words = ((status(max(0.0, p["scaling_efficiency"].value), p["speedup"].value), p.world_size) for p in own)
    told = ", ".join(
        f"{word} with {' and '.join(str(size) for _, size in alike)}" for word, alike in groupby(words, itemgetter(0))
    )
    pays = stops_paying(fit, ranks)
    end = "" if pays is None else f"; from {format_count(pays, 'rank')} on, one more adds less than half a rank's work"
    left = [str(point.world_size) for point in others if point.environment.oversubscribed]
    out = f"; without {' and '.join(left)} ranks, which share cores or GPUs" if left else ""
    return f"{test.partition('::')[2]}: {told} ranks; {_serial_text(fit)}{end}{out}"


def _loss_line(test: str, points: Sequence[Result]) -> str:
    """Returns what the largest group loses, in seconds by cause; empty if it loses little, or no cause is known."""
    from pytest_ddpperf.analysis.diagnosis import diagnosis_of
    from pytest_ddpperf.analysis.losses import scaling_loss

    base, *others = sorted((point.measurement for point in points), key=lambda point: point.world_size)
    scaled = [point for point in others if "scaling_efficiency" in {one.metric for one in point.series}]
    if not scaled or scaled[-1]["scaling_efficiency"].value > 1 - _LOSES:
        return ""
    last = scaled[-1]
    known = diagnosis_of(base), diagnosis_of(last)
    if known[0] is None or known[1] is None:
        return ""
    lost = scaling_loss(known[0], known[1], last["scaling_efficiency"].value)
    told = [(LOST_TO[kind], seconds) for kind, seconds in lost.kinds.items() if seconds > _TOLD * lost.seconds]
    whole, step, *each = format_values([lost.seconds, lost.step, *(seconds for _, seconds in told)], "s")
    causes = ", ".join(f"{words} {text}" for (words, _), text in zip(told, each, strict=True))
    return f"{test.partition('::')[2]}: {last.world_size} ranks lose {whole} of a step of {step}: {causes}"


def _serial_text(fit: LawFit) -> str:
    law = "Amdahl" if fit.law == "amdahl" else "Gustafson"
    interval = possible(fit.interval, 0.0, 1.0)
    ends = f" [{100 * interval.low:.1f} .. {100 * interval.high:.1f}]" if interval is not None else ""
    return f"serial fraction {format_percent(min(max(0.0, fit.serial), 1.0))}{ends} ({law})"
