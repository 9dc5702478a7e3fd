"""Worsenings that are meant do not count, up to what is accepted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.benchmark import with_accepted
from pytest_ddpperf.records.acceptance import Acceptance, allowed, worsenings
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Comparison, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_measurement, make_result, make_series

REASON = "two buckets in place of one"


def compared(metric: str, before: float, after: float, verdict: Verdict, **series: str) -> Comparison:
    exact = series.get("scale") == "exact"
    return Comparison(
        series=make_series(metric, after, **series),
        tolerance=0.0,
        verdict=verdict,
        gated=True,
        baseline=before,
        change=after - before if exact else after / before - 1,
    )


STEP = compared("step_time", 0.040, 0.046, Verdict.REGRESSED)  # 15 % slower
RATE = compared("throughput", 100.0, 80.0, Verdict.REGRESSED, better="higher")  # 20 % less
CALLS = compared("collective_calls", 2.0, 8.0, Verdict.REGRESSED, unit="1", scale="exact")  # 6 more, 300 %
BYTES = compared("collective_bytes", 100.0, 100.0, Verdict.UNCHANGED, unit="B", scale="exact")


def result(*comparisons: Comparison, verdict: Verdict = Verdict.REGRESSED) -> Result:
    stored = StoredBaseline(record=None, origin="the baseline")
    return make_result(
        test="test_it", measurement=make_measurement(), comparisons=comparisons, verdict=verdict, reference=stored
    )


def accepting(**limits: object) -> list[Acceptance]:
    return [Acceptance(name, REASON, limit, share) for name, (limit, share) in worsenings(limits).items()]


@pytest.mark.parametrize(
    ("metric", "limit", "covered"),
    [
        (STEP, "+15.1%", True),
        (STEP, "+14.9%", False),
        (RATE, "-20.1%", True),
        (RATE, "-19.9%", False),
        (CALLS, "+6", True),
        (CALLS, "+5", False),
        (CALLS, "+300%", True),
        (CALLS, "299 %", False),
    ],
)
def test_a_worsening_is_accepted_up_to_a_share_or_an_amount(
    metric: Comparison, limit: object, *, covered: bool
) -> None:
    (acceptance,) = accepting(**{metric.series.metric: limit})
    assert acceptance.covers(metric) is covered
    judged = with_accepted(result(metric, BYTES), [acceptance])
    assert judged.verdict is (Verdict.UNCHANGED if covered else Verdict.REGRESSED)
    assert judged.comparisons == (replace(metric, gated=not covered), BYTES)
    (remark,) = judged.findings
    assert (remark.code, remark.facts["reason"]) == ("acceptance", REASON)
    assert (remark.facts["needed"], remark.facts["covered"]) == (True, covered)


def test_what_was_0_is_accepted_as_an_amount_and_without_a_limit() -> None:
    from_none = compared("synchronisations", 0.0, 3.0, Verdict.REGRESSED, unit="1", scale="exact")
    assert [one.covers(from_none) for one in accepting(synchronisations="+900%")] == [False]
    assert [one.covers(from_none) for one in accepting(synchronisations="+3")] == [True]
    assert Acceptance("synchronisations", REASON).covers(from_none)


def of_counts(then: Counts, now: Counts, before: float, after: float, metric: str = "collective_calls") -> Comparison:
    made = compared(metric, before, after, Verdict.REGRESSED, unit="1", scale="exact")
    return replace(made, note=Finding("count_changed", {"metric": metric, "then": then, "now": now}))


def counts(*, ranks: tuple[float, ...] = (), **parts: float) -> Counts:
    total = {"collective_calls": sum(parts.values())}
    by_rank = {"collective_calls": ranks} if ranks else {}
    return Counts(totals=total, details={"collective_calls": parts}, by_rank=by_rank, unstable={})


def test_calls_of_another_kind_and_on_another_rank_are_more_than_their_sum() -> None:
    kind = of_counts(counts(all_reduce=3.0), counts(all_gather=3.0), 3.0, 3.0)
    rank = of_counts(
        counts(all_reduce=10.0, ranks=(10.0, 2.0)), counts(all_reduce=10.0, ranks=(10.0, 10.0)), 10.0, 10.0
    )
    for worse, amount in ((kind, 3), (rank, 8)):
        assert [one.covers(worse) for one in accepting(collective_calls=f"+{amount}")] == [True]
        assert [one.covers(worse) for one in accepting(collective_calls=f"+{amount - 1}")] == [False]


def test_a_rank_that_grows_to_what_another_one_does_is_more() -> None:
    """Rank 0 makes 8 calls more, and then all make as many."""
    before, after = counts(all_reduce=10.0, ranks=(2.0, 10.0)), counts(all_reduce=10.0)
    of_rank = of_counts(before, after, 10.0, 10.0)
    assert [one.covers(of_rank) for one in accepting(collective_calls="+8")] == [True]
    assert [one.covers(of_rank) for one in accepting(collective_calls="+7")] == [False]


def test_parts_that_grow_on_a_rank_are_more_than_its_total() -> None:
    """Rank 1 gathers 8 times, and then reduces in place of that."""
    parts = {"collective_calls": {"all_reduce": (10.0, 2.0), "all_gather": (0.0, 8.0)}}
    before = replace(counts(all_reduce=10.0, ranks=(10.0, 10.0)), details_by_rank=parts)
    of_rank = of_counts(before, counts(all_reduce=10.0), 10.0, 10.0)
    assert [one.covers(of_rank) for one in accepting(collective_calls="+8")] == [True]
    assert [one.covers(of_rank) for one in accepting(collective_calls="+7")] == [False]


def test_buckets_are_accepted_by_their_number() -> None:
    """Their details are bytes."""

    def buckets(*sizes: float) -> Counts:
        details = {"ddp_buckets": {f"bucket {number}": size for number, size in enumerate(sizes)}}
        return Counts(totals={"ddp_buckets": float(len(sizes))}, details=details, unstable={})

    more = of_counts(buckets(2e6, 3e6), buckets(2e6, 2e6, 1e6), 2.0, 3.0, "ddp_buckets")
    assert [one.covers(more) for one in accepting(ddp_buckets="+1")] == [True]
    assert [one.covers(more) for one in accepting(ddp_buckets="+40%")] == [False]


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_acceptances_does_not_matter(*, turned: bool) -> None:
    sent = compared("collective_send_bytes", 1000.0, 1800.0, Verdict.REGRESSED, unit="B", scale="exact")
    more = compared("collective_bytes", 1000.0, 1400.0, Verdict.REGRESSED, unit="B", scale="exact")
    both = accepting(collective_bytes="+50%", collective_send_bytes="+100%")
    judged = with_accepted(result(more, replace(sent, gated=False), BYTES), both[::-1] if turned else both)
    assert judged.verdict is Verdict.UNCHANGED


def test_less_work_in_a_step_is_accepted_without_a_limit_alone() -> None:
    lost = compared("backward_passes", 8.0, 1.0, Verdict.REGRESSED, unit="1", scale="exact")
    assert [one.covers(lost) for one in accepting(backward_passes="+2")] == [False]
    assert Acceptance("backward_passes", REASON).covers(lost)


def test_a_time_that_is_worse_than_the_stored_one_is_accepted_by_that_change() -> None:
    """Both sides that were measured now are three times as slow as what is stored."""
    slow = replace(STEP, change=0.003, note=Finding("not_the_code", {"change": 2.0}))
    assert [one.covers(slow) for one in accepting(step_time="+5%")] == [False]
    assert [one.covers(slow) for one in accepting(step_time="+200%")] == [True]


def test_a_count_that_follows_and_is_worse_than_what_is_accepted_is_red() -> None:
    """Beside the red bytes it was not gated, as it follows from them."""
    sent = compared("collective_send_bytes", 100.0, 400.0, Verdict.REGRESSED, unit="B", scale="exact")
    more = compared("collective_bytes", 100.0, 101.0, Verdict.REGRESSED, unit="B", scale="exact")
    judged = with_accepted(result(more, replace(sent, gated=False)), accepting(collective_bytes="+1%"))
    assert (judged.verdict, judged["collective_send_bytes"].gated) == (Verdict.REGRESSED, True)


def test_other_metrics_stay_red() -> None:
    judged = with_accepted(result(STEP, CALLS), accepting(step_time="+20%"))
    assert (judged.verdict, judged["step_time"].gated, judged["collective_calls"].gated) == (
        Verdict.REGRESSED,
        False,
        True,
    )


def test_a_count_that_follows_from_an_accepted_one_is_accepted_with_it() -> None:
    sent = compared("collective_send_bytes", 100.0, 150.0, Verdict.REGRESSED, unit="B", scale="exact")
    more = replace(sent, series=replace(sent.series, metric="collective_bytes"))
    judged = result(more, sent, replace(STEP, verdict=Verdict.UNCHANGED))
    assert with_accepted(judged, accepting(collective_bytes="+50%")).verdict is Verdict.UNCHANGED
    assert with_accepted(judged, accepting(collective_send_bytes="+50%")).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("verdict", "needed"), [(Verdict.UNCHANGED, [False]), (Verdict.OK, [False]), (Verdict.INCONCLUSIVE, [])]
)
def test_an_acceptance_that_nothing_needs_is_reported(verdict: Verdict, needed: list[bool]) -> None:
    same = replace(STEP, verdict=verdict)
    judged = with_accepted(result(same, verdict=verdict), accepting(step_time="+20%"))
    assert (judged.comparisons, judged.verdict, [finding.facts["needed"] for finding in judged.findings]) == (
        (same,),
        verdict,
        needed,
    )


def test_worsenings_and_tests_are_understood() -> None:
    assert worsenings({"step_time": "+20%", "operators": 6}) == {"step_time": (0.2, True), "operators": (6.0, False)}
    assert allowed("perf/test_a.py::test_b[x y] step_time\n test_c  operators") == (
        ("perf/test_a.py::test_b[x y]", "step_time"),
        ("test_c", "operators"),
    )


@pytest.mark.parametrize(
    "wrong", [{}, "step_time", {"step_time": "much"}, {"step_time": math.inf}, {"step_time": True}, {"step_time": 0.2}]
)
def test_other_worsenings_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^worsenings by metric, such as "):
        worsenings(wrong)


@pytest.mark.parametrize("wrong", ["", "step_time", 3])
def test_a_test_without_a_metric_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^a test and a metric, such as "):
        allowed(wrong)
