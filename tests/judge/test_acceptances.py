"""Worsenings that are meant do not count, up to what is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.judge.benchmark import acceptances, with_accepted
from pytest_ddpperf.records.acceptance import Acceptance, allowed, worsenings
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Comparison, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings
from tests.factories import make_measurement, make_result, make_series
from tests.judge.made_up import ROWS

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


def count(metric: str, before: float, after: float, verdict: Verdict = Verdict.REGRESSED) -> Comparison:
    return compared(metric, before, after, verdict, unit="B" if "bytes" in metric else "1", scale="exact")


CALLS = count("collective_calls", 2.0, 8.0)  # 6 more, 300 %
BYTES = count("collective_bytes", 100.0, 100.0, Verdict.UNCHANGED)


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


def of_counts(then: Counts, now: Counts) -> Comparison:
    """The count that both have, worse by these details."""
    ((metric, before),) = then.totals.items()
    made = count(metric, before, now.totals[metric])
    return replace(made, note=Finding("count_changed", {"metric": metric, "then": then, "now": now}))


def counts(*, ranks: tuple[float, ...] = (), **parts: float) -> Counts:
    total = {"collective_calls": sum(parts.values())}
    by_rank = {"collective_calls": ranks} if ranks else {}
    return Counts(totals=total, details={"collective_calls": parts}, by_rank=by_rank, unstable={})


def buckets(*sizes: float) -> Counts:
    """Their details are bytes."""
    details = {"ddp_buckets": {f"bucket {number}": size for number, size in enumerate(sizes)}}
    return Counts(totals={"ddp_buckets": float(len(sizes))}, details=details, unstable={})


ON_RANKS = replace(
    counts(all_reduce=10.0, ranks=(10.0, 10.0)),
    details_by_rank={"collective_calls": {"all_reduce": (10.0, 2.0), "all_gather": (0.0, 8.0)}},
)
"""Rank 1 gathers 8 times."""


@pytest.mark.parametrize(
    ("worse", "enough", "short"),
    [
        pytest.param(count("synchronisations", 0.0, 3.0), "+3", "+900%", id="of 0"),
        pytest.param(of_counts(counts(all_reduce=3.0), counts(all_gather=3.0)), "+3", "+2", id="another kind"),
        pytest.param(
            of_counts(counts(all_reduce=10.0, ranks=(10.0, 2.0)), counts(all_reduce=10.0, ranks=(10.0, 10.0))),
            "+8",
            "+7",
            id="another rank",
        ),
        pytest.param(
            of_counts(counts(all_reduce=10.0, ranks=(2.0, 10.0)), counts(all_reduce=10.0)),
            "+8",
            "+7",
            id="a rank does as much as the others now",
        ),
        pytest.param(of_counts(ON_RANKS, counts(all_reduce=10.0)), "+8", "+7", id="a part on a rank"),
        pytest.param(of_counts(buckets(2e6, 3e6), buckets(2e6, 2e6, 1e6)), "+1", "+40%", id="buckets"),
        pytest.param(count("backward_passes", 8.0, 1.0), None, "+2", id="less work in a step"),
        pytest.param(count("compiled_operators", 100.0, 40.0), "60%", "+50", id="less of what there should be much of"),
        pytest.param(
            replace(STEP, change=0.003, note=Finding("not_the_code", {"change": 2.0})),
            "+200%",
            "+5%",
            id="both sides are slower than what is stored",
        ),
    ],
)
def test_an_acceptance_covers_the_part_and_the_rank_that_grew_most(
    worse: Comparison, enough: str | None, short: str
) -> None:
    assert Acceptance(worse.series.metric, REASON).covers(worse)
    limits = [enough or short, short]
    found = [one.covers(worse) for limit in limits for one in accepting(**{worse.series.metric: limit})]
    assert found == [enough is not None, False]


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_acceptances_does_not_matter(*, turned: bool) -> None:
    sent, more = count("collective_send_bytes", 1000.0, 1800.0), count("collective_bytes", 1000.0, 1400.0)
    both = accepting(collective_bytes="+50%", collective_send_bytes="+100%")
    judged = with_accepted(result(more, replace(sent, gated=False), BYTES), both[::-1] if turned else both)
    assert judged.verdict is Verdict.UNCHANGED


def test_a_derived_count_that_is_worse_than_the_accepted_limit_is_red() -> None:
    """Beside the red bytes it was not gated, as it follows from them."""
    sent, more = count("collective_send_bytes", 100.0, 400.0), count("collective_bytes", 100.0, 101.0)
    judged = with_accepted(result(more, replace(sent, gated=False)), accepting(collective_bytes="+1%"))
    assert (judged.verdict, judged["collective_send_bytes"].gated) == (Verdict.REGRESSED, True)


def test_an_unsteady_count_that_follows_is_not_gated_by_an_acceptance() -> None:
    """It decides nothing beside the red calls either."""
    unsteady = replace(
        count("blocking_collectives", 2.0, 9.0),
        gated=False,
        note=Finding("unsteady_count", {"reason": "2 to 9", "doubled": False}),
    )
    judged = with_accepted(result(CALLS, unsteady, BYTES), accepting(collective_calls="+6"))
    assert (judged.verdict, judged["blocking_collectives"].gated) == (Verdict.UNCHANGED, False)


def test_other_metrics_stay_red() -> None:
    judged = with_accepted(result(STEP, CALLS), accepting(step_time="+20%"))
    assert (judged.verdict, judged["step_time"].gated, judged["collective_calls"].gated) == (
        Verdict.REGRESSED,
        False,
        True,
    )


def test_a_count_that_follows_from_an_accepted_one_is_accepted_with_it() -> None:
    sent, more = (count(metric, 100.0, 150.0) for metric in ("collective_send_bytes", "collective_bytes"))
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
    ("read", "wrong", "said"),
    [
        *((worsenings, wrong, "^worsenings by metric, such as ") for wrong in ({}, "step_time", {"step_time": "much"})),
        *((worsenings, {"step_time": wrong}, "^worsenings by metric, such as ") for wrong in (math.inf, True, 0.2)),
        *((allowed, wrong, "^a test and a metric, such as ") for wrong in ("", "step_time", 3)),
    ],
)
def test_other_worsenings_and_tests_are_refused(read: Callable[[object], object], wrong: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(wrong)


def test_an_accepted_metric_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^--ddpperf-allow or accept: 'step_tim' is no metric; did you mean step_time\?"
    ):
        acceptances("t.py::test", Settings(allow=(("t.py", "step_tim"),)), ())


def test_an_accepted_step_time_accepts_the_rates_made_of_it() -> None:
    rules = ROWS["throughput"].rules
    rate = replace(RATE, series=replace(RATE.series, rules=rules), change=1 / 1.15 - 1)
    assert with_accepted(result(STEP, rate), accepting(step_time="+20%")).verdict is not Verdict.REGRESSED
    assert with_accepted(result(STEP, rate), accepting(step_time="+10%")).verdict is Verdict.REGRESSED
