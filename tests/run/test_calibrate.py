"""Runs held against each other by the code that judges, on made-up launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.metrics.scaling import alone
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.records.results import Provenance
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.calibrate import (
    COMPARISONS,
    Dealer,
    Runs,
    against_themselves,
    calibrated,
    dealer,
    deck_of,
    repeated,
)
from pytest_ddpperf.run.planning import Purpose
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings
from tests.factories import make_environment, make_rank_launch, make_variant

ENVIRONMENT = make_environment()
SETTINGS = Settings(launches=4, warmup=1)
STEADY = (1.0, 1.001, 0.999, 1.0)


def run(times: Sequence[float] = STEADY, *, factor: float = 1.0, name: str = "ddp") -> Measurement:
    """Launches of ten steps, of which each takes one of ``times`` tenths of a second."""
    launches = tuple(
        Launch(
            round=i,
            ranks=tuple(
                make_rank_launch(rank=r, step_times=(0.1 * factor * time,) * 10, loss=1.0, samples_per_step=8.0)
                for r in (0, 1)
            ),
            seconds=1.5,
        )
        for i, time in enumerate(times)
    )
    one = Measurement(
        name=name,
        strategy="ddp",
        mode=None,
        plan=Plan(warmup=1, steps=10),
        environment=ENVIRONMENT,
        launches=launches,
        findings=(Finding("seen"),),
    )
    return replace(one, series=series_of(one))


def test_every_run_follows_the_steps_of_the_first() -> None:
    asked: list[tuple[int, int | None]] = []
    ticks = iter((100.0, 107.0, 115.0))

    def measured(variants: Sequence[Variant], turn: int) -> tuple[Measurement, ...]:
        asked.append((turn, variants[0].steps))
        return (replace(run(), plan=Plan(warmup=1, steps=10 * turn)),)

    found = repeated([make_variant("ddp", environment=ENVIRONMENT)], 3, measured, lambda: next(ticks))
    assert asked == [(1, None), (2, 10), (3, 10)]
    assert (len(found.each), found.seconds) == (3, 15.0)


def test_all_launches_together_are_one_measurement() -> None:
    (joined,) = Runs(each=((run(),), (run(factor=2.0),)), seconds=6.0).together
    assert [launch.round for launch in joined.launches] == list(range(8))
    assert joined["step_time"].samples == pytest.approx([0.1 * f * time for f in (1, 2) for time in STEADY])
    assert joined.findings == (Finding("seen"),)


def test_launches_are_dealt_in_the_order_of_the_runs_and_begin_anew() -> None:
    """The first one twice: it also stands for the pilot, which was not kept."""
    runs = [(run([1, 2]),), (run([3, 4]),)]
    (deck,) = dealer(runs).decks.values()
    assert [next(deck).step_times[0] for _ in range(6)] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4, 0.1])


def verdicts(*factors: float) -> list[Verdict]:
    runs = tuple((run(factor=factor),) for factor in factors)
    return [
        result.verdict for (result,) in against_themselves("t.py::test", SETTINGS, Runs(each=runs, seconds=0.0), alone)
    ]


def test_runs_that_agree_are_unchanged() -> None:
    assert verdicts(1.0, 1.0, 1.0) == [Verdict.UNCHANGED] * 6


def test_a_run_that_deviates_is_an_alarm_beside_the_others() -> None:
    """The first run is faster by a sixth: both others are slower than it, each confirmed by the other's launches."""
    assert verdicts(1.0, 1.2, 1.2) == [Verdict.REGRESSED] * 2 + [Verdict.UNCHANGED] * 4


def test_the_time_that_is_recommended_is_that_of_launches_which_only_time_steps() -> None:
    """Four launches and the pilot of 1.5 s fit into half of 60 s; one that tells where time goes takes 200 s."""

    def recommended(seconds: float) -> float | None:
        one = run()
        launches = tuple(replace(launch, seconds=seconds) for launch in one.launches)
        told = tuple(replace(launch, seconds=200.0) for launch in one.launches[:1])
        runs = Runs(each=((replace(one, launches=launches, diagnoses=told),),) * 2, seconds=100.0)
        (found,) = calibrated("t.py::test", SETTINGS, runs, alone, Provenance(date="2026-01-12", commit="3f2a1c0"))
        return found.recommended.max_time

    assert recommended(1.5) is None
    assert recommended(20.0) == 200.0


def test_launches_that_diagnose_are_dealt_as_such() -> None:
    """Of two runs one after the other, and then again those of the first; they are none that a verdict rests on."""
    told = [
        replace(run(), diagnoses=(Launch(round=0, ranks=run().launches[0].ranks, seconds=float(i)),)) for i in (1, 2)
    ]
    dealt = dealer([(one,) for one in told])
    (deck,) = dealt.diagnoses.values()
    assert [next(deck).seconds for _ in range(3)] == [1.0, 2.0, 1.0]
    assert dealer([(run(),), (run(),)]).diagnoses == {}
    (result,), *_ = against_themselves(
        "t.py::test", SETTINGS, Runs(each=tuple((one,) for one in told), seconds=0.0), alone
    )
    assert (len(result.measurement.launches), len(result.measurement.diagnoses)) == (9, 1)


def test_one_run_alone_does_not_confirm_its_slowness() -> None:
    """Only the second is slow; what looks so beside the first or third is judged by the launches of another run."""
    assert Verdict.REGRESSED not in verdicts(1.0, 1.2, 1.0)


def test_of_many_runs_some_pairs_are_taken() -> None:
    assert len(verdicts(*[1.0] * 16)) == COMPARISONS < 16 * 15


def test_a_benchmark_with_its_rates() -> None:
    factors = (1.0, 1.001, 1.0)
    both = [(run(factor=factor), run(factor=2 * factor, name="naive")) for factor in factors]
    runs = Runs(each=tuple(tuple(replace(one, turns=True) for one in each) for each in both), seconds=12.0)
    found, naive = calibrated("t.py::test", SETTINGS, runs, alone, Provenance(date="2026-01-12", commit="3f2a1c0"))
    assert (found.calibration.name, naive.calibration.name) == ("ddp", "naive")
    assert (found.alarms.found, found.alarms.of, found.alarms.effective) == (0, 6, 1)
    assert found.inconclusive.found == 0
    assert found.runs[0] == pytest.approx([0.1 * time for time in STEADY])
    assert found.mde is not None
    assert found.mde > 0.03
    assert found.recommended.launches == 4
    assert found.findings[0] == Finding("seen")


def test_a_round_of_launches_that_took_turns_is_measured_once() -> None:
    """Each lasts as long as the round: 1.5 s of it are its own, as if it were alone, and 1 s are the other's steps.

    Nine rounds, until a second look may prove, are 22.5 s. Each pilot, of five steps, is its half of a round less half
    of its steps: 0.75 s.
    """

    def turned(name: str) -> Measurement:
        one = run(name=name)
        return replace(one, launches=tuple(replace(launch, seconds=2.5) for launch in one.launches), turns=True)

    both = turned("ddp"), turned("naive")
    for result, _ in against_themselves("t.py::test", SETTINGS, Runs(each=(both, both), seconds=0.0), alone):
        assert result.seconds == pytest.approx(24.0)
    (result,), _ = against_themselves("t.py::test", SETTINGS, Runs(each=((run(),), (run(),)), seconds=0.0), alone)
    assert result.seconds == pytest.approx(9 * 1.5 + 1.0)


VARIANT = make_variant("ddp", environment=make_environment())


def launch(step: float) -> Launch:
    """Four steps, and 0.2 s besides."""
    ranks = tuple(make_rank_launch(rank=rank, step_times=(step,) * 4, loss=1.0) for rank in (0, 1))
    return Launch(round=0, ranks=ranks, seconds=0.2 + 4 * step)


def test_launches_are_dealt_in_order_and_move_the_clock_by_the_steps_that_were_asked_for() -> None:
    """Launches take 0.2 s besides their steps: 0.2 + 2 x 0.1, then 0.2 + 3 x 0.3."""
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1), launch(0.3)])})
    ((ranks, seconds),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], Purpose.TIMES)
    assert [rank.step_times for rank in ranks] == [(0.1, 0.1)] * 2
    assert seconds == dealer.now == pytest.approx(0.4)
    dealer.run([(VARIANT, Plan(warmup=5, steps=3))], Purpose.TIMES)
    assert dealer.now == pytest.approx(1.5)
    assert dealer.dealt == {deck_of(VARIANT): 2}


def test_each_side_and_size_has_a_deck_of_its_own() -> None:
    other, larger = (
        replace(VARIANT, of_reference=True),
        replace(VARIANT, environment=replace(VARIANT.environment, world_size=4)),
    )
    assert len({deck_of(VARIANT), deck_of(other), deck_of(larger)}) == 3


def test_launches_that_diagnose_are_dealt_apart() -> None:
    """They tell all, whatever was asked for, and last as long as they did; steps are none of a verdict's."""
    told = launch(0.1)
    told = replace(told, ranks=tuple(replace(rank, held=(1, 2, 3)) for rank in told.ranks))
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1)])}, {deck_of(VARIANT): iter([told, told])})
    for extra, now in ((Purpose.DIAGNOSIS, 0.6), (Purpose.GROWTH, 1.2)):
        ((ranks, seconds),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], extra)
        assert ranks == told.ranks
        assert seconds == pytest.approx(0.6)
        assert dealer.now == pytest.approx(now)
    assert dealer.dealt == {}


def test_where_none_was_recorded_they_tell_nothing_and_take_no_time() -> None:
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1)])})
    ((ranks, seconds),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], Purpose.DIAGNOSIS)
    assert (len(ranks), seconds, dealer.now) == (2, 0.0, 0.0)
    assert {(rank.phases, rank.communication, rank.held) for rank in ranks} == {(None, None, ())}


@pytest.mark.parametrize(
    ("steps", "blocks", "cpu_blocks"),
    [
        pytest.param(9, (2, 3, 2), (1.0, 2.0, 3.0), id="all that there are"),
        pytest.param(7, (2, 3, 2), (1.0, 2.0, 3.0), id="as many"),
        pytest.param(6, (2, 3, 1), (1.0, 2.0, 3.0), id="half of the last one"),
        pytest.param(5, (2, 3), (1.0, 2.0), id="two whole ones"),
        pytest.param(1, (1,), (1.0,), id="a step"),
    ],
)
def test_blocks_are_cut_with_their_steps(steps: int, blocks: tuple[int, ...], cpu_blocks: tuple[float, ...]) -> None:
    times = (0.1,) * 7
    rank = make_rank_launch(rank=0, step_times=times, loss=1.0, blocks=(2, 3, 2), cpu_blocks=(1.0, 2.0, 3.0))
    dealer = Dealer({deck_of(VARIANT): iter([Launch(round=0, ranks=(rank,), seconds=1.0)])})
    (((cut,), _),) = dealer.run([(VARIANT, Plan(warmup=5, steps=steps))], Purpose.TIMES)
    assert (cut.step_times, cut.blocks, cut.cpu_blocks) == (times[:steps], blocks, cpu_blocks)


def test_what_took_no_turns_has_no_blocks_to_cut() -> None:
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1)])})
    ((ranks, _),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], Purpose.TIMES)
    assert [(rank.blocks, rank.cpu_blocks) for rank in ranks] == [((), ())] * 2
