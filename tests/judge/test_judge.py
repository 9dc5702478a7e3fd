"""The judge between measuring and comparing, on made-up launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.judge.decision import DecisionContext
from pytest_ddpperf.judge.detection import Proofs
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.judge.sequential import Action, Interim
from pytest_ddpperf.metrics.scaling import DeriveSeries, alone, gated_if_paired, with_efficiency, with_speedup
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Health
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.records.results import PairedRevision, Provenance, StoredBaseline, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.run.call.references import PairedReferences, StoredReferences
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import t_quantile
from tests.factories import known, make_environment, make_launch, make_rank_launch, make_variant

PLAN = Plan(warmup=1, steps=4)
REVISION = Revision("main", "3f2a1c0" + "0" * 33, Path("/project"))
STEADY = [0.1000, 0.1001, 0.0999, 0.1000]


QUIET = Health(cpu=CpuHealth(others=0.0))


def measured(
    times: Sequence[float], world_size: int = 2, cores: int = 8, memory: Sequence[float] | None = None
) -> Measurement:
    """A measurement whose launches each take one of ``times`` a step, on every rank, and one of ``memory`` in GB."""
    environment = make_environment(cores=cores, world_size=world_size, recorded={"host": "here"})
    sizes: Sequence[float | None] = [None] * len(times) if memory is None else memory
    launches = tuple(
        make_launch(
            round=i,
            ranks=tuple(
                make_rank_launch(
                    rank=r,
                    step_times=(time,) * 4,
                    memory={} if size is None else {"peak_allocated": 1e9 * size},
                    loss=1.0,
                    samples_per_step=8.0,
                )
                for r in range(world_size)
            ),
            health=QUIET,
        )
        for i, (time, size) in enumerate(zip(times, sizes, strict=True))
    )
    one = Measurement(name="ddp", strategy="ddp", mode=None, plan=PLAN, environment=environment, launches=launches)
    return replace(one, series=series_of(one))


def taking(sizes: Sequence[float]) -> Measurement:
    """Steady launches that each take one of these sizes, in tenths of a GB: stored baselines judge memory."""
    return measured([0.1] * len(sizes), memory=sizes)


def stored_as(base: Measurement) -> StoredBaseline:
    """The baseline that was stored of it."""
    return StoredBaseline(record=record_of(base, Provenance(date="2026-01-12", commit="abc")), origin="the key")


def baseline(sizes: Sequence[float]) -> StoredBaseline:
    """That of launches which took these sizes."""
    return stored_as(taking(sizes))


def in_turns(times: Sequence[float]) -> Measurement:
    """The same beside another one, with which its steps took turns."""
    return replace(measured(times), turns=True)


def look_at(seconds: float, *, last: bool, screened: bool = False) -> Interim:
    """One of a minute, in which rounds take a second each; the errors of proofs grow with the time."""
    over, rounds = 1.0 if last else seconds / 60, int(60 - seconds)
    return Interim(seconds, 1.0, last=last, screened=screened, over=over, rounds=rounds)


def after(seconds: float) -> Interim:
    """The last one is in the middle of the minute."""
    return look_at(seconds, last=seconds > 29)


def side_by_side(seconds: float) -> Interim:
    """Half of the minute is there to find something suspicious."""
    return look_at(seconds, last=seconds > 59, screened=seconds > 29)


def of_budget(seconds: float) -> Interim:
    """The same of time that the session deals out."""
    return replace(side_by_side(seconds), shared=True)


AT_THE_END = Interim(60.0, 1.0, last=False)  # of the time; all of the error of proofs is left


def stored(*baselines: StoredBaseline) -> StoredReferences:
    return StoredReferences(baselines=baselines, both_sides=(), derive=alone)


def paired(
    variants: Sequence[Variant], derive: DeriveSeries, lacking: Mapping[tuple[str, int], str] | None = None
) -> PairedReferences:
    return PairedReferences(revision=REVISION, variants=tuple(variants), derive=derive, lacking=lacking or {})


LONG = Settings(launches=4, max_time=60.0)


def of_several(names: str, settings: Settings, derive: DeriveSeries = alone) -> Judge:
    """One of benchmarks with these letters as names, beside another revision."""
    variants = [make_variant(name, environment=measured(STEADY).environment) for name in names]
    return Judge("test_it", settings, paired(variants, derive))


def of_one(settings: Settings | None = None, derive: DeriveSeries = alone) -> Judge:
    """One of a single benchmark, beside another revision."""
    variant = make_variant("ddp", environment=measured(STEADY).environment)
    return Judge("test_it", settings or Settings(launches=4), paired([variant], derive))


def judge(found: StoredBaseline, tolerance: float = 0.03) -> Judge:
    return Judge("test_it", Settings(launches=4, tolerance=tolerance, max_time=60.0), stored(found))


def test_a_result_to_be_stored_is_measured_for_longer() -> None:
    one = Judge(
        "test_it", Settings(launches=4, save="default"), stored(StoredBaseline(record=None, origin="no baseline"))
    )
    assert one((measured(STEADY),), after(4.0)) == Action("more", 1, explain=True)
    assert one.results[0].verdict is Verdict.NEW
    larger = (taking([1.2 * size for size in STEADY]),)
    one = Judge("test_it", Settings(launches=4, save="default"), stored(baseline(STEADY)))
    assert one(larger, after(4.0)) == Action("more", 1, explain=True)  # accepted, so there is nothing to confirm


def test_a_result_to_be_stored_stays_worse_although_all_of_its_time_is_used() -> None:
    """Whoever stores it has to see that it takes more; and a run that diagnoses changes nothing in it."""
    larger = (taking([1.2 * size for size in STEADY]),)
    one = Judge("test_it", Settings(launches=4, save="default"), stored(baseline(STEADY)))
    end = side_by_side(60.0)
    assert one(larger, end) == Action("stop", explain=True)
    assert one(larger, replace(end, diagnosed=True)) == Action("stop")
    assert one.results[0].verdict is Verdict.REGRESSED


def growing(growth: float, name: str = "ddp") -> Measurement:
    """Steady launches, and one that diagnosed: in each of its steps memory grows by so many KiB."""
    held = tuple(int(step * growth * 2**10) for step in range(8))
    one = replace(taking(STEADY), name=name)
    ranks = tuple(replace(rank, held=held) for rank in one.launches[0].ranks)
    one = replace(one, diagnoses=(make_launch(ranks=ranks),))
    return replace(one, series=series_of(one))


def not_growing() -> StoredBaseline:
    """A baseline whose memory does not."""
    return stored_as(growing(0.0))


DIAGNOSED = Interim(6.0, 1.0, last=False, diagnosed=True)


def test_growth_of_memory_is_red_when_fresh_launches_show_it_as_well() -> None:
    one = judge(not_growing())
    assert one((taking(STEADY),), AT_THE_END) == Action("stop")
    assert one((growing(1024.0),), DIAGNOSED) == Action("confirm", 1, ("memory_growth",))
    assert one((growing(900.0),), DIAGNOSED) == Action("stop")
    assert one.results[0].verdict is Verdict.REGRESSED
    assert [c.series.metric for c in one.results[0].comparisons if c.verdict is Verdict.REGRESSED] == ["memory_growth"]


@pytest.mark.parametrize(
    ("growth", "expected"), [(60.0, Verdict.UNCHANGED), (80.0, Verdict.INCONCLUSIVE), (95.0, Verdict.REGRESSED)]
)
def test_growth_is_known_to_some_kilobytes_by_a_single_launch(growth: float, expected: Verdict) -> None:
    """64 KiB a step are tolerated. Launches see 17 KiB more or less: two of them differ by 24 KiB, with certainty.

    Before the last look of two metrics, at 0.3 * 0.01 / 2 / 2, significance takes 3.48 of these, 84 KiB; and that
    it lies below 107 KiB, 5/3 of the tolerance, takes 1.65 of them.
    """
    one = judge(not_growing())
    one((growing(growth),), DIAGNOSED)
    assert one.results[0]["memory_growth"].verdict is expected


def test_memory_growth_may_be_red_whatever_else_was_suspected() -> None:
    """The launches that diagnose are no part of what looked worse before, nor of what confirmed it."""
    one = judge(not_growing())
    assert one((taking([1.2 * size for size in STEADY]),), after(4.0)).kind == "confirm"
    assert one((taking(STEADY),), AT_THE_END) == Action("stop")
    assert one((growing(1024.0),), DIAGNOSED) == Action("confirm", 1, ("memory_growth",))
    assert one((growing(1024.0),), DIAGNOSED) == Action("stop")
    assert one.results[0].verdict is Verdict.REGRESSED


def test_of_several_each_has_to_grow_again_itself() -> None:
    """One grows, and in the fresh launch another one: either may be chance."""
    one = Judge("test_it", Settings(launches=4), stored(not_growing(), not_growing()))
    assert one((growing(1024.0, "a"), growing(0.0, "b")), DIAGNOSED) == Action("confirm", 1, ("memory_growth of a",))
    assert one((growing(0.0, "a"), growing(1024.0, "b")), DIAGNOSED) == Action("stop")
    assert [result["memory_growth"].verdict for result in one.results] == [Verdict.UNCHANGED, Verdict.INCONCLUSIVE]
    assert one.results[1]["memory_growth"].note == Finding("unconfirmed")


def test_growth_that_is_accepted_need_not_be_confirmed() -> None:
    one = Judge("test_it", Settings(launches=4, save="default"), stored(not_growing()))
    assert one((growing(1024.0),), DIAGNOSED) == Action("stop")


def test_bytes_and_a_loss_take_no_part_of_the_level_of_noisy_metrics() -> None:
    """Their scatter is far below what is accepted, so they raise no false alarm that others would have to share."""

    def seen(side: Measurement) -> float | None:
        one = of_one()
        one((side, side), AT_THE_END)
        return one.results[0]["step_time"].mde

    def times(one: Measurement) -> Measurement:
        series = tuple(kept for kept in one.series if kept.unit != "B" and kept.metric != "final_loss")
        return replace(one, series=series)

    both = growing(0.0)
    assert {"memory_growth", "peak_allocated", "final_loss"} <= {series.metric for series in both.series}
    assert seen(times(both)) == seen(both) is not None


def test_a_result_saved_into_one_set_is_still_judged_by_another() -> None:
    one = Judge("test_it", Settings(launches=4, save="x", baseline_set="default"), stored(baseline(STEADY)))
    assert one((taking([1.2 * size for size in STEADY]),), after(4.0)) == Action("confirm", 4, ("peak_allocated",))


def test_equal_memory_is_decided_at_once_and_stored_times_need_no_more_launches() -> None:
    one = judge(baseline(STEADY))
    assert one((taking(STEADY),), after(4.0)) == Action("stop")
    assert one.results[0]["peak_allocated"].verdict is Verdict.UNCHANGED
    assert one.results[0]["step_time"].note == Finding("stored_times")
    slower = measured([0.13] * 4, memory=STEADY)
    assert one((slower,), after(4.0)) == Action("stop")
    assert one.results[0]["step_time"].note == Finding("not_gross", {"gross": 0.5})


def noisily(factor: float) -> Measurement:
    """Launches that take so many times the 0.1 s of the baseline's, give or take 30 %."""
    return measured([0.1 * factor * by for by in (1.0, 1.3, 0.77, 1.0)], memory=STEADY)


def test_a_suspected_gross_slowdown_from_stored_times_gets_more_launches() -> None:
    """Twice as long is beyond +50 %, and four launches do not show it for certain; 1.4 times is not."""
    one = judge(stored_as(noisily(1.0)))
    assert one((noisily(1.4),), after(4.0)) == Action("stop")
    assert one((noisily(2.0),), after(4.0)) == Action("more", 1)
    assert one.results[0].verdict is Verdict.INCONCLUSIVE
    assert one((noisily(2.0),), after(30.0)) == Action("stop")
    assert one((noisily(9.0),), after(30.0)) == Action("stop", explain=True, worse=True)
    assert one.results[0]["step_time"].note == Finding("gross")


@pytest.mark.parametrize(
    ("resolution", "expected"), [(0.026, Verdict.OK), (0.0255, Verdict.INCONCLUSIVE), (0.0, Verdict.INCONCLUSIVE)]
)
def test_a_bound_within_the_resolution_is_ok(resolution: float, expected: Verdict) -> None:
    """The bound is 2.56 %, beyond the margin of 2.5 %; it is printed, and measuring goes on while there is time."""
    one = of_one(Settings(launches=4, must_detect=resolution, max_time=60.0))
    here = in_turns([0.1 * math.exp(0.026 * sign) for sign in (1, -1, 1, -1)])
    assert one((here, in_turns([0.1] * 4)), AT_THE_END) == Action("more", 1)
    step = one.results[0]["step_time"]
    assert (one.results[0].verdict, step.verdict) == (expected, expected)
    assert step.bound == pytest.approx(0.0256, abs=5e-5)
    assert (step.note is None) is (expected is Verdict.OK)


def test_a_comparison_has_all_that_its_bound_and_interval_are_recomputed_from() -> None:
    """The first look that proves may spend 5 % times the share of the time that is over."""
    alpha = 0.025
    one = of_one(Settings(launches=4, max_time=60.0))
    here = in_turns([0.1 * math.exp(0.03 * sign) for sign in (1, -1, 1, -0.5)])
    one((here, in_turns([0.1] * 4)), replace(AT_THE_END, over=0.5))
    step = one.results[0]["step_time"]
    assert step.bound_alpha == pytest.approx(alpha)
    assert step.interval_alpha == pytest.approx(alpha)
    shift, error, interval = math.log1p(known(step.change)), known(step.standard_error), known(step.change_interval)
    reach = [t_quantile(1 - each, step.df) * error for each in (alpha, alpha / 2)]
    assert math.log1p(known(step.bound)) == pytest.approx(shift + reach[0])
    assert math.log1p(interval.high) == pytest.approx(shift + reach[1])
    assert interval.confidence == 0.95


def test_a_probe_asks_on_which_side_of_the_tolerance_it_is() -> None:
    """The bound is 2.44 %."""
    variant = make_variant("ddp", environment=measured(STEADY).environment)
    here = in_turns([0.1 * math.exp(0.025 * sign) for sign in (1, -1, 1, -1)])
    for tolerance, expected in ((0.02, Verdict.INCONCLUSIVE), (0.025, Verdict.UNCHANGED)):
        settings = Settings(launches=4, tolerance=tolerance)
        one = Judge("test_it", settings, paired([variant], alone), margin=1.0)
        one((here, in_turns([0.1] * 4)), AT_THE_END)
        assert one.results[0]["step_time"].verdict is expected


def test_a_confirmation_has_as_many_launches_as_before_but_at_least_four() -> None:
    for made, asked in ((2, 4), (4, 4), (7, 7)):
        one = judge(baseline(STEADY))
        larger = (taking([1.2 * size for size in (STEADY * 2)[:made]]),)
        assert one(larger, after(4.0)) == Action("confirm", asked, ("peak_allocated",))


def test_a_slowdown_first_suspected_after_the_screening_is_never_red() -> None:
    """The last look of the screening may still raise a suspicion; of any after it nothing could confirm one."""
    unsure = in_turns([0.098, 0.102, 0.098, 0.104]), in_turns([0.1, 0.099, 0.1, 0.098])
    slower = in_turns([1.2 * time for time in STEADY]), in_turns(STEADY)
    one = of_one()
    assert one(unsure, side_by_side(10.0)) == Action("more", 1)
    assert one(slower, side_by_side(30.0)) == Action("confirm", 4, ("step_time",))
    assert one(slower, side_by_side(34.0)) == Action("stop", explain=True, worse=True)
    one = of_one()
    assert one(unsure, side_by_side(30.0)) == Action("more", 1)
    assert one(slower, side_by_side(31.0)) == Action("more", 1)
    assert one(slower, side_by_side(60.0)) == Action("stop")
    (result,) = one.results
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result["step_time"].note == Finding("unconfirmed")
    assert not result["step_time"].suspicious, "it can be found worse no more"
    assert one(slower, replace(side_by_side(61.0), diagnosed=True)) == Action("stop")
    assert one.results[0].verdict is Verdict.INCONCLUSIVE


def test_a_suspect_that_was_chance_is_cleared() -> None:
    one = judge(baseline(STEADY))
    large = [1.2 * size for size in STEADY]
    assert one((taking(large),), after(4.0)).kind == "confirm"
    assert one((replace(taking(large + STEADY * 12), fresh_from=4),), after(30.0)) == Action("stop")
    assert one.results[0]["peak_allocated"].verdict is Verdict.UNCHANGED


def test_launches_that_confirm_one_suspect_make_no_other_benchmark_red() -> None:
    """Of two variants a looks slower, and the fresh launches say that b is: either may be chance, so nothing is red."""

    def sides(a: float, b: float) -> tuple[Measurement, ...]:
        times = {"a": [a * time for time in STEADY], "b": [b * time for time in STEADY]}
        here = [replace(in_turns(times[name]), name=name) for name in "ab"]
        return *here, *(replace(in_turns(STEADY), name=name) for name in "ab")

    one = of_several("ab", Settings(launches=4))
    those = frozenset({("a", 2)})
    assert one(sides(1.2, 1.0), after(4.0)) == Action("confirm", 4, ("step_time of a",), benchmarks=those)
    assert one(sides(1.0, 1.2), after(8.0)) == Action("more", 1, benchmarks=frozenset({("b", 2)}))
    assert [result.verdict for result in one.results] == [Verdict.UNCHANGED, Verdict.INCONCLUSIVE]
    assert finding_text(one.results[1]["step_time"].note) == (
        "worse in the last launches, but not in the first ones, so not confirmed: run the test again"
    )
    assert one(sides(1.2, 1.2), after(9.0)) == Action("stop", explain=True, worse=True)
    assert [result.verdict for result in one.results] == [Verdict.REGRESSED, Verdict.INCONCLUSIVE]


def bound_of(one: Judge, number: int) -> float:
    """The slowdown of a benchmark's step time that the last look ruled out."""
    return known(one.results[number]["step_time"].bound)


def test_a_benchmark_with_a_green_verdict_gets_no_more_launches_and_keeps_it() -> None:
    """Side by side a is unchanged at once, and b is not: it goes on alone, and the look after may prove nothing."""

    def sides(of_b: Sequence[float]) -> tuple[Measurement, ...]:
        here = [replace(in_turns(STEADY), name="a"), replace(in_turns(of_b), name="b")]
        return *here, replace(in_turns(STEADY), name="a"), replace(in_turns([0.1] * len(of_b)), name="b")

    one = of_several("ab", LONG)
    noisy = [0.1, 0.11, 0.09, 0.105]
    measured_on = frozenset({("b", 2)})
    assert one(sides(noisy), side_by_side(20.0)) == Action("more", 1, benchmarks=measured_on)
    a, b = one.results
    assert (a.verdict, b.verdict) == (Verdict.UNCHANGED, Verdict.INCONCLUSIVE)
    early = bound_of(one, 0)
    assert one(sides([*noisy, 0.095]), side_by_side(21.0)) == Action("more", 1, benchmarks=measured_on)
    assert [result.verdict for result in one.results] == [Verdict.UNCHANGED, Verdict.INCONCLUSIVE]
    assert bound_of(one, 0) == early
    assert one(sides([*noisy, 0.095, 0.101]), side_by_side(60.0)).kind == "stop"
    assert one.results[0].verdict is Verdict.UNCHANGED
    assert bound_of(one, 0) < early, "the last look has what is left of the errors"


NOISY_B, NOISY_A = [0.1, 0.109, 0.093, 0.106, 0.096, 0.1], [0.1, 0.14, 0.07, 0.11, 0.09, 0.12] * 3


def test_a_suspect_is_confirmed_by_as_many_launches_as_it_had() -> None:
    """a went on alone, and has twelve launches; b has the four that it is suspected by."""
    one = of_several("ab", LONG)
    asked = Action("confirm", 4, ("step_time of b",), benchmarks=frozenset({("b", 2)}))
    assert one(waiting(NOISY_A[:12], [0.12, 0.121, 0.119, 0.12]), of_budget(14.0)) == asked


def test_the_partner_of_a_suspect_does_not_change_the_number_of_confirming_launches() -> None:
    """The speedup of b is gated over a, which went on alone before, and has twelve launches."""
    derive = partial(with_speedup, over="a", gated=True)
    one = of_several("ab", LONG, derive)
    action = one(waiting(STEADY * 3, [0.12, 0.121, 0.119, 0.12]), of_budget(14.0))
    assert (action.kind, action.launches, action.benchmarks) == ("confirm", 4, None)


def test_in_a_budget_a_benchmark_that_is_ok_does_not_delay_others() -> None:
    """At 13 s nothing may be proven of b, whose bound was within the resolution at 10 s; a was proven at once."""
    one, of_b = of_several("ab", LONG), [0.1, 0.103, 0.097, 0.101, 0.099, 0.102, 0.1005]
    both = [Action("more", 1), Action("more", 1)]
    asked = [one(waiting(of_b[::-1], of_b[:launches]), of_budget(at)) for launches, at in ((6, 10.0), (7, 13.0))]
    assert [result.verdict for result in one.results] == [Verdict.OK, Verdict.INCONCLUSIVE]
    assert asked == both


def test_in_a_budget_a_benchmark_gets_launches_again_if_its_bound_widens() -> None:
    """b rules 10 % out at 5 s, and no more with the launches that it has at the next look that may prove."""
    one, of_b = of_several("ab", LONG), [0.1, 0.103, 0.097, 0.101, 0.099, 0.102]
    assert one(waiting(of_b[::-1], of_b), of_budget(5.0)) == Action("more", 1)
    scattered = [*of_b, 0.13, 0.075, 0.14, 0.07]
    assert one(waiting(of_b[::-1], scattered), of_budget(10.5)).benchmarks == frozenset({("b", 2)})


def test_the_hint_of_max_time_counts_rounds_of_the_benchmark_itself() -> None:
    """b went on alone, with rounds of half a second; those that a lacks take four seconds each."""
    one = of_several("ab", LONG)
    interim = Interim(60.0, 0.5, last=True, screened=True, of_each={("a", 2): 4.0, ("b", 2): 0.5})
    one(waiting(NOISY_A[:6], NOISY_B), interim)
    note = known(one.results[0]["step_time"].note)
    assert note.code == "launches_needed"
    assert note.facts["max_time"] == 60 + 4 * (note.facts["launches"] - 6)


def test_the_mde_follows_from_the_launches_that_went_on_alone() -> None:
    """There is time for 36 rounds more than the 24 that there are, or for none."""
    found = []
    for rounds in (36, 0):
        one = of_several("ab", LONG)
        interim = Interim(40.0, 0.5, last=True, rounds=rounds)
        one(waiting([0.1, 0.103, 0.097, 0.101, 0.099, 0.102] * 4, STEADY), interim)
        found.append(one.results[0]["step_time"].mde)
    assert found == pytest.approx([0.0196, 0.0224], abs=1e-4)


@pytest.mark.parametrize(("shared", "measured_on"), [(False, "bc"), (True, "c")])
def test_in_a_budget_inconclusive_benchmarks_get_launches_before_ok_ones(measured_on: str, *, shared: bool) -> None:
    """Side by side a is unchanged, b is ok, and c could be slower by more than the resolution."""
    times = {"a": STEADY, "b": [0.1, 0.103, 0.097, 0.101, 0.099, 0.102], "c": [0.1, 0.14, 0.07, 0.11, 0.09, 0.12]}
    here = [replace(in_turns(times[name]), name=name) for name in "abc"]
    there = [replace(in_turns([0.1] * len(times[name])), name=name) for name in "abc"]
    one = of_several("abc", LONG)
    keys = frozenset((name, 2) for name in measured_on)
    assert one((*here, *there), replace(side_by_side(20.0), shared=shared)) == Action("more", 1, benchmarks=keys)
    assert [result.verdict for result in one.results] == [Verdict.UNCHANGED, Verdict.OK, Verdict.INCONCLUSIVE]


def test_compared_with_a_stored_baseline_all_benchmarks_are_launched_together() -> None:
    """What is launched beside others is compared with what was."""
    here = (replace(taking(STEADY), name="a"), replace(taking([0.1, 0.11, 0.09, 0.105]), name="b"))
    found = stored(baseline(STEADY), baseline(STEADY))
    one = Judge("test_it", Settings(launches=4, max_time=60.0, tolerance=0.06), found)
    assert one(here, after(4.0)) == Action("more", 1)


def test_a_variant_gated_over_another_one_is_launched_together_with_it() -> None:
    """Of three c is open, whose speedup is over a."""
    times = {"a": STEADY, "b": STEADY, "c": [0.05, 0.055, 0.045, 0.0525]}
    here = [replace(in_turns(times[name]), name=name) for name in "abc"]
    there = [replace(in_turns([sum(times[name]) / len(times[name])] * len(times[name])), name=name) for name in "abc"]
    for gated, names in ((True, "ac"), (False, "c")):
        measured_on = frozenset((name, 2) for name in names)
        derive = partial(with_speedup, over="a", gated=gated)
        one = of_several("abc", LONG, derive)
        assert one((*here, *there), side_by_side(20.0)) == Action("more", 1, benchmarks=measured_on)


@pytest.mark.parametrize("slower", [1.2, 1.0])
def test_if_measuring_ends_with_a_regression_the_others_use_all_of_the_remaining_level(slower: float) -> None:
    """After an eighth of the time, when the other variant is red; while none is, the looks to come need their part."""

    def sides(launches: int) -> tuple[Measurement, ...]:
        steady = [0.1] * launches
        times = {"a": [slower * time for time in steady], "b": [0.103, 0.097, 0.103, 0.097] * (launches // 4)}
        here = [replace(in_turns(times[name]), name=name) for name in "ab"]
        return *here, *(replace(in_turns(steady), name=name) for name in "ab")

    one = of_several("ab", Settings(launches=4))
    action = one(sides(4), after(4.0))
    assert action.kind == ("confirm" if slower > 1 else "more")
    action = one(sides(8), after(8.0))
    assert [result.verdict for result in one.results] == (
        [Verdict.REGRESSED, Verdict.UNCHANGED] if slower > 1 else [Verdict.UNCHANGED, Verdict.OK]
    )


def test_a_step_that_is_longer_may_be_suspected_by_its_work() -> None:
    """The CPU time tells first; what the fresh launches say of the step time counts as well."""
    one = of_one(derive=gated_if_paired(alone))
    first = working(NOISY_AND_LONGER, MORE_WORK), working(NOISY, WORK)
    assert one(first, after(4.0)) == Action("confirm", 6, ("cpu_time",))
    six = [1.0, 1.001, 0.999] * 2
    assert one(
        (working([0.12 * x for x in six], MORE_WORK), working([0.1 * x for x in six], WORK)), after(8.0)
    ) == Action("stop", explain=True, worse=True)
    assert one.results[0]["step_time"].verdict is Verdict.REGRESSED


def test_both_sides_of_a_run_are_related_each_for_itself() -> None:
    """Twice as fast on both sides: the speedup is the same, and so is what is held against the other side."""
    sides = tuple(
        replace(measured([factor * time for time in STEADY]), name=name)
        for factor, name in ((1.2, "a"), (0.6, "b"), (1.0, "a"), (0.5, "b"))
    )
    one = of_several("ab", Settings(launches=4), partial(with_speedup, over="a"))
    assert one(sides, after(4.0)) == Action("confirm", 4, ("step_time of a and b",))
    assert [result.verdict for result in one.results] == [Verdict.REGRESSED] * 2
    assert [result.reference.origin for result in one.results] == [
        "revision 3f2a1c0 (main), side by side, 4+4 launches"
    ] * 2
    assert one.results[1]["speedup"].change == pytest.approx(0.0)
    assert one.results[0].seconds == 4.0


WORK = [0.0900, 0.0901, 0.0899, 0.0900, 0.0902, 0.0899]
MORE_WORK = [0.1001, 0.0999, 0.1000, 0.1000, 0.0999, 0.1002]
NOISY = [0.10, 0.20, 0.15, 0.12, 0.11, 0.19]
NOISY_AND_LONGER = [0.20, 0.12, 0.13, 0.16, 0.21, 0.11]


def test_without_a_pair_more_work_is_shown_only() -> None:
    one = judge(stored_as(working(NOISY, WORK)))
    one((working(NOISY_AND_LONGER, MORE_WORK),), after(60.0))
    work = one.results[0]["cpu_time"]
    assert (work.verdict, work.note) == (Verdict.INCONCLUSIVE, Finding("not_gross", {"gross": 0.5}))
    assert not work.gated


def test_points_that_share_cores_are_not_gated_by_cpu_time_either() -> None:
    """In a curve, whose points with more ranks than cores tell nothing about scaling."""
    curve = working(STEADY, WORK[:4], 1), working(STEADY, WORK[:4], 2, cores=1)
    gates = [one["cpu_time"].gated for one in gated_if_paired(partial(with_efficiency, mode="weak"))(curve)]
    assert gates == [True, False]


def working(times: Sequence[float], cpus: Sequence[float], world_size: int = 2, cores: int = 8) -> Measurement:
    """As ``measured``; in the launches each rank has a core for so many seconds of a step."""
    one = measured(times, world_size, cores)
    launches = tuple(
        replace(launch, ranks=tuple(replace(rank, cpu_time=cpu) for rank in launch.ranks))
        for launch, cpu in zip(one.launches, cpus, strict=True)
    )
    one = replace(one, launches=launches)
    return replace(one, series=series_of(one))


FASTER = [0.089, 0.097, 0.091, 0.095]
"""Of 0.1: shorter by 7.2 +- 1.5 %, which is no longer for certain, but with so few launches not shorter for certain."""


def test_a_seeming_improvement_over_another_revision_is_measured_until_it_is_certain() -> None:
    one = of_one()
    sides = measured(FASTER), measured([0.1] * 4)
    assert one(sides, after(4.0)) == Action("more", 1)
    assert one(sides, after(60.0)) == Action("stop")
    assert [result.verdict for result in one.results] == [Verdict.UNCHANGED]
    assert finding_text(one.results[0]["step_time"].note) == "probably better, but not significantly"
    longer = measured(FASTER * 5), measured([0.1] * 20)
    one = of_one()
    assert one(longer, AT_THE_END) == Action("stop")
    assert [result.verdict for result in one.results] == [Verdict.IMPROVED]


FADED = [*FASTER, 0.110, 0.108, 0.092, 0.106]


def test_a_green_verdict_stands_if_a_seeming_improvement_disappears() -> None:
    fresh = of_one()
    later = measured(FADED), measured([0.1] * 8)
    assert fresh(later, AT_THE_END) == Action("more", 1)
    assert [result.verdict for result in fresh.results] == [Verdict.OK]
    one = of_one()
    assert one((measured(FASTER), measured([0.1] * 4)), AT_THE_END) == Action("more", 1)
    proven = one.results[0]["step_time"].bound
    assert one(later, AT_THE_END) == Action("stop")
    (result,) = one.results
    assert result.verdict is Verdict.UNCHANGED
    assert result["step_time"].bound == proven
    assert known(proven) <= known(result["step_time"].margin)
    shown = "the first 4 launches showed that the metric is not worse"
    note = f"{shown}; more launches could not confirm an apparent improvement"
    assert finding_text(result["step_time"].note) == note


def test_a_green_verdict_does_not_outlive_the_launches_that_it_rests_on() -> None:
    """A suspect is judged by fresh launches alone, and so is all else."""
    one = of_one()
    assert one((measured(FASTER), measured([0.1] * 4)), after(4.0)) == Action("more", 1)
    assert one((measured([0.12, 0.121, 0.119] * 2), measured([0.1] * 6)), after(6.0)).kind == "confirm"
    assert one((measured(FADED), measured([0.1] * 8)), after(14.0)) == Action("more", 1)
    assert [result.verdict for result in one.results] == [Verdict.OK]


def test_a_change_whose_interval_includes_none_is_not_reported_as_better() -> None:
    """Shorter by 4.6 +- 2.3 %: at a level of 10 %, but the interval that is printed reaches to +2.8 %."""
    one = of_one(Settings(launches=4, tolerance=0.02))
    sides = measured([0.090, 0.100, 0.094, 0.098]), measured([0.1] * 4)
    one(sides, after(60.0))
    assert one.results[0]["step_time"].promising
    assert finding_text(one.results[0]["step_time"].note) == ""


def test_a_benchmark_that_the_other_revision_cannot_run_is_new() -> None:
    variants = [make_variant(name, environment=measured(STEADY).environment) for name in ("a", "b")]
    sides = tuple(replace(in_turns(STEADY), name=name) for name in ("a", "b", "b"))
    one = Judge("test_it", Settings(launches=4), paired(variants, alone, {("a", 2): "it raised"}))
    assert one(sides, after(4.0)) == Action("stop")
    assert [result.verdict for result in one.results] == [Verdict.NEW, Verdict.UNCHANGED]
    assert one.results[0].reference.origin == "revision 3f2a1c0 (main) cannot run it"
    assert one.results[0].paired == PairedRevision(revision=REVISION.label, commit=REVISION.commit, lacking="it raised")


@pytest.mark.parametrize(("fresh", "verdict"), [(1.012, Verdict.REGRESSED), (1.0, Verdict.OK)])
def test_a_suspect_is_red_if_fresh_launches_and_all_launches_are_slower(fresh: float, verdict: Verdict) -> None:
    """Four launches were 6 % slower, and all eight half as much; fresh ones may be within the tolerance of 1.5 %."""
    one = of_one()
    slower = [1.06 * time for time in STEADY]
    assert one((in_turns(slower), in_turns(STEADY)), after(4.0)).kind == "confirm"
    every = replace(in_turns([*slower, *(fresh * time for time in STEADY)]), fresh_from=4)
    one((every, in_turns(STEADY * 2)), after(60.0))
    (result,) = one.results
    assert result["step_time"].change == pytest.approx(math.sqrt(1.06 * fresh) - 1, abs=1e-3)
    assert result.verdict is verdict


@pytest.mark.parametrize(
    ("shares", "launches", "most"),
    [
        pytest.param((1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0), None, 0.0515, id="each after twice the time"),
        pytest.param((0.95, 1.0), None, 0.0515, id="shortly before the end"),
        pytest.param((0.4, 0.8, 1.0), (4, 9, 39), 0.065, id="nearly all launches come last"),
    ],
)
def test_all_interim_analyses_together_pass_a_change_of_the_margin_in_5_percent(
    shares: tuple[float, ...], launches: tuple[float, ...] | None, most: float
) -> None:
    """On independent launches; a benchmark that waited for others has had most of the time and few launches."""
    launches = launches or shares
    proofs, levels = Proofs(), []
    for share in shares:
        proofs = proofs.at_interim(share, last=share == 1.0)
        assert proofs.proves
        levels.append(proofs.level)
    steps = np.diff([0.0, *launches])
    walks = np.random.default_rng(0).normal(0.0, np.sqrt(steps), (100_000, len(steps))).cumsum(axis=1)
    reached = walks / np.sqrt(launches) < [NormalDist().inv_cdf(level) for level in levels]
    assert reached.any(axis=1).mean() <= most


def test_an_interim_analysis_that_leads_to_a_confirmation_spends_no_level() -> None:
    """The last look may spend as much as if it were the only one."""
    slower = in_turns([1.2 * time for time in STEADY])
    every = replace(in_turns([*(1.2 * time for time in STEADY), *STEADY]), fresh_from=4)
    bounds = []
    for confirming in (True, False):
        one = of_one()
        if confirming:
            assert one((slower, in_turns(STEADY)), after(20.0)).kind == "confirm"
        one((every, in_turns(STEADY * 2)), after(60.0))
        bounds.append(bound_of(one, 0))
    assert bounds[0] == bounds[1]


@pytest.mark.parametrize(("metric", "share"), [("step_time", 0.75), ("cpu_time", 0.25), ("final_loss", 0.25)])
def test_the_step_time_has_most_of_the_level(metric: str, share: float) -> None:
    """3 parts are the step time's and 1 is the CPU time's; a loss takes none from these."""
    context = DecisionContext(tolerance=0.03, alpha=0.01, weights=4.0)
    assert context.alpha_of(working(STEADY, WORK[:4])[metric]) == pytest.approx(0.01 * share)


def test_more_cpu_time_is_red_only_at_an_analysis_that_could_clear_the_step_time() -> None:
    one = of_one(derive=gated_if_paired(alone))
    sides = working(NOISY_AND_LONGER, MORE_WORK), working(NOISY, WORK)
    assert one(sides, after(4.0)).kind == "confirm"
    assert one(sides, after(20.0)) == Action("stop", explain=True, worse=True)
    assert [c.series.metric for c in one.results[0].comparisons if c.verdict is Verdict.REGRESSED] == ["cpu_time"]
    other = of_one(derive=gated_if_paired(alone))
    five = working(NOISY[:5], WORK[:5]), working(NOISY[4::-1], WORK[:5])
    assert other(five, after(18.0)).kind == "more"  # which could prove
    assert other(sides, after(20.0)).kind == "confirm"
    assert other(sides, after(24.0)) == Action("more", 1)
    assert other.results[0]["cpu_time"].verdict is Verdict.INCONCLUSIVE


def test_memory_is_judged_by_the_stored_value_although_the_commit_is_measured_again() -> None:
    """Both sides take a fifth more of it, and as long as each other."""
    variant = make_variant("ddp", environment=measured(STEADY).environment)
    references = replace(paired([variant], alone), baselines=(baseline(STEADY),))
    one = Judge("test_it", Settings(launches=4, tolerance=0.03), references)
    larger = replace(taking([1.2 * size for size in STEADY]), turns=True)
    assert one((larger, larger), after(4.0)) == Action("confirm", 4, ("peak_allocated",))
    every = replace(taking([1.2 * size for size in STEADY * 2]), turns=True, fresh_from=4)
    assert one((every, every), after(8.0)) == Action("stop", explain=True, worse=True)
    (result,) = one.results
    assert {metric: (result[metric].verdict, result[metric].paired) for metric in ("step_time", "peak_allocated")} == {
        "step_time": (Verdict.UNCHANGED, True),
        "peak_allocated": (Verdict.REGRESSED, False),
    }
    assert result.pair is not None
    assert result.paired is None
    assert result.baseline == references.baselines[0].record


def waiting(of_a: Sequence[float], of_b: Sequence[float]) -> tuple[Measurement, ...]:
    """Both sides of a and b, each of which was launched in the first rounds alone; the other side is steady."""
    here = [replace(in_turns(times), name=name) for name, times in (("a", of_a), ("b", of_b))]
    return *here, *(replace(in_turns([0.1] * len(one.launches)), name=one.name) for one in here)


def test_a_benchmark_that_waits_during_a_confirmation_is_judged_again() -> None:
    """The look that led to the confirmation was not told, so it kept no proofs; the next one proves a unchanged."""
    one = of_several("ab", LONG)
    slower = [0.12, 0.121, 0.119, 0.12]
    asked = Action("confirm", 4, ("step_time of b",), benchmarks=frozenset({("b", 2)}))
    assert one(waiting(STEADY[:4], slower), side_by_side(8.0)) == asked
    red = tuple(replace(each, fresh_from=4 * (each.name == "b")) for each in waiting(STEADY[:4], slower * 2))
    assert one(red, side_by_side(16.0)) == Action("stop", explain=True, worse=True)
    assert [result.verdict for result in one.results] == [Verdict.UNCHANGED, Verdict.REGRESSED]


def of_pass(over: float, *, last: bool = False, again: bool = False) -> Interim:
    """A look of the first pass over a suite, or of the second one."""
    return Interim(30.0, 1.0, last=last, over=over, final=1.0 if again else 0.65, shared=True, defers=not again)


def test_a_suspect_of_the_first_pass_is_red_if_the_second_pass_confirms_it() -> None:
    first, second = of_one(), of_one()
    slower = [1.2 * time for time in STEADY]
    assert first((in_turns(slower), in_turns(STEADY)), of_pass(0.3)) == Action("confirm", 4, ("step_time",))
    (result,) = first.results
    assert (result.verdict, result["step_time"].verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert result["step_time"].note == Finding("to_confirm")
    assert result["step_time"].suspicious
    second.resume(first)
    every = replace(in_turns(slower * 2), fresh_from=4), in_turns(STEADY * 2)
    assert second(every, of_pass(0.8, again=True)) == Action("stop", explain=True, worse=True)
    assert second.results[0].verdict is Verdict.REGRESSED


def test_a_benchmark_inconclusive_in_the_first_pass_may_be_suspected_in_the_second() -> None:
    first, second = of_one(), of_one()
    unsure = [0.098, 0.102, 0.098, 0.104], [0.1, 0.099, 0.1, 0.098]
    assert first(tuple(map(in_turns, unsure)), of_pass(0.65, last=True)) == Action("stop")
    second.resume(first)
    longer = in_turns([*unsure[0], *[0.12] * 8]), in_turns([*unsure[1], *[0.1] * 8])
    assert second(longer, of_pass(0.8, again=True)) == Action("confirm", 12, ("step_time",))


def test_a_second_pass_spends_no_level_twice() -> None:
    """Its look at the launches of the first pass repeats the last one; the next proof is as if there had been none."""
    sides, more = waiting(NOISY_A[:6], NOISY_B), waiting(NOISY_A[:9], [*NOISY_B, 0.1, 0.103, 0.098])
    first, second, single = of_several("ab", LONG), of_several("ab", LONG), of_several("ab", LONG)
    for one in (first, single):
        one(sides, of_pass(0.3))
        one(waiting(NOISY_A[:7], [*NOISY_B, 0.1]), of_pass(0.65, last=True))
    told = bound_of(first, 1)
    second.resume(first)
    second(waiting(NOISY_A[:7], [*NOISY_B, 0.1]), of_pass(0.66, again=True))
    assert bound_of(second, 1) == told
    for one in (second, single):
        one(more, of_pass(1.0, last=True, again=True))
    assert bound_of(second, 1) == bound_of(single, 1)


def test_growth_that_the_first_pass_has_diagnosed_is_no_suspect_of_the_second() -> None:
    """Fresh launches that diagnose have confirmed it; launches that time steps would tell nothing of it."""
    first, second = judge(not_growing()), judge(not_growing())
    first((taking(STEADY),), of_pass(0.3))
    for _ in range(2):
        first((growing(1024.0),), replace(of_pass(0.3), diagnosed=True))
    assert first.results[0].verdict is Verdict.REGRESSED
    second.resume(first)
    assert second((growing(1024.0),), of_pass(0.7, again=True)) == Action("stop", explain=True, worse=True)
    assert second.results[0].verdict is Verdict.REGRESSED


def test_compared_with_a_stored_baseline_the_mde_assumes_half_of_the_launches() -> None:
    """Of 4 and 56 launches 30 confirm a suspect, as of 4 and 57; of 4 and 20 there are 12."""
    found = []
    for rounds in (56, 57, 20):
        one = judge(baseline([1.0, 1.01, 0.99, 1.0]))
        one((taking([1.0, 1.012, 0.99, 1.003]),), replace(after(4.0), rounds=rounds))
        found.append(one.results[0]["peak_allocated"].mde)
    assert found[0] == found[1]
    assert None not in found
    assert (found[0] or 0.0) < (found[2] or 0.0)


def test_the_interval_of_a_red_that_ends_early_has_the_part_of_the_errors_until_then() -> None:
    """The proofs of what is not worse spend all that is left; the interval of what is worse is no narrower for it."""
    one = of_one()
    slower = in_turns([1.2 * time for time in STEADY])
    assert one((slower, in_turns(STEADY)), after(4.0)).kind == "confirm"
    red = replace(in_turns([1.2 * time for time in STEADY * 2]), fresh_from=4), in_turns(STEADY * 2)
    assert one(red, after(12.0)).kind == "stop"
    found = one.results[0]["step_time"]
    half = t_quantile(1 - 0.2 * 0.05 / 2, found.df) * known(found.standard_error)
    reach = math.log1p(known(found.change_interval).high) - math.log1p(known(found.change))
    assert reach == pytest.approx(half)
