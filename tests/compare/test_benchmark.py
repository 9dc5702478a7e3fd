from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.compare import Rules, compare
from pytest_ddpperf.counts import Counts
from pytest_ddpperf.metrics import METRICS
from pytest_ddpperf.metrics.counted import counted_series
from pytest_ddpperf.records import Environment, Launch, Measurement, Plan, RankLaunch, Series, Spread
from pytest_ddpperf.results import BaselineRecord, Comparison, Counterpart, Found, Noise, Result
from pytest_ddpperf.verdict import Verdict

ROWS = {metric.name: metric for metric in METRICS}
ENVIRONMENT = Environment("cpu", "some cpu", 0, "some cpu", 8, 1, 1, "gloo", 2, "2.13", None)
STEADY = (1.000, 1.001, 0.999, 1.000, 1.001, 0.999, 1.000, 1.000)


def series(metric: str, samples: Sequence[float], *, factor: float = 1.0) -> Series:
    return ROWS[metric].series(tuple(factor * sample for sample in samples))


def measured(*metrics: Series, environment: Environment = ENVIRONMENT, findings: tuple[str, ...] = ()) -> Measurement:
    return Measurement("ddp", "ddp", None, Plan(3, 60), environment, (), findings, metrics)


def stored(*metrics: Series, plan: Plan = Plan(3, 60)) -> BaselineRecord:  # noqa: B008 - frozen
    return BaselineRecord("ddp", "ddp", None, plan, ENVIRONMENT, metrics, "3f2a1c0", "2026-01-12", ())


def found(*metrics: Series, plan: Plan = Plan(3, 60), differs: tuple[str, ...] = ()) -> Found:  # noqa: B008 - frozen
    return Found(stored(*metrics, plan=plan), "cpu-8c-gloo-w2", differs)


def judged(new: Measurement, base: Found, *, tolerance: float = 0.05) -> Result:
    return compare("test_x.py::test_a", new, base, Rules(tolerance, alpha=0.0025))


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1.2, Verdict.REGRESSED), (1.0, Verdict.UNCHANGED), (0.8, Verdict.IMPROVED)],
)
@pytest.mark.parametrize("metric", ["step_time", "throughput"])
def test_a_benchmark_is_judged_against_its_baseline(metric: str, factor: float, expected: Verdict) -> None:
    slower = factor if metric == "step_time" else 1 / factor
    result = judged(measured(series(metric, STEADY, factor=slower)), found(series(metric, STEADY)))

    assert result.verdict is expected
    assert result[metric].verdict is expected
    assert result[metric].change == pytest.approx(slower - 1)
    assert result[metric].suspicious is (expected is Verdict.REGRESSED)
    assert result[metric].promising is (expected is Verdict.IMPROVED)
    assert result[metric].baseline == pytest.approx(1.0, abs=1e-3)
    assert result[metric].base_samples == STEADY


def test_the_result_carries_where_the_baseline_came_from() -> None:
    base = found(series("step_time", STEADY))
    new = measured(series("step_time", STEADY))
    result = judged(new, base)

    assert (result.test, result.measurement, result.baseline, result.origin) == (
        "test_x.py::test_a",
        new,
        base.record,
        "cpu-8c-gloo-w2",
    )


def test_the_smallest_detectable_effect_is_more_than_the_tolerance() -> None:
    one = judged(measured(series("step_time", STEADY)), found(series("step_time", STEADY)))["step_time"]

    assert one.mde is not None
    assert one.mde > one.tolerance == 0.05


def test_without_a_baseline_everything_is_new() -> None:
    result = judged(measured(series("step_time", STEADY)), Found(None, "no baseline"))

    assert result.verdict is Verdict.NEW
    assert result["step_time"].verdict is Verdict.NEW
    assert (result["step_time"].change, result["step_time"].mde, result["step_time"].baseline) == (None, None, None)


def test_a_metric_that_the_baseline_lacks_is_new_and_the_others_are_judged() -> None:
    new = measured(series("step_time", STEADY), series("peak_resident", [5e8] * 8))
    result = judged(new, found(series("step_time", STEADY)))

    assert result["step_time"].verdict is Verdict.UNCHANGED
    assert result["peak_resident"].verdict is Verdict.NEW
    assert result["peak_resident"].note == "not in the baseline"


@pytest.mark.parametrize(
    ("growth", "expected"), [(20_000, Verdict.UNCHANGED), (200_000, Verdict.REGRESSED), (0, Verdict.UNCHANGED)]
)
def test_growth_of_memory_is_gated_beyond_a_fixed_number_of_bytes(growth: float, expected: Verdict) -> None:
    """The baseline grows by 1000 bytes a step, which would make any fraction of it a tolerance of nothing."""
    base = found(series("memory_growth", [900, 1100, 1000, 1000]))
    one = judged(measured(series("memory_growth", [growth, growth + 100, growth, growth])), base)["memory_growth"]

    assert (one.verdict, one.tolerance) == (expected, 64 * 1024)


def test_a_foreign_baseline_is_shown_with_its_differences_but_never_judges() -> None:
    base = found(series("step_time", STEADY), differs=("torch 2.11 -> 2.13", "cores 4 -> 8"))
    result = judged(measured(series("step_time", STEADY, factor=3.0)), base)

    assert result.verdict is Verdict.INCOMPATIBLE
    assert result["step_time"].change == pytest.approx(2.0)
    assert result["step_time"].mde is None
    assert result["step_time"].note == "the baseline is not comparable: torch 2.11 -> 2.13, cores 4 -> 8"


def test_a_metric_that_a_foreign_baseline_lacks_is_incompatible_too() -> None:
    result = judged(measured(series("step_time", STEADY)), found(differs=("cores 4 -> 8",)))

    assert result.verdict is Verdict.INCOMPATIBLE


def test_a_metric_that_changed_its_unit_is_not_compared() -> None:
    milliseconds = replace(series("step_time", STEADY, factor=1000.0), unit="ms")
    one = judged(measured(series("step_time", STEADY)), found(milliseconds))["step_time"]

    assert (one.verdict, one.change) == (Verdict.INCOMPATIBLE, None)
    assert one.note == "the baseline has this metric as ms lower is better ratio, not as s lower is better ratio"


@pytest.mark.parametrize("turns", [False, True])
def test_steps_that_took_turns_are_not_compared_with_others(*, turns: bool) -> None:
    """The first of each turn lasts longer, by more where more ranks are to be woken. Bytes do not depend on it."""
    metrics = [series(metric, STEADY) for metric in ("step_time", "throughput", "peak_resident")]
    metrics += [replace(metrics[1], metric=metric) for metric in ("speedup", "scaling_efficiency")]
    base = replace(found(), record=replace(stored(*metrics), turns=not turns))
    result = judged(replace(measured(*metrics), turns=turns), base)
    verdicts = [result[metric.metric].verdict for metric in metrics]
    assert verdicts == [*[Verdict.INCOMPATIBLE] * 2, Verdict.UNCHANGED, *[Verdict.INCOMPATIBLE] * 2]
    ways = ["in turns with those of other launches", "with nothing beside them"]
    then, now = ways[::-1] if turns else ways
    assert (
        result["step_time"].note
        == f"the baseline's steps were timed {then}, these {now}: save it anew, or see --ddpperf-turns"
    )
    assert judged(replace(measured(*metrics), turns=not turns), base).verdict is Verdict.UNCHANGED


def test_a_loss_after_another_number_of_steps_is_not_compared() -> None:
    new = measured(series("final_loss", [0.9] * 4), series("step_time", STEADY))
    result = judged(new, found(series("final_loss", [0.5] * 4), series("step_time", STEADY), plan=Plan(3, 100)))

    assert result["final_loss"].verdict is Verdict.INCOMPATIBLE
    assert result["final_loss"].note == "the baseline's loss is that after 103 steps, this one after 63"
    assert result["step_time"].verdict is Verdict.UNCHANGED


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(0.02, Verdict.UNCHANGED), (0.5, Verdict.REGRESSED), (-1.0, Verdict.IMPROVED)],
)
def test_a_loss_near_zero_is_compared_by_subtraction(loss: float, expected: Verdict) -> None:
    result = judged(measured(series("final_loss", [loss] * 4)), found(series("final_loss", [0.001] * 4)))

    assert result.verdict is expected


def test_ungated_metrics_never_decide() -> None:
    skewed = measured(series("step_time", STEADY), series("straggler_skew", [0.9] * 8))
    result = judged(skewed, found(series("step_time", STEADY), series("straggler_skew", [0.1] * 8)))

    assert result["straggler_skew"].verdict is Verdict.REGRESSED
    assert result.verdict is Verdict.UNCHANGED


def test_the_worst_gated_metric_decides() -> None:
    new = measured(series("step_time", STEADY, factor=0.5), series("peak_allocated", [1.2e9] * 8))
    result = judged(new, found(series("step_time", STEADY), series("peak_allocated", [1e9] * 8)))

    assert [one.verdict for one in result.comparisons] == [Verdict.IMPROVED, Verdict.REGRESSED]
    assert result.verdict is Verdict.REGRESSED


def test_an_improvement_says_that_the_baseline_is_stale() -> None:
    one = judged(measured(series("step_time", STEADY, factor=0.5)), found(series("step_time", STEADY)))["step_time"]

    assert one.note == "better than the baseline by more than the tolerance: the baseline is stale"


def inconclusive(new: Sequence[float], base: Sequence[float], tolerance: float = 0.05) -> Comparison:
    one = judged(measured(series("step_time", new)), found(series("step_time", base)), tolerance=tolerance)["step_time"]
    assert one.verdict is Verdict.INCONCLUSIVE
    return one


def test_what_could_not_be_decided_says_what_it_takes() -> None:
    one = inconclusive([0.92, 1.08, 1.0, 0.93, 1.07, 1.0], STEADY, tolerance=0.05)

    assert one.mde is not None
    told = re.fullmatch(r"about (\d+) launches would decide it", one.note)
    assert told is not None

    def note(*, last: bool) -> str:
        rules = Rules(0.05, alpha=0.0025, last=last, max_time_for=lambda launches: 30.1 + 2 * launches)
        new, base = measured(one.series), found(series("step_time", STEADY))
        return compare("test_x.py::test_a", new, base, rules)["step_time"].note

    assert note(last=False) == one.note  # there is time yet
    more = re.fullmatch(r"about (\d+) launches \(max_time (\d+) s\) would decide it", note(last=True))
    assert more is not None
    assert int(more[2]) == 31 + 2 * (int(more[1]) - 6)  # six are there
    few = inconclusive([0.92, 1.08, 1.0, 0.93, 1.07], STEADY, tolerance=0.05)
    assert re.fullmatch(r"about \d+ launches would decide it, as far as 5 can tell", few.note)


def test_what_only_the_first_launches_tell_says_so() -> None:
    made = tuple(Launch(i, (RankLaunch(0, (1.0,), {}, None, None, None),), 1.0) for i in range(6))
    few = [0.92, 1.08, 1.0, 0.93]
    new = replace(measured(series("phase_forward", few), series("memory_growth", few, factor=1e6)), launches=made)
    base = beside(series("phase_forward", [1.0, 0.95, 1.05, 1.0]), series("memory_growth", [1e6, 0.95e6, 1.05e6, 1e6]))
    phase, growth = (judged(new, base)[metric] for metric in ("phase_forward", "memory_growth"))
    assert (phase.verdict, growth.verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert phase.note == "more launches would not decide it: only the first 4 tell"
    assert growth.note.startswith("about ")  # it is asked of further ones until it is decided


def test_what_more_launches_cannot_decide_says_so() -> None:
    """The spread between runs alone is 0.01 * sqrt(2) * 1.645 = 2.3 %, more than a tolerance of 1 %."""
    assert inconclusive(STEADY, STEADY, tolerance=0.01).note.endswith(
        "more launches would not decide it; a wider tolerance, a baseline of more launches or --ddpperf-against might"
    )


def test_what_only_thousands_of_launches_would_decide_says_what_else_might() -> None:
    """Launches of half and of double the time, which even out, and a tolerance of 3 %."""
    wild = [0.5, 2.0, 0.5, 2.0, 0.5, 2.0]
    one = judged(measured(series("step_time", wild)), beside(series("step_time", wild[::-1])), tolerance=0.03)
    fact = "no practicable number of launches would decide it"
    assert one["step_time"].note == f"{fact}; a wider tolerance or a quieter machine might"
    stored_one = inconclusive(wild, [0.793, 0.795] * 50, tolerance=0.05)  # what is slowest of them hardly counts
    assert stored_one.note == f"{fact}; a wider tolerance, a quieter machine or --ddpperf-against might"


def test_single_launches_tell_nothing_about_scatter() -> None:
    one = inconclusive([2.0], [1.0])

    assert (one.change, one.change_interval, one.mde) == (1.0, None, None)
    assert one.note == "one launch on either side tells nothing about scatter; measure at least two"


def test_a_baseline_of_zero_has_no_percentage() -> None:
    result = judged(measured(series("peak_allocated", [5.0] * 4)), found(series("peak_allocated", [0.0] * 4)))

    assert result.verdict is Verdict.INCONCLUSIVE
    assert result["peak_allocated"].note == "no change can be told from a baseline of 0"


def test_nothing_that_stays_nothing_is_unchanged() -> None:
    result = judged(measured(series("peak_allocated", [0.0] * 4)), found(series("peak_allocated", [0.0] * 4)))

    assert result.verdict is Verdict.UNCHANGED


def test_exposed_communication_near_zero_is_not_known_better_than_the_step() -> None:
    """Steps of 200 ms: 1 % is 2 ms, of both runs 2.8 ms, so that 3 ms more may be chance; of 3 ms it would not be."""
    step = series("step_time", STEADY, factor=0.2)
    before, now = (series("exposed_communication", STEADY, factor=value) for value in (0.0001, 0.0031))

    comparison = judged(measured(step, now), found(step, before))["exposed_communication"]

    assert comparison.change_interval is not None
    assert comparison.change_interval.low < 0 < comparison.change_interval.high


def test_a_calibration_never_narrows_what_runs_may_differ_by() -> None:
    base, new = found(series("step_time", STEADY)), measured(series("step_time", STEADY, factor=1.05))
    quiet, wild = (replace(base, noise=Noise(Spread(sd, 4), 0.01, "calibrated on 2026-01-12")) for sd in (0.001, 0.03))
    before, same, wider = (judged(new, one, tolerance=0.03)["step_time"] for one in (base, quiet, wild))
    assert before.mde is not None
    assert wider.mde is not None
    assert same.mde == before.mde < wider.mde


def test_no_tolerance_is_below_the_noise_floor() -> None:
    noise = Noise(Spread(0.002, 4), 0.042, "calibrated on 2026-01-12")
    metrics = [series(metric, STEADY) for metric in ("step_time", "final_loss", "peak_allocated")]
    base = replace(found(*metrics), noise=noise)
    result = judged(measured(*metrics), base, tolerance=0.03)
    assert [one.tolerance for one in result.comparisons] == [0.042, 0.03, 0.03]
    assert result.findings == ("tolerance 3 % raised to 4.2 %: the noise floor calibrated on 2026-01-12",)
    wider = judged(measured(*metrics), base, tolerance=0.05)
    assert (wider["step_time"].tolerance, wider.findings) == (0.05, ())


def test_findings_of_the_measurement_come_with_the_result() -> None:
    crowded = replace(ENVIRONMENT, world_size=16)
    launch = Launch(0, (RankLaunch(0, (0.04,) * 60, {}, None, None, None),), 1.0)
    new = replace(measured(environment=crowded, findings=("said before",)), launches=(launch,))
    result = judged(new, Found(None, "no baseline"))

    assert result.findings[0] == "said before"
    assert result.findings[1].startswith("oversubscribed: 16 ranks share 8 cores")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (Found(None, "no baseline"), Verdict.NEW),
        (found(differs=("cores 4 -> 8",)), Verdict.INCOMPATIBLE),
        (found(), Verdict.UNCHANGED),
    ],
)
def test_without_gated_metrics_the_baseline_alone_decides(base: Found, expected: Verdict) -> None:
    assert judged(measured(), base).verdict is expected


def test_a_metric_that_vanished_does_not_pass_in_silence() -> None:
    base = found(series("step_time", STEADY), series("final_loss", [1.0] * len(STEADY)))
    result = judged(measured(series("step_time", STEADY)), base)

    assert result.verdict is Verdict.INCOMPATIBLE
    assert any(text.startswith("the baseline has final_loss, this run does not") for text in result.findings)


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


def test_a_baseline_that_differs_in_options_alone_is_hinted_at() -> None:
    nothing = Found(None, "no baseline for ddp no_sync=false of t in baselines", alike=("ddp",))
    result = judged(measured(series("step_time", STEADY)), nothing)
    assert result.verdict is Verdict.NEW
    assert result.findings == ("there is a baseline for `ddp`: options are part of a benchmark's identity",)
    several = judged(measured(), replace(nothing, alike=("ddp", "ddp[bucket_cap_mb=5]")))
    assert "there are baselines for `ddp`, `ddp[bucket_cap_mb=5]`: " in several.findings[0]


def beside(*metrics: Series, then: Counts | None = None) -> Found:
    """The other side of this very run."""
    record = replace(stored(*metrics), counts=then)
    return Found(record, "revision 3f2a1c0 (main)", counted=record, counterpart=Counterpart("3f2a1c0 (main)", None))


def test_two_sides_of_one_run_are_compared_by_rounds() -> None:
    """The rounds differ by far more than 4 %, and both sides in the same way; there is no spread between runs."""
    rounds = (1.0, 1.3, 0.8, 1.1)
    new = measured(series("step_time", rounds, factor=1.04))
    result = judged(new, beside(series("step_time", rounds)), tolerance=0.03)
    assert result.verdict is Verdict.REGRESSED
    interval = result["step_time"].change_interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.04, 0.04))
    assert result["step_time"].mde == pytest.approx(0.03)
    assert judged(new, found(series("step_time", rounds)), tolerance=0.03).verdict is Verdict.INCONCLUSIVE
    assert (result.baseline, result.counterpart) == (None, Counterpart("3f2a1c0 (main)", None))


def test_what_is_better_than_the_other_revision_speaks_of_no_baseline() -> None:
    """In one metric, and in none worse: improved; beside a baseline it would take all of them."""
    now, then = (Counts({"collective_calls": calls, "flops": 10.0}, {}, {}) for calls in (1.0, 2.0))
    new = replace(measured(), counts=now, series=counted_series(now))
    result = judged(new, beside(then=then))
    assert result.verdict is Verdict.IMPROVED
    assert result.findings == (
        "collective_calls is 1 per step, 2 in the other revision: collective_calls 2 -> 1 calls per step (-1)",
    )
    faster = judged(measured(series("step_time", STEADY, factor=0.8)), beside(series("step_time", STEADY)))
    assert (faster.verdict, faster["step_time"].note) == (Verdict.IMPROVED, "")


def test_what_is_undecided_does_not_hide_what_is_better_than_the_other_revision() -> None:
    """Nor is it hidden itself; beside a baseline, the whole of which would be stale, it stays undecided."""
    wild = (1.0, 3.0, 0.5, 2.0)
    new = measured(series("step_time", STEADY, factor=0.8), series("step_time_tail", wild[::-1]))
    then = (series("step_time", STEADY), series("step_time_tail", wild))
    result = judged(new, beside(*then))
    assert (result.verdict, result["step_time_tail"].verdict) == (Verdict.IMPROVED, Verdict.INCONCLUSIVE)
    assert judged(new, found(*then)).verdict is Verdict.INCONCLUSIVE


def test_what_the_other_revision_alone_measures_is_named() -> None:
    result = judged(
        measured(series("final_loss", STEADY)), beside(*(series(m, STEADY) for m in ("step_time", "final_loss")))
    )
    assert result.findings == ("the other revision has step_time, this run does not: it is gated no more",)


UNSTEADY = (1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 1.0, 0.7)


@pytest.mark.parametrize(
    ("step", "work", "gated"),
    [
        ((1.1, 1.2, 1.0, 1.3, 0.9, 1.1, 1.2, 0.8), 1.1, True),  # longer, but who knows
        ((1.1, 1.2, 1.0, 1.3, 0.9, 1.1, 1.2, 0.8), 0.9, False),  # less work is no shorter step
        ((0.9, 1.2, 0.9, 1.0, 0.9, 1.1, 1.0, 0.7), 1.1, False),  # more work may make steps shorter
        (UNSTEADY, 1.1, False),  # shown to be as long as before
    ],
)
def test_more_work_counts_where_steps_may_be_longer(step: tuple[float, ...], work: float, *, gated: bool) -> None:
    cpu_time = replace(series("cpu_time", STEADY, factor=work), gated=True)
    base = beside(series("step_time", UNSTEADY), series("cpu_time", STEADY))
    rules = Rules(0.05, alpha=0.0025, last=True)
    result = compare("test_x.py::test_a", measured(series("step_time", step), cpu_time), base, rules)
    assert result["cpu_time"].gated is gated
    assert (result["cpu_time"].note == "in place of the step time, which remains undecided") is gated


def test_work_that_a_run_does_not_tell_of_is_not_missed() -> None:
    base = found(series("step_time", STEADY), replace(series("cpu_time", STEADY), gated=True))
    assert judged(measured(series("step_time", STEADY)), base).findings == ()


def test_what_a_probe_is_after_counts_whatever_the_step_time_says() -> None:
    """And the tolerance is as given: 5 %, though a step lasts ten times as long as it has a core."""
    step, cpu_time = (replace(series(name, STEADY), gated=name == "cpu_time") for name in ("step_time", "cpu_time"))
    ten_times = replace(series("step_time", STEADY, factor=10), gated=False)
    result = judged(
        measured(step, replace(series("cpu_time", STEADY, factor=1.1), gated=True)), found(ten_times, cpu_time)
    )
    assert result.verdict is Verdict.REGRESSED
    assert result["cpu_time"].tolerance == 0.05
    wide = judged(measured(step, cpu_time), found(series("step_time", STEADY, factor=10), cpu_time))
    assert wide["cpu_time"].tolerance == pytest.approx(0.5, rel=0.01)


def test_a_metric_that_this_side_alone_has_hides_nothing_beside_another_revision() -> None:
    faster, ours = series("step_time", STEADY, factor=0.8), series("throughput", STEADY)
    beside = replace(found(series("step_time", STEADY)), counterpart=Counterpart("main", None, 8))
    result = judged(measured(faster, ours), beside)
    assert (result.verdict, result["throughput"].verdict) == (Verdict.IMPROVED, Verdict.NEW)
    assert result["throughput"].note == "not in the other revision"
    assert judged(measured(ours), beside).verdict is Verdict.INCOMPATIBLE  # it lacks what the other one has
