"""Made-up launches through the real judge: what must come out is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quality.campaign import Recorded, Sides, partners
from benchmarks.quality.rates import Draws
from benchmarks.quality.simulate import CELL, ENVIRONMENT
from benchmarks.quality.steps import CONDITIONS, UNCHANGED
from benchmarks.quality.verdicts import Dealer, Recordings, in_suite, launch_of, of_recorded, seconds_of, steps_of
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.call.planning import Purpose
from pytest_ddpperf.settings import Settings
from tests.benchmarks.quality.synthetic import campaign, drawing, recorded
from tests.factories import make_variant

SETTINGS = Settings()
STEADY = campaign(60)
VARIANT = make_variant("training", environment=ENVIRONMENT)


def rounds(condition: str, launches: tuple[Recorded, ...] = STEADY.launches) -> Sides:
    return Draws(launches, CELL, condition).paired(drawing())


def test_the_steps_of_a_launch_are_those_that_the_plugin_would_time() -> None:
    assert steps_of(recorded(0, UNCHANGED, (0.01,) * 90)) == 50  # half a second's
    assert steps_of(recorded(0, UNCHANGED, (0.001,) * 40)) == 40  # no more were recorded
    assert seconds_of(recorded(0, UNCHANGED, (0.1,) * 40), 10) == pytest.approx(1.2)
    slow = replace(recorded(0, UNCHANGED, (0.1,) * 40), seconds=4.0 + 1.19)  # twice the 1.19 s that it takes besides
    assert steps_of(slow) == 24


def test_launches_that_took_turns_know_their_blocks() -> None:
    """90 steps are 45 blocks of two; 51 are 24 of two and one of three."""
    launch = recorded(0, UNCHANGED, (0.01,) * 90)
    assert [rank.blocks for rank in launch_of(launch).ranks] == [(2,) * 45] * 2
    dealt = Dealer(Recordings(Sides((launch,), (launch,))))
    ((ranks, _),) = dealt.run([(VARIANT, Plan(warmup=5, steps=51))], Purpose.TIMES)
    assert sorted(ranks[0].blocks) == [2] * 24 + [3]


def test_each_side_has_launches_of_its_own_and_they_take_their_time() -> None:
    """The new side's steps take 0.1 s, the base's 0.3 s; of a deck that is used up the first comes again."""
    dealt = Dealer(Recordings(Sides((recorded(0, UNCHANGED, (0.3,) * 4),), (recorded(0, UNCHANGED, (0.1,) * 4),))))
    plan = Plan(warmup=5, steps=2)
    for _ in range(2):
        new, base = dealt.run([(VARIANT, plan), (replace(VARIANT, of_reference=True), plan)], Purpose.TIMES)
        assert [side[0][0].step_times for side in (new, base)] == [(0.1,) * 2, (0.3,) * 2]
        assert [side[1] for side in (new, base)] == pytest.approx([0.4, 0.8])
    assert dealt.now == pytest.approx(2.4)
    assert dealt.dealt == 2


@pytest.mark.parametrize(
    ("condition", "verdict"), [(UNCHANGED, Verdict.UNCHANGED), ("+5%", Verdict.REGRESSED), ("+10%", Verdict.REGRESSED)]
)
def test_side_by_side(condition: str, verdict: Verdict) -> None:
    outcome = of_recorded(rounds(condition), ENVIRONMENT, SETTINGS)
    assert outcome.verdict is verdict
    assert outcome.change == pytest.approx(CONDITIONS[condition].work, abs=0.01)


def test_more_work_is_found_though_steps_scatter() -> None:
    """Launches by 15 %, what they have a core for by 1 %."""
    draw = drawing()

    def with_work(launch: Recorded, seconds: float) -> Recorded:
        return replace(launch, cpu=(seconds * draw.lognormvariate(0, 0.01),) * 2)

    pairs = partners(campaign(60, launch_spread=0.15).launches, CELL, "+10%")
    known = [(with_work(base, 0.09), with_work(new, 0.10)) for base, new in pairs]
    runs = (Sides(*zip(*rounds[:30], strict=True)) for rounds in (pairs, known))
    verdicts = [of_recorded(sides, ENVIRONMENT, SETTINGS).verdict for sides in runs]
    assert verdicts == [Verdict.INCONCLUSIVE, Verdict.REGRESSED]


def test_in_a_suite_the_slow_one_has_the_time_that_the_others_leave() -> None:
    """Of a budget of 80 s; a round of two launches takes 2.4 s."""
    suite = [Recordings(rounds(condition)) for condition in (UNCHANGED, "+10%", UNCHANGED)]
    same, slower, other = in_suite(suite, ENVIRONMENT, SETTINGS, 80.0)
    assert [one.verdict for one in (same, slower, other)] == [Verdict.UNCHANGED, Verdict.REGRESSED, Verdict.UNCHANGED]
    assert same.launches < slower.launches > other.launches
    assert same.seconds + slower.seconds + other.seconds <= 80.0


def test_what_slows_whole_rounds_cancels_out() -> None:
    """Rounds slow down to 1.6 times."""
    drifting = campaign(60, drift=lambda number: 1 + 0.01 * number).launches
    assert of_recorded(rounds(UNCHANGED, drifting), ENVIRONMENT, SETTINGS).verdict is Verdict.UNCHANGED


def test_a_short_recording_is_a_short_time_to_measure() -> None:
    """Six pairs of 2.4 s: screening gets half of them, and nothing is dealt twice."""
    sides = rounds(UNCHANGED)
    few = Sides(sides.base[:6], sides.new[:6])
    assert of_recorded(few, ENVIRONMENT, SETTINGS).launches <= 6
