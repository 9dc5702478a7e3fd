"""One metric beside its baseline, or beside the other revision."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.changes import tolerance_of
from pytest_ddpperf.judge.decision import PAIRED_TOLERANCE, TOLERANCE, DecisionContext
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Interval, MetricRules, Plan, Series
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import findings
from tests.factories import known, make_counts, make_launch, make_rank_launch
from tests.judge.made_up import STEADY, beside, found, judged, measured, on_machine, series, stored, with_commit


@pytest.mark.parametrize(
    ("metric", "before", "now", "expected"),
    [
        ("memory_growth", 1000, 20_000, Verdict.UNCHANGED),  # 64 KiB are tolerated, whatever the baseline was
        ("memory_growth", 1000, 200_000, Verdict.REGRESSED),
        ("memory_growth", 1000, 0, Verdict.UNCHANGED),
        ("final_loss", 0.001, 0.02, Verdict.UNCHANGED),
        ("final_loss", 0.001, 0.5, Verdict.REGRESSED),
        ("final_loss", 0.001, -1.0, Verdict.IMPROVED),
        ("peak_allocated", 0.0, 0.0, Verdict.UNCHANGED),
        ("peak_allocated", 0.0, 5.0, Verdict.INCONCLUSIVE),  # which is no number of per cent
    ],
)
def test_values_near_zero_are_compared_by_subtraction_if_their_metric_allows_it(
    metric: str, before: float, now: float, expected: Verdict
) -> None:
    assert judged(measured(series(metric, [now] * 4)), found(series(metric, [before] * 4)))[metric].verdict is expected


def test_a_metric_that_changed_its_unit_is_not_compared() -> None:
    milliseconds = replace(series("step_time", STEADY, factor=1000.0), unit="ms")
    one = judged(measured(series("step_time", STEADY)), found(milliseconds))["step_time"]
    assert (one.verdict, one.change) == (Verdict.INCOMPATIBLE, None)
    then, now = "ms, lower is better, ratio", "s, lower is better, ratio"
    assert finding_text(one.note) == (
        f"unit, direction or scale of the metric was ({then}) in the baseline and is ({now}) now: save again"
    )


@pytest.mark.parametrize("turns", [False, True])
def test_interleaved_steps_are_not_compared_with_others(*, turns: bool) -> None:
    """The first of each turn lasts longer, by more where more ranks are to be woken. Bytes do not depend on it."""
    metrics = [series(metric, STEADY) for metric in ("step_time", "throughput", "peak_resident")]
    metrics += [replace(metrics[1], metric=metric) for metric in ("speedup", "scaling_efficiency")]
    base = replace(found(), record=replace(stored(*metrics), turns=not turns))
    result = judged(replace(measured(*metrics), turns=turns), base)
    verdicts = [result[metric.metric].verdict for metric in metrics]
    assert verdicts == [*[Verdict.INCOMPATIBLE] * 2, Verdict.UNCHANGED, *[Verdict.INCOMPATIBLE] * 2]
    ways = ["interleaved with other launches", "alone"]
    then, now = ways[::-1] if turns else ways
    assert (
        finding_text(result["step_time"].note)
        == f"the baseline's steps were timed {then}, this run's {now}: save again, "
        "or change --ddpperf-interleave"
    )
    same = judged(on_machine(replace(measured(*metrics), turns=not turns)), base)
    assert [same[metric.metric].verdict for metric in metrics] == [
        *[Verdict.OK] * 2,
        Verdict.UNCHANGED,
        *[Verdict.OK] * 2,
    ]


def test_a_loss_after_another_number_of_steps_is_not_compared() -> None:
    new = measured(series("final_loss", [0.9] * 4), series("peak_allocated", STEADY))
    result = judged(
        new, found(series("final_loss", [0.5] * 4), series("peak_allocated", STEADY), plan=Plan(warmup=3, steps=100))
    )
    assert result["final_loss"].verdict is Verdict.INCOMPATIBLE
    assert (
        finding_text(result["final_loss"].note) == "the baseline's loss was taken after 103 steps, this run's after 63"
    )
    assert result["peak_allocated"].verdict is Verdict.UNCHANGED


def test_phases_of_a_step_have_the_absolute_tolerance_of_the_step() -> None:
    """A phase of 2 ms takes 27 % more, in steps of 4 ms: 3 % of a step are 0.12 ms, and not 0.03 s."""
    before, now = (
        (series("step_time", STEADY, factor=step), series("phase_backward", STEADY, factor=phase))
        for step, phase in ((0.004, 0.002), (0.00454, 0.00254))
    )
    phase = judged(measured(*now), beside(*before), tolerance=0.03)["phase_backward"]
    assert phase.tolerance == pytest.approx(0.03 * 0.004, rel=0.01)
    assert phase.verdict is Verdict.REGRESSED
    assert not phase.gated


def test_a_few_megabytes_of_resident_memory_are_no_change() -> None:
    """8 MiB are more than the 10 % of 50 MiB; of 100 MiB they are not."""
    for baseline, more, expected in (
        (20, 7.9, Verdict.UNCHANGED),
        (20, 8.1, Verdict.REGRESSED),
        (20, -7.9, Verdict.UNCHANGED),
        (20, -8.1, Verdict.IMPROVED),
        (50, 7.9, Verdict.UNCHANGED),
        (50, 8.1, Verdict.REGRESSED),
        (100, 8.1, Verdict.UNCHANGED),
        (100, 10.1, Verdict.REGRESSED),
        (0, 7, Verdict.UNCHANGED),
        (7, -7.0, Verdict.UNCHANGED),
        (0, 9, Verdict.INCONCLUSIVE),
    ):
        base = found(series("peak_resident", [baseline * 2.0**20] * 4))
        result = judged(measured(series("peak_resident", [(baseline + more) * 2.0**20] * 4)), base)
        assert result.verdict is expected


def test_two_rounds_suffice_for_resident_memory_because_its_scatter_is_known() -> None:
    """They lie 11 % apart, and two of them alone would leave up to 44 % open; one alone still tells nothing."""
    sizes = [[size * 2.0**20 for size in side] for side in ([34, 37], [36, 35])]
    new, base = (series("peak_resident", side) for side in sizes)
    bound = known(judged(measured(new), beside(base))["peak_resident"].bound)
    assert 0.05 < bound < 0.15
    (one, other) = (series("peak_resident", side[:1]) for side in sizes)
    assert judged(measured(one), beside(other))["peak_resident"].bound is None


def test_two_sides_of_one_run_are_compared_by_rounds() -> None:
    """The rounds differ by far more than 4 %, and both sides in the same way."""
    rounds = (1.0, 1.3, 0.8, 1.1)
    new = measured(series("step_time", rounds, factor=1.04))
    result = judged(new, beside(series("step_time", rounds)), tolerance=0.03)
    assert result.verdict is Verdict.REGRESSED
    interval = known(result["step_time"].change_interval)
    assert (interval.low, interval.high) == pytest.approx((0.04, 0.04))
    assert result["step_time"].mde == pytest.approx(0.03)
    assert result["step_time"].paired
    assert result.baseline is None
    assert result.paired is not None


BLOCKS = (0.08, -0.08) * 10  # of a launch: an error of 1.8 %, for 20 * 0.0064 / (20 * 19) = 0.000337


def two_launches(factor: float, moved: tuple[float, ...] = BLOCKS) -> Series:
    """Of step times that lie 2 % to either side of so many seconds, and know by their blocks what to expect."""
    samples = [factor * math.exp(0.02), factor * math.exp(-0.02)]
    return replace(series("step_time", samples), within=(moved,) * 2, own=0.03)


def test_a_speedup_over_another_reference_variant_is_not_compared() -> None:
    """The first way of a test may change; then no gain was lost."""
    rules = MetricRules(partnered=True)
    then, now = (
        replace(series("throughput", STEADY, factor=factor), metric="speedup", unit="1", rules=rules)
        for factor in (2, 1)
    )
    step = series("peak_allocated", STEADY)
    base = replace(found(), record=replace(stored(step, then), over="fp32"))
    result = judged(replace(measured(step, now), over="bf16"), base)
    assert result["speedup"].verdict is Verdict.INCOMPATIBLE
    told = "the baseline's speedup is relative to fp32, this run's to bf16: save again"
    assert finding_text(result["speedup"].note) == told
    assert judged(measured(step), base)["peak_allocated"].verdict is Verdict.UNCHANGED
    assert not [text for text in findings(judged(measured(step), base)) if "no longer fail" in text]


def change_of(new: Series, base: Series, *, turns: bool) -> Interval:
    side = beside(base)
    assert side.record is not None
    result = judged(replace(measured(new), turns=turns), replace(side, record=replace(side.record, turns=turns)))
    return known(result["step_time"].change_interval)


@pytest.mark.parametrize(
    ("turns", "variance"),
    [
        pytest.param(True, 0.000337 + 0.015**2, id="in turns 1.5 %"),
        pytest.param(False, 0.000337 + 2 * 0.03**2, id="else 3 % each"),
    ],
)
def test_the_scatter_of_two_rounds_follows_from_pairs_of_blocks_and_from_launches(
    variance: float, *, turns: bool
) -> None:
    """The base's launches are all alike, so the differences lie 0.04 apart: 0.0008, with 1 degree beside 4.

    Student's t of 97.5 % is 2.5706 with 5.
    """
    base = replace(series("step_time", [1.0, 1.0]), within=((0.0,) * 20,) * 2, own=0.03)
    found = change_of(two_launches(2.0), base, turns=turns)
    half = 2.5706 * math.sqrt((4 * variance + 0.0008) / 5 / 2)
    assert (math.log1p(found.low), math.log1p(found.high)) == pytest.approx(
        (math.log(2) - half, math.log(2) + half), rel=1e-3
    )


@pytest.mark.parametrize("metric", ["step_time", "peak_allocated"])
def test_an_improvement_says_that_the_baseline_is_stale(metric: str) -> None:
    """Beside it, or beside its commit; what is better than another revision makes no baseline stale."""
    then, now = series(metric, STEADY), series(metric, STEADY, factor=0.5)
    stale = "better than the baseline by more than the tolerance: the baseline is stale, save again"
    for reference, words in ((with_commit(found(then), then), stale), (beside(then), "")):
        one = judged(measured(now), reference)[metric]
        assert (one.verdict, finding_text(one.note)) == (Verdict.IMPROVED, words)


def inconclusive(new: Sequence[float], base: Sequence[float], tolerance: float = 0.05) -> Comparison:
    one = judged(measured(series("step_time", new)), beside(series("step_time", base)), tolerance=tolerance)
    assert one["step_time"].verdict is Verdict.INCONCLUSIVE
    return one["step_time"]


def test_an_inconclusive_metric_names_the_launches_that_would_decide_it() -> None:
    one = inconclusive([0.95, 1.05, 1.0, 0.955, 1.045, 1.0], STEADY[:6], tolerance=0.02)
    assert one.mde is not None
    assert re.fullmatch(r"about (\d+) launches would decide it", finding_text(one.note))

    def note(*, last: bool) -> str:
        new, base = measured(one.series), beside(series("step_time", STEADY[:6]))
        rules = {"last": last, "max_time_for": lambda launches: 30.1 + 2 * launches}
        return finding_text(judged(new, base, tolerance=0.02, **rules)["step_time"].note)

    assert note(last=False) == finding_text(one.note)  # there is time yet
    more = known(re.fullmatch(r"about (\d+) launches \(max_time=(\d+)\) would decide it", note(last=True)))
    assert int(more[2]) == 31 + 2 * (int(more[1]) - 6)  # six are there
    few = inconclusive([0.95, 1.05, 1.0, 0.955, 1.045], STEADY[:5], tolerance=0.02)
    assert re.fullmatch(r"about \d+ launches would decide it, estimated from only 5", finding_text(few.note))


def test_a_metric_measured_only_after_the_verdict_says_so() -> None:
    made = tuple(make_launch(round=i, ranks=(make_rank_launch(rank=0, step_times=(1.0,)),)) for i in range(6))
    few = [0.92, 1.08, 1.0, 0.93]
    new = replace(measured(series("phase_forward", few), series("memory_growth", few, factor=3e6)), launches=made)
    base = beside(series("phase_forward", [1.0, 0.95, 1.05, 1.0]), series("memory_growth", [3e6, 2.85e6, 3.15e6, 3e6]))
    phase, growth = (judged(new, base, tolerance=0.03)[metric] for metric in ("phase_forward", "memory_growth"))
    assert (phase.verdict, growth.verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert (finding_text(phase.note), finding_text(growth.note)) == (
        "measured only after the verdict, in 4 launches",
    ) * 2


def test_a_metric_that_more_launches_cannot_decide_says_so() -> None:
    """A baseline of 0.9 to 1.1 knows its mean to 4.1 %, however many launches there are now: more than 3 % and 5 %."""
    wild = [0.9, 1.1, 1.0, 0.9, 1.1, 1.0]
    new, base = measured(series("peak_allocated", STEADY)), found(series("peak_allocated", wild))
    one = judged(new, base, tolerance=0.03)["peak_allocated"]
    assert one.verdict is Verdict.INCONCLUSIVE
    assert one.note == Finding("no_launches_decide", {"any_number": True, "paired": False})


def test_a_metric_that_needs_thousands_of_launches_names_other_cures() -> None:
    """Launches of half and of double the time, which even out, and a tolerance of 3 %."""
    wild = [0.5, 2.0, 0.5, 2.0, 0.5, 2.0]
    one = judged(measured(series("step_time", wild)), beside(series("step_time", wild[::-1])), tolerance=0.03)
    fact = "no practicable number of launches would decide it"
    assert finding_text(one["step_time"].note) == f"{fact}; a wider tolerance or a quieter machine might"


def test_an_improvement_over_the_other_revision_mentions_no_baseline() -> None:
    now, then = (make_counts({}, collective_calls=calls, flops=10.0) for calls in (1.0, 2.0))
    new = replace(measured(), counts=now, series=counted_series(now))
    result = judged(new, beside(then=then))
    assert result.verdict is Verdict.IMPROVED
    assert findings(result) == (
        "collective_calls is 1 per step, 2 in the other revision: collective_calls 2 -> 1 calls per step (-1)",
    )


@pytest.mark.parametrize(
    ("metric", "baseline", "tolerance", "step", "expected"),
    [
        ("step_time", 20.0, 0.03, None, 0.03),
        ("peak_resident", 1e9, 0.03, None, 0.10),  # the slack
        ("peak_resident", 1e9, 0.20, None, 0.20),
        ("peak_resident", 2.0**24, 0.20, None, 0.5),  # 8 of 16 MiB
        ("final_loss", 0.001, 0.0, None, 0.03),
        ("final_loss", 10.0, 0.0, None, 0.3),  # 3 % of 10
        ("final_loss", -10.0, 0.05, None, 0.5),
        ("memory_growth", 1000.0, 0.05, None, 65536.0),  # the slack, in bytes
        ("memory_growth", 4e6, 0.05, None, 2e5),
        ("phase_forward", 0.002, 0.03, None, 6e-5),  # of itself, where no step time is known
        ("cpu_time", 0.08, 0.03, 0.1, 0.0375),  # by what the step may: 3 % of 100 ms are 3 ms
        ("cpu_time", 0.001, 0.03, 0.1, 3.0),
        ("cpu_time", 0.3, 0.03, 0.1, 0.03),  # with more threads than one it is above the step, and 3 % are 3 %
        ("cpu_time", 0.08, 0.03, None, 0.03),
    ],
)
def test_each_metric_has_its_tolerance(
    metric: str, baseline: float, tolerance: float, step: float | None, expected: float
) -> None:
    found = tolerance_of(series(metric, (baseline, baseline)), baseline, tolerance, step)
    assert found == pytest.approx(expected)


def test_paired_times_have_a_smaller_tolerance() -> None:
    auto = DecisionContext(alpha=0.01)
    assert (auto.accepted(paired=False), auto.accepted(paired=True)) == (TOLERANCE, PAIRED_TOLERANCE) == (0.03, 0.015)
    given = DecisionContext(alpha=0.01, tolerance=0.04)
    assert (given.accepted(paired=False), given.accepted(paired=True)) == (0.04, 0.04)
