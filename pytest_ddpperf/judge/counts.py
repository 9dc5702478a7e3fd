"""The verdicts on counts, which are compared exactly, because no noise explains a difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import pstdev

from pytest_ddpperf.judge.decision import decide_compared_count, decide_count
from pytest_ddpperf.records.alike import Alike
from pytest_ddpperf.records.counts import COUNTS, Counts, count_row, steps_to_tell, surely_changed
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Comparison, Reference
from pytest_ddpperf.records.verdict import Verdict

_ERRORS = 3.0  # standard errors by which the means of irregular steps may differ by chance
_SHARE_OF_LEADER = 2.0  # most that a count grows because its leader does: float64 counts twice, a ring sends all twice
OF_GRADIENTS = 0.25  # least share of the gradients' bytes that ranks send if they synchronise (compressed) gradients
_OF_LOGS = 0.01  # share of the gradients' bytes below which ranks send no (compressed) gradients
_OF_NO_SHAPE = {"collective_calls", "optimizer_steps", "synchronisations", "allocator_calls"}  # of a batch
_ROUNDED = 1e-9  # relative rounding error of means


def compare_counted(series: Series, measurement: Measurement, reference: Reference) -> Comparison:
    """Compares a count with the reference's: more or other work is ``regressed``, less work ``improved``."""
    metric, then, now = series.metric, counts_of(reference), measurement.counts
    differs = _differs(metric, reference)
    told = bool(differs) and reference.paired  # with another torch, other counts are no regression of this code
    verdict = decide_compared_count(metric, then, now, differs=bool(differs) and not told)
    if then is None or now is None or verdict is Verdict.NEW:
        absent = Finding("not_in_reference", {"paired": reference.paired})
        if then is None:
            absent = Finding("no_counts_in_reference", {"paired": reference.paired})
        compared = then is not None or reference.record is not None
        return Comparison(
            series=series,
            tolerance=0.0,
            verdict=verdict,
            # No baseline is missing for a count that differs between steps, or that the baseline's plugin did not have.
            gated=series.gated and then is None and (now is None or metric not in now.unstable),
            note=absent if compared else None,
        )
    gated, note = change_of(metric, then, now)
    incomparable = bool(differs) and not told and gated
    return Comparison(
        series=series,
        baseline=then.totals[metric],
        change=series.value - then.totals[metric],
        tolerance=0.0,
        mde=0.0,
        verdict=verdict,
        gated=series.gated and gated and not told,
        note=Finding("incomparable", {"differs": differs}) if incomparable else note,
        difference=note if incomparable else None,
    )


def change_of(metric: str, then: Counts, now: Counts) -> tuple[bool, Finding | None]:
    """Returns whether a changed count can fail the test, and a finding on the change, or on why the test cannot fail.

    If a count differs irregularly between steps, the test can fail only if every step of one revision does more than
    every step of the other. A count cannot fail the test if another count explains the change (``CountRow.follows``).
    ``then`` and ``now`` must have the count.
    """
    verdict = decide_count(metric, then, now)
    known = {counts.varying.get(metric, {}).get("") for counts in (then, now)}
    mixed = () in known and any(known)  # the usual step of one side, and the mean of all steps of the other
    sides = [counts for counts in (now, then) if metric in counts.unstable]
    restless = [counts for counts in sides if mixed or counts.varying.get(metric, {}).get("") != ()]
    judged = verdict is not Verdict.UNCHANGED and not mixed and all(metric in counts.varying for counts in restless)
    if restless and (not judged or verdict is Verdict.INCONCLUSIVE):
        reason = restless[0].unstable[metric]
        return judged, Finding("unsteady_count", {"reason": reason, "doubled": judged})
    changed = verdict is not Verdict.UNCHANGED or then.totals[metric] != now.totals[metric]  # maybe within the floor
    note = Finding("count_changed", {"metric": metric, "then": then, "now": now}) if changed else None
    return not _follows(metric, verdict, then, now), note


def _follows(metric: str, verdict: Verdict, then: Counts, now: Counts) -> bool:
    """Returns whether the change of another count (``CountRow.follows``) explains the change of this count."""
    leader = count_row(metric).follows
    if not leader or verdict is Verdict.UNCHANGED or leader not in then.totals or leader not in now.totals:
        return False
    change, whole = (abs(now.totals[each] - then.totals[each]) for each in (metric, leader))
    return change <= _SHARE_OF_LEADER * whole and decide_count(leader, then, now) in {Verdict.REGRESSED, verdict}


def count_findings(
    comparisons: Sequence[Comparison], measurement: Measurement, reference: Reference
) -> Iterator[Finding]:
    """Yields the findings on all counts together, in addition to the verdict on each count."""
    exact = [comparison for comparison in comparisons if comparison.series.scale == "exact"]
    then, now, paired = counts_of(reference), measurement.counts, reference.paired
    if then is not None and now is None and not reference.counted_differs:
        yield Finding("lost_counts", {"paired": paired})
    if later := _later_counts(exact, reference):
        yield Finding("not_compared", {"metrics": later})
    other = next((each for each in exact if _is_other_work(each) and each.baseline is not None), None)
    if other is not None:
        metric, before, value = other.series.metric, other.baseline, other.series.value
        shapes = [tuple(side.details.get(metric, ())) for side in (then, now) if side and before == value]
        yield Finding(
            "other_work", {"metric": metric, "before": before, "now": value, "paired": paired, "shapes": tuple(shapes)}
        )
    for each in exact:
        if each.gated and each.verdict is Verdict.IMPROVED:  # the baseline no longer guards it
            yield Finding("fewer_counted", {"metric": each.series.metric, "then": then, "now": now, "paired": paired})
    yield from _ungated_counts(exact, measurement, reference)
    yield from _unsure_counts(exact, measurement, reference)
    yield from _told_counts(exact, reference)
    alike = None if now is None else now.alike
    if alike is None or not (alike.batches and alike.loaded) or alike.apart:
        return
    if not copies_apart(measurement, reference):  # nothing shows that equal batches are wrong
        yield Finding("equal_batches", {"ranks": alike.batches})


def ranks_apart(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding if ranks that sent gradients or parameters in the reference send nothing, or only logs."""
    then, now, ranks = counts_of(reference), measurement.counts, measurement.world_size
    if then is None or now is None or ranks == 1 or reference.counted_differs:
        return ()
    metric = "collective_bytes" if now.totals.get("collective_calls") else "collective_calls"
    before, after = (counts.totals.get(metric, 0.0) for counts in (then, now))
    if metric in {**then.unstable, **now.unstable} or not surely_changed(metric, "", then, now, [(before, after)]):
        return ()
    gradients = then.details.get("model_state_bytes", {}).get("gradients", 0.0)
    sent = then.totals.get("collective_bytes", 0.0) >= OF_GRADIENTS * gradients or _averages_rarely(then)
    if not sent or not gradients or not (metric == "collective_calls" or _sends_only_logs(then, now)):
        return ()
    pair, paired = (before, after), reference.paired
    return (Finding("ranks_apart", {"ranks": ranks, "metric": metric, "pair": pair, "paired": paired}),)


def _sends_only_logs(then: Counts, now: Counts) -> bool:
    """Returns whether ranks send too little for gradients, although each has a whole model and no DDP compresses."""
    before, after = (counts.details.get("model_state_bytes", {}) for counts in (then, now))
    whole = after.get("parameters", 0.0) >= before.get("parameters", 0.0)  # else ranks may divide the model now
    alone = now.alike is not None and not now.alike.wrapped and max(now.alike.sources, default=1) <= 1
    old, new = (counts.totals.get("collective_bytes", 0.0) for counts in (then, now))
    little = new < min(old, _OF_LOGS * after.get("gradients", 0.0))
    return whole and alone and little and _of_same_kinds(then, now) and not _averages_rarely(now)


def copies_apart(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns findings if ranks with copies of one model train on equal data, or if the copies' parameters differ.

    Equal batches may be correct, because the plugin gives all ranks the same seed. Equal batches are wrong if the ranks
    drew the same random samples of a dataset, or if the reference's ranks had different batches.
    """
    counts, before = measurement.counts, counts_of(reference)
    now, then = (None if each is None else each.alike for each in (counts, before))
    if counts is None or now is None:
        return ()
    wrong = []
    drawn, given = now.samples or (), now.batches or ()
    copies = not now.apart or now.wrapped  # else each rank has another part of a model
    both = tuple(rank for rank in drawn if rank in given) if copies else ()
    sliced = now.batches == ()  # each rank takes its part of the samples that all ranks draw
    lost = then is not None and ((drawn and not sliced and then.samples == ()) or (given and then.batches == ()))
    if both or (lost and copies):
        paired = reference.paired if lost else None
        wrong.append(_same_data(both or given or drawn, counts, now, paired=paired))
    unstable = {} if before is None else {**counts.unstable, **before.unstable}
    steady = before is not None and "collective_calls" not in unstable and _of_same_kinds(before, counts)
    equal_then = then is not None and steady and then.apart == () and then.model == now.model
    if now.apart and (now.wrapped or equal_then):
        apart, name, sites = now.apart, now.parameter, now.sites.get("deferred", ())
        wrong.append(Finding("parameters_apart", {"ranks": apart, "parameter": name, "sites": sites, "paired": None}))
    return tuple(wrong) or _fewer_sources(measurement, reference)


def _fewer_sources(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding if a rank's parameters learn from fewer ranks' data than in the reference.

    The reference shows which ranks are data parallel: those with equal parameters and different data. Other ranks may
    hold parts of a model, as in tensor parallelism.
    """
    now, then = measurement.counts, counts_of(reference)
    if now is None or then is None or not _of_same_kinds(then, now):
        return ()
    here, there = now.alike, then.alike
    if here is None or there is None or here.model != there.model or len(here.sources) != len(there.sources):
        return ()
    pairs = zip(here.sources, there.sources, strict=True)
    rank = next((rank for rank, (after, before) in enumerate(pairs) if after < before), None)
    if rank is None:
        return ()
    copies = [other for other, first in enumerate(there.copies) if first == there.copies[rank]]
    data = [here.data[other] for other in copies]
    if len(set(data)) < there.sources[rank]:
        alike = tuple(other for other in copies if data.count(here.data[other]) > 1)
        return (_same_data(alike, now, here, paired=reference.paired),)
    if _averages_rarely(now) or _averages_rarely(then):
        return ()
    apart = (rank, *(other for other in copies if here.copies[other] != here.copies[rank]))
    paired = reference.paired
    return (Finding("parameters_apart", {"ranks": apart, "parameter": "", "sites": (), "paired": paired}),)


def _averages_rarely(counts: Counts) -> bool:
    """Returns whether only some steps average gradients, judged by how many more bytes they send than others."""
    gradients = counts.details.get("model_state_bytes", {}).get("gradients", 0.0)
    varying = counts.varying.get("collective_bytes", {}).get("", ())
    return bool(varying) and sum(max(each) - min(each) for each in varying) >= OF_GRADIENTS * gradients


def _of_same_kinds(then: Counts, now: Counts) -> bool:
    """Returns whether ``now`` has no new kind of collectives, which another kind of parallelism would bring."""
    before, after = (counts.details.get("collective_calls", {}) for counts in (then, now))
    return after.keys() <= before.keys()


def _same_data(ranks: tuple[int, ...], now: Counts, alike: Alike, *, paired: bool | None) -> Finding:
    drawn, alone = bool(alike.samples), now.totals.get("collective_calls") == 0
    sites = alike.sites.get("drawn", ()) if drawn else ()
    return Finding("same_data", {"ranks": ranks, "drawn": drawn, "paired": paired, "alone": alone, "sites": sites})


def gate_changed_work(every: Sequence[Comparison], now: Measurement, reference: Reference) -> tuple[Comparison, ...]:
    """Returns the comparisons. If a step's work has changed (smaller batches), most comparisons cannot fail a test.

    Counts of work (batch rows, backward passes) can still fail a test. Counts that no shape influences (calls of
    collectives) can fail a test if only a batch's shape changed, or they grew by a larger factor than backward passes.
    """
    other = {each.series.metric: each for each in every if _is_other_work(each)}
    if not other:
        return tuple(every)
    resized, passes = any(each.change for each in other.values()), other.get("backward_passes")
    factor = passes.series.value / passes.baseline if passes is not None and passes.baseline else 0.0
    sides = [counts.details.get("collective_calls", {}) for counts in (counts_of(reference), now.counts) if counts]
    waits = len(sides) > 1 and sides[1].get("barrier", 0.0) > factor * sides[0].get("barrier", 0.0)

    def can_fail(each: Comparison) -> bool:
        more = each.series.value > factor * (each.baseline or 0.0) * (1 + _ROUNDED)
        more = factor > 1 and (more or (waits and each.series.metric == "collective_calls"))
        return each.series.metric in other or (each.series.metric in _OF_NO_SHAPE and (more or not resized))

    return tuple(each if can_fail(each) else replace(each, gated=False) for each in every)


def _is_other_work(comparison: Comparison) -> bool:
    of_work = comparison.gated and count_row(comparison.series.metric).of_work
    less = comparison.verdict is Verdict.REGRESSED and (comparison.change or 0.0) < 0
    return of_work and (less or comparison.verdict is Verdict.INCOMPATIBLE)


def _later_counts(exact: Sequence[Comparison], reference: Reference) -> tuple[str, ...]:
    """Returns the counts that the baseline lacks because only later versions of the plugin count them."""
    then = counts_of(reference)
    if then is None or reference.paired or reference.counted_differs:
        return ()
    gated = {each.series.metric for each in exact if each.series.gated} - then.totals.keys()
    return tuple(metric for metric, row in COUNTS.items() if metric in gated and not (row.profiled or row.guessed))


def _ungated_counts(exact: Sequence[Comparison], measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding on counts that cannot fail a test, because the values of one revision differ between steps."""
    then, now = ({} if counts is None else counts.unstable for counts in (counts_of(reference), measurement.counts))
    restless = {**then, **now}
    ungated = [c for c in exact if c.series.gated and not c.gated and c.series.metric in restless]
    told = []
    for comparison in ungated:
        metric, baseline, value = comparison.series.metric, comparison.baseline, comparison.series.value
        if count_row(metric).follows not in restless:  # else the other count says so
            values = (baseline, value) if baseline is not None and value > baseline else ()
            told.append((metric, restless[metric], metric in now, values))
    if not told:
        return ()
    steady_now = any(comparison.series.metric not in now for comparison in ungated)
    renew = steady_now and not reference.paired
    return (Finding("ungated_counts", {"counts": tuple(told), "paired": reference.paired, "renew": renew}),)


def _unsure_counts(exact: Sequence[Comparison], measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding on counts that differ between steps, if too few steps were counted to detect a change."""
    then, now = counts_of(reference), measurement.counts
    if then is None or now is None:
        return ()
    same = [each for each in exact if each.series.gated and each.verdict is Verdict.UNCHANGED]
    told = {(name := each.series.metric): steps_to_tell(name, then, now) * each.gated for each in same}
    told = {metric: steps for metric, steps in told.items() if steps or _mean_moved(metric, then, now)}
    told = {metric: steps for metric, steps in told.items() if count_row(metric).follows not in told}
    return (Finding("unsure_counts", {"steps": told, "then": then, "now": now}),) if told else ()


def _mean_moved(metric: str, then: Counts, now: Counts) -> bool:
    """Returns whether a count differs irregularly between steps, and its mean changed by more than chance explains."""
    sides = [(counts.varying.get(metric, {}).get("", ()), counts.steps) for counts in (then, now)]
    error = math.hypot(*(math.fsum(map(pstdev, values)) / math.sqrt(steps) for values, steps in sides))
    irregular = any(metric in counts.unstable and counts.varying.get(metric, {}).get("") for counts in (then, now))
    return irregular and abs(now.totals[metric] - then.totals[metric]) > _ERRORS * error


def _told_counts(exact: Sequence[Comparison], reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding on counts that changed between two versions of torch; these changes cannot fail a test."""
    told = [c for c in exact if c.baseline is not None and c.series.gated and _differs(c.series.metric, reference)]
    if not reference.paired or not told:
        return ()
    changed = tuple((c.series.metric, c.baseline, c.series.value) for c in told if c.verdict is not Verdict.UNCHANGED)
    differs = dict.fromkeys(fact for c in told for fact in _differs(c.series.metric, reference))
    return (Finding("told_counts", {"differs": tuple(differs), "changed": changed, "number": len(told)}),)


def _differs(metric: str, reference: Reference) -> tuple[str, ...]:
    return (*reference.counted_differs, *(reference.kernels_differ if count_row(metric).by_kernel else ()))


def counts_of(reference: Reference) -> Counts | None:
    """Returns the counts that a reference has for comparison; None if the reference has no counts."""
    return None if reference.counted is None else reference.counted.counts
