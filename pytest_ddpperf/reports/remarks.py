"""The verdict on the whole run, and notes on the verdicts of benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.messages import grouped
from pytest_ddpperf.records.counts import count_row
from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.causes import parts_text
from pytest_ddpperf.reports.findings import broken_reason, finding_text
from pytest_ddpperf.reports.lines import some_of, whom, with_names
from pytest_ddpperf.units import format_change, format_count, format_percent, signed_percent, span

if TYPE_CHECKING:
    from pytest_ddpperf.reports.documents.entries import Run
    from pytest_ddpperf.reports.outputs import Outputs
    from pytest_ddpperf.stats.intervals import CommonChange

_TELLING = 0.4  # a wider interval of the common change is not shown
STORED_TIMES = "stored times"
_TOLD = 3  # metrics of one benchmark
_EACH = 3  # benchmarks; if more have one kind of remark, only one's figures are shown
_UNSAID = APART | {"broken", "target_met", "suspected", "effective_batch_size", "told_late", "measured_beside"}
"""Codes of findings that the summary omits, as they add nothing to it; the JSON file has them."""
_FIGURE = re.compile(r"\d[\d.,]*")
_STALE = ": the baseline is stale; renew it with --ddpperf-save if the improvement is intended"
_PLACE = re.compile(r"(?:^|[ ,])at (\S+:\d+) in |, through (\S+:\d+) in ")


def headline(run: Run | Outputs, accepted: Collection[str] = ()) -> str:
    """Returns the verdict on the run: ``FAILED: 1 regressed, 24 passed | against 3f2a1c0 (main)``.

    Benchmarks are counted by verdict. ``accepted``: the tests whose results became the baseline.
    """
    results, failed = run.results, any(result.failure for result in run.results)
    if not results and not run.unmeasured:
        return "no benchmark was judged"
    verdict = "FAILED" if run.unmeasured or failed else "INCOMPLETE" if run.interrupted else "PASSED"
    kinds = str(len(results)) if verdict == "PASSED" and all(map(passed, results)) else kinds_text(results, accepted)
    if run.unmeasured and not failed:
        told = f"{format_count(len(run.unmeasured), 'test')} could not be measured"
        kinds = ", ".join(filter(None, (told, kinds)))
    against = [one.paired.named.removeprefix("revision ") for one in results if one.paired is not None]
    stored = [one.baseline for one in results if one.baseline is not None and one.verdict is not Verdict.NEW]
    if not against and stored:
        commits = {phrases.commit_text(one.commit, dirty=one.dirty) for one in stored if one.commit}
        against = [f"the baseline of {commits.pop() if len(commits) == 1 else span(str, (one.date for one in stored))}"]
    line = f"{verdict}: {kinds}"
    return f"{line} | against {' and '.join(dict.fromkeys(against))}" if against else line


def kinds_text(results: Sequence[Result], accepted: Collection[str] = ()) -> str:
    """Returns the number of benchmarks of each kind, such as ``new (no baseline)``, the worst verdict first."""
    kinds = Counter[str]()
    for result in sorted(results, key=lambda one: -one.severity):
        verdict, reference, why = result.verdict, result.reference, ""
        word = verdict_word(result, accepted).replace("_", " ")
        if passed(result):
            word = "passed"
        elif verdict is Verdict.NEW and result.paired is not None:
            why = "not measured in the other revision" * bool(result.paired.lacking)
        elif verdict is Verdict.NEW:
            counts = phrases.counts_text(result, brief=True).partition(",")[0]
            why = f"no times stored; counts {counts}" if counts else "no baseline" * (result.baseline is None)
        elif verdict is Verdict.INCOMPATIBLE:
            why = next(iter((*reference.counted_differs, *reference.differs)), "")
        elif not (result.failure or word.endswith(")") or verdict is Verdict.DOES_NOT_FIT):
            why = "does not fail"
        kinds[f"{word} ({why})" if why else word] += 1
    return ", ".join(
        f"{number} {kind if number == 1 else kind.replace('does', 'do')}" for kind, number in kinds.items()
    )


def passed(result: Result) -> bool:
    """Returns whether a benchmark counts as passed."""
    return result.verdict in GREEN and not result.failure


def verdict_word(result: Result, accepted: Collection[str]) -> str:
    """Returns the verdict as text: ``ok``, ``regressed (accepted)``, or ``failed (ok)`` if the test failed anyway."""
    if result.failure and result.verdict not in {Verdict.REGRESSED, Verdict.BROKEN}:
        return f"failed ({result.verdict.value})"
    return result.verdict.value + " (accepted)" * (result.verdict is Verdict.REGRESSED and result.test in accepted)


def ruled_out(results: Iterable[Result]) -> str:
    """Returns ``none slower by more than 3.1 %`` for passed benchmarks, or "" if one of them has no known bound."""
    steps = [phrases.find(one, "step_time") for one in results if passed(one)]
    gated = [step for step in steps if step is not None and step.gated]
    bounds = [each.bound for each in gated if each.bound is not None]
    known = bool(bounds) and len(bounds) == len(gated)
    return f"none slower by more than {format_percent(max(0.0, *bounds))}" if known else ""


def green_meanings(results: Sequence[Result]) -> dict[str, str]:
    """Returns the passing verdicts among the results, such as ``unchanged``, each with a sentence that explains it."""
    steps = [phrases.find(one, "step_time") for one in results if one.verdict is Verdict.UNCHANGED]
    margins = [each.margin for each in steps if each and each.verdict is Verdict.UNCHANGED and each.margin is not None]
    stored = {phrases.by_stored_times(one) for one in results if one.verdict is Verdict.OK}
    meanings = {
        "unchanged": f"the run rules out a slowdown of {span(format_percent, margins)} or more" if margins else "",
        "ok": "the run rules out a slowdown of --ddpperf-must-detect or more" if False in stored else "",
        STORED_TIMES: "not slower by more than the tolerance; stored times show only gross slowdowns"
        * (True in stored),
    }
    return {word: meaning for word, meaning in meanings.items() if meaning}


def facts_line(run: Run) -> str:
    """Returns the commit, the date, the machines and the references of a run in one line."""
    branch = f" of {run.branch}" if run.branch else ""
    commit = f"commit {phrases.commit_text(run.commit, dirty=run.dirty)}{branch}" if run.commit else ""
    machines = dict.fromkeys(phrases.environment_text(result.measurement.environment) for result in run.results)
    against = "; ".join(filter(None, dict.fromkeys(result.reference.origin for result in run.results)))
    return "; ".join(filter(None, (commit, run.date, *machines, against and f"compared with {against}")))


def run_lines(run: Run) -> list[str]:
    """Returns lines on a whole run: why it ended early, how all tests together changed, and a summary of benchmarks."""
    ended = [f"the run ended before all its tests had run: {run.interrupted}"] if run.interrupted else []
    judged = {result.test for result in run.results}
    failed = [f"{test} could not be measured: {why}" for test, why in run.unmeasured.items() if test not in judged]
    return [*ended, *failed, *common_text(run.common_change), *overall_lines(run.results)]


def common_text(common: CommonChange | None) -> list[str]:
    """Returns a line on the step time of all tests together; none if the change is imprecise and shows no slowdown."""
    if common is None or not (common.slower or common.interval.high - common.interval.low <= _TELLING):
        return []
    ends = " .. ".join(map(signed_percent, (common.interval.low, common.interval.high)))
    change = f"{format_change(common.change)} [{phrases.confidence_text(common.interval.confidence)} {ends}]"
    return [f"all {common.tests} tests together: step time {change}{' slower' if common.slower else ''}"]


def overall_lines(results: Sequence[Result]) -> list[str]:
    """Returns a line on how many targets were met, and an upper limit of the slowdown of passed benchmarks."""
    codes = Counter(finding.code for result in results for finding in result.findings)
    numbers = {"missed": codes["target_missed"], "inconclusive": codes["target_open"], "met": codes["target_met"]}
    told = [f"{number} {word}" for word, number in numbers.items() if number]
    targets = [f"{format_count(sum(numbers.values()), 'target')}: {', '.join(told)}"] if told else []
    bound = ruled_out(results)
    return [*targets, *([f"passed: {bound} (95 % confidence for each benchmark)"] if bound else [])]


def cause_in_words(result: Result, *, below: bool = False) -> str:
    """Returns the cause of a failure in a few words: ``all_reduce 2 -> 8 calls (train.py:16), step time +53.1 %``.

    With ``below``, the text omits the step time, and ends with the number of omitted causes.
    """
    if result.verdict is Verdict.BROKEN or result.measurement.unfit:
        reason = broken_reason(result).partition("\n")[0]
        return reason.partition(": ")[0] if below and result.red else reason  # the failure's message has the rest
    counts, others = [], []
    for line in reasons(result):
        metric, _, told = line.partition(": ")
        found, name = phrases.find(result, metric), metric.replace("_", " ")
        if found is None:  # the benchmark as a whole fails
            return line.removeprefix(f"{result.verdict.value}: ")
        if found.series.scale == "exact":
            place, head = _PLACE.search(told), re.split(r" per | [(]|[:;,] ", told)[0]
            at = f" ({place[1] or place[2]})" if place else ""
            counts.append(f"{f'{name} ' * head[:1].isdigit()}{head}{at}")
        elif found.verdict is not Verdict.REGRESSED:
            others.append(f"{name} {phrases.could_be([found])}")
        elif found.note is not None and found.note.code == "not_the_code":
            others.append(f"{name} {finding_text(found.note)}")  # the code did not cause the change
        elif not below and found.change is not None:
            others.append(f"{name} {phrases.signed(found.change, found)}")
        elif metric != "step_time":
            others.append(phrases.short_text(found))
    more = len(counts[1:]) + len(others[1:])
    causes = [*counts[:1], *others[:1], *([f"and {more} more"] if below and more else [])]
    return ", ".join(causes) or result.verdict.value * (not below)


def reasons(result: Result) -> list[str]:
    """Returns why a benchmark failed, regressed or broke; for other benchmarks, the change of the step time."""
    if result.failure and result.verdict is not Verdict.BROKEN:
        return result.failure.splitlines()
    if not result.red:
        return [phrases.change_line(step) for step in (phrases.find(result, "step_time"),) if step is not None]
    return list(map(phrases.change_line, phrases.decisive(result, {Verdict.REGRESSED}))) or list(
        phrases.findings(result)
    )


def red_lines(result: Result) -> list[str]:
    """Returns the reasons for a failure as lines; if no count regressed, the first line names phases that changed."""
    lines, parts = reasons(result), parts_text(result)
    counted = any(each.series.scale == "exact" for each in phrases.decisive(result, {Verdict.REGRESSED}))
    return [*([f"cause: {parts}"] if parts and not counted else []), *lines]


def all_findings(results: Sequence[Result]) -> list[str]:
    """Returns a line for each distinct finding: the names of its benchmarks, then the finding."""
    remarks = ((name, each) for name, one in with_names(results) for each in phrases.every_finding(one))
    return told_once(remarks, len(results))


def told_once(remarks: Iterable[tuple[str, Finding | str]], of: int) -> list[str]:
    """Returns a line for each note, with the names of its benchmarks; ``of``: the number of all benchmarks.

    If several notes have the same code, and differ only in figures, only the first one is returned.
    """
    alike: dict[str, dict[str, list[str]]] = {}
    for name, remark in remarks:
        code, text = (remark, remark) if isinstance(remark, str) else (remark.code, finding_text(remark))
        code = _FIGURE.sub("", text) if code == "read_again" else code  # files have no codes
        alike.setdefault(code, {}).setdefault(text, []).append(name)
    lines = []
    for texts in alike.values():
        number = len({name for names in texts.values() for name in names})
        text, (first, *_) = next(iter(texts.items()))
        if number > _EACH and len(texts) > 1:
            who = f"all {of}" if number == of else f"{number} of {of}"
            lines.append(f"{who} benchmarks, such as {first}: {text}")
        else:
            lines += [f"{whom(names, of)}: {text}" for text, names in texts.items()]
    return lines


def every_remark(result: Result, *, accepting: bool) -> list[Finding | str]:
    """Returns all notes on a benchmark; omits notes on its verdict if the run saves baselines (``accepting``)."""
    texts = [] if accepting else [*_grounds(result), *_gains(result), *_without_reference(result)]
    return [*texts, *phrases.every_finding(result, without=_UNSAID)]


def _grounds(result: Result) -> list[str]:
    if result.verdict is not Verdict.INCOMPATIBLE:
        return []
    if result.reference.differs:
        changes = phrases.incomparable_changes(result)
        return ["; ".join(phrases.first_of(changes, _TOLD))] if changes else []
    # A finding says that a step does another amount of work.
    others = [c for c in phrases.decisive(result, {Verdict.INCOMPATIBLE}) if not count_row(c.series.metric).of_work]
    return [phrases.open_text(c, values=True) for c in others if c.note or c.series.metric != "step_time"]


def undecided_lines(named: Sequence[tuple[str, Result]], *, every: bool = False) -> list[str]:
    """Returns lines on the undecided metrics of benchmarks, the largest possible worsening first.

    Benchmarks with the same undecided metric share a line; those that pass have none. With ``every``, each has a line.
    """
    alike: dict[object, list[tuple[str, Comparison]]] = {}
    for name, result in named:
        if not (result.red or result.verdict is Verdict.INCOMPATIBLE) and (every or result.verdict not in GREEN):
            for each in phrases.decisive(result, {Verdict.INCONCLUSIVE}):
                kind = each.series.metric, each.note and each.note.code, name * every
                alike.setdefault(kind, []).append((name, each))
    lines = []
    for those in sorted(alike.values(), key=lambda several: -max(each.bound or 0.0 for _, each in several)):
        names, metrics = zip(*those, strict=True)
        lines.append(f"undecided: {whom(names, len(named))}: {phrases.open_text(*metrics, values=True)}")
    return lines


def _gains(result: Result) -> list[str]:
    """Returns the improvements, with advice to save a new baseline if the stored baseline is worse than this run."""
    better = phrases.decisive(result, {Verdict.IMPROVED})
    told = [c for c in better if result.paired is None or c.series.metric != "step_time"]
    if not told or result.verdict in {Verdict.NEW, Verdict.INCOMPATIBLE}:
        return []
    # Findings describe the changes of counts.
    texts = [c.series.metric if c.series.scale == "exact" else phrases.short_text(c) for c in told]
    stale = _STALE * (result.paired is None and result.verdict in GREEN)
    return [f"improved: {'; '.join(phrases.first_of(texts, _TOLD))}{stale}"]


def _without_reference(result: Result) -> list[str]:
    """Returns lines on why the reference lacks metrics; an empty list if the reference lacks the whole benchmark."""
    new = result.verdict is Verdict.NEW and result.baseline is not None
    compared = new if result.paired is None else not result.paired.lacking
    lacking = () if not compared else phrases.decisive(result, {Verdict.NEW})
    metrics = grouped((each.series.metric, finding_text(each.note)) for each in lacking)
    return [f"{some_of(names)}: {note}" for note, names in metrics.items() if note]
