"""Made-up launches through the real judge: what must come out is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quality.campaign import Recorded, Sides, of_cell, partners
from benchmarks.quality.rates import Draws
from benchmarks.quality.simulate import CELL, ENVIRONMENT
from benchmarks.quality.steps import CONDITIONS, UNCHANGED
from benchmarks.quality.verdicts import (
    Outcome,
    against_partner,
    beside,
    dealer,
    in_suite,
    launch_of,
    seconds_of,
    steps_of,
    stored,
)
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.planning import Purpose
from pytest_ddpperf.settings import Settings
from tests.benchmarks.quality.synthetic import campaign, drawing, recorded
from tests.factories import make_variant

SETTINGS = Settings()
STEADY = campaign(60)
SAME = of_cell(STEADY.launches, CELL, UNCHANGED)
VARIANT = make_variant("training", environment=ENVIRONMENT)


def runs(condition: str, launches: tuple[Recorded, ...] = STEADY.launches) -> Sides:
    return Draws(launches, CELL, condition).separate(drawing())


def rounds(condition: str, launches: tuple[Recorded, ...] = STEADY.launches) -> Sides:
    return Draws(launches, CELL, condition).paired(drawing())


def beside_baseline(sides: Sides) -> Outcome:
    return beside(stored(sides, ENVIRONMENT, SETTINGS), sides, SETTINGS)


def test_the_steps_of_a_launch_are_those_that_the_plugin_would_time() -> None:
    assert steps_of(recorded(0, UNCHANGED, (0.1,) * 40)) == 10  # a second's worth
    assert steps_of(recorded(0, UNCHANGED, (0.001,) * 40)) == 40  # no more were recorded
    assert steps_of(recorded(0, UNCHANGED, (0.01,) * 90), paired=True) == 50  # half a second's
    assert steps_of(recorded(0, UNCHANGED, (0.04,) * 90), paired=True) == 20
    assert seconds_of(recorded(0, UNCHANGED, (0.1,) * 40), 10) == pytest.approx(1.2)
    slow = replace(recorded(0, UNCHANGED, (0.1,) * 40), seconds=4.0 + 1.19)  # twice the 1.19 s that it takes besides
    assert (steps_of(slow), steps_of(slow, paired=True)) == (24, 24)


def test_launches_that_took_turns_know_their_blocks() -> None:
    """90 steps are 45 blocks of two; of those that are asked for, the first."""
    launch = recorded(0, UNCHANGED, (0.01,) * 90)
    assert [rank.blocks for rank in launch_of(launch, paired=True).ranks] == [(2,) * 45] * 2
    assert [rank.blocks for rank in launch_of(launch).ranks] == [()] * 2
    dealt = dealer(Sides((launch,), (launch,)), ENVIRONMENT, paired=True)
    ((ranks, _),) = dealt.run([(VARIANT, Plan(warmup=5, steps=51))], Purpose.TIMES)
    assert [rank.blocks for rank in ranks] == [(2,) * 25 + (1,)] * 2


def test_a_baseline_takes_all_the_time_of_a_save() -> None:
    """A pilot of 0.7 s and launches of 1.2 s: 49 fit into 60 s; looks come at 8, 16, 32 and with what time is left."""
    record = stored(Sides(tuple(SAME[:60]), ()), ENVIRONMENT, SETTINGS)
    (samples,) = (series.samples for series in record.series if series.metric == "step_time")
    assert len(samples) in (48, 49)
    assert record.plan == Plan(warmup=5, steps=10)


def test_the_same_speed_is_unchanged_at_the_first_look() -> None:
    """One pilot and six launches."""
    outcome = beside_baseline(runs(UNCHANGED))
    assert outcome.verdict is Verdict.UNCHANGED
    assert outcome.launches == 7
    assert outcome.seconds == pytest.approx(0.7 + 6 * 1.2, rel=0.02)


def test_more_work_is_found_side_by_side_though_steps_scatter() -> None:
    """Launches by 15 %, what they have a core for by 1 %."""
    draw = drawing()

    def with_work(launch: Recorded, seconds: float) -> Recorded:
        return replace(launch, cpu=(seconds * draw.lognormvariate(0, 0.01),) * 2)

    pairs = partners(campaign(60, launch_spread=0.15).launches, CELL, "+10%")
    known = [(with_work(base, 0.09), with_work(new, 0.10)) for base, new in pairs]
    runs = (Sides(*zip(*rounds[:30], strict=True)) for rounds in (pairs, known))
    verdicts = [against_partner(sides, ENVIRONMENT, SETTINGS).verdict for sides in runs]
    assert verdicts == [Verdict.INCONCLUSIVE, Verdict.REGRESSED]


def test_a_tenth_slower_is_found_and_confirmed() -> None:
    """A pilot, six launches that make it a suspect, and six fresh ones."""
    outcome = beside_baseline(runs("+10%"))
    assert outcome.verdict is Verdict.REGRESSED
    assert outcome.launches == 13
    assert outcome.change == pytest.approx(0.10, abs=0.01)


@pytest.mark.parametrize(
    ("condition", "verdict"), [(UNCHANGED, Verdict.UNCHANGED), ("+5%", Verdict.REGRESSED), ("+10%", Verdict.REGRESSED)]
)
def test_side_by_side(condition: str, verdict: Verdict) -> None:
    outcome = against_partner(rounds(condition), ENVIRONMENT, SETTINGS)
    assert outcome.verdict is verdict
    assert outcome.change == pytest.approx(CONDITIONS[condition].work, abs=0.01)


def test_in_a_suite_the_slow_one_has_the_time_that_the_others_leave() -> None:
    """Of a budget of 80 s; a round of two launches takes 2.4 s."""
    suite = [rounds(UNCHANGED), rounds("+10%"), rounds(UNCHANGED)]
    same, slower, other = in_suite(suite, ENVIRONMENT, SETTINGS, 80.0)
    assert [one.verdict for one in (same, slower, other)] == [Verdict.UNCHANGED, Verdict.REGRESSED, Verdict.UNCHANGED]
    assert same.launches < slower.launches > other.launches
    assert same.seconds + slower.seconds + other.seconds <= 80.0
    assert in_suite(suite, ENVIRONMENT, SETTINGS, 80.0, last=1) == [same, slower]


def test_what_slows_whole_rounds_cancels_out_side_by_side_only() -> None:
    """Rounds slow down to 1.6 times: a stored baseline is overtaken, partners are not."""
    drifting = campaign(60, drift=lambda number: 1 + 0.01 * number).launches
    apart, together = runs(UNCHANGED, drifting), rounds(UNCHANGED, drifting)
    assert beside_baseline(apart).verdict is not Verdict.UNCHANGED
    assert against_partner(together, ENVIRONMENT, SETTINGS).verdict is Verdict.UNCHANGED


def test_a_short_recording_is_a_short_time_to_measure() -> None:
    """Six launches of 1.2 s: screening gets half of 7.2 s, and nothing is dealt twice."""
    few = Sides(tuple(SAME[:6]), tuple(SAME[6:12]))
    assert beside_baseline(few).launches <= 6


def test_each_side_has_launches_of_its_own() -> None:
    """The new side's steps take 0.1 s, the base's 0.3 s; of a deck that is used up the first comes again."""
    dealt = dealer(Sides((recorded(0, UNCHANGED, (0.3,) * 4),), (recorded(0, UNCHANGED, (0.1,) * 4),)), ENVIRONMENT)
    for other, step in ((False, 0.1), (True, 0.3), (True, 0.3)):
        ((ranks, _),) = dealt.run([(replace(VARIANT, of_reference=other), Plan(warmup=5, steps=2))], Purpose.TIMES)
        assert [rank.step_times for rank in ranks] == [(step,) * 2] * 2


@pytest.mark.parametrize(("condition", "verdict"), [(UNCHANGED, Verdict.UNCHANGED), ("+10%", Verdict.REGRESSED)])
def test_what_looks_slower_than_a_stored_baseline_is_settled_by_pairs(condition: str, verdict: Verdict) -> None:
    """The machine is slower by 10 % than it was; both measurings count."""
    sides, pairs = runs("+10%"), rounds(condition)
    record = stored(sides, ENVIRONMENT, SETTINGS)
    settled, alone = beside(record, sides, SETTINGS, pairs=pairs), beside(record, sides, SETTINGS)
    assert (settled.verdict, settled.settled) == (verdict, True)
    assert (alone.verdict, alone.settled) == (Verdict.REGRESSED, False)
    again = against_partner(pairs, ENVIRONMENT, replace(SETTINGS, tolerance=0.03))
    assert settled.launches > again.launches
    assert settled.seconds > again.seconds


def test_a_settlement_has_the_tolerance_of_the_settings() -> None:
    sides = runs("+10%")
    record, lenient = stored(sides, ENVIRONMENT, SETTINGS), replace(SETTINGS, tolerance=0.08)
    outcome = beside(record, sides, lenient, pairs=rounds("+5%"))
    assert (outcome.verdict, outcome.settled) == (Verdict.UNCHANGED, True)
    assert beside(record, sides, SETTINGS, pairs=rounds("+5%")).verdict is Verdict.REGRESSED
