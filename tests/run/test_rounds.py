"""The loop of launches, with a fake run and a fake clock: every figure follows from the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby, pairwise
from typing import Any

import pytest

from pytest_ddpperf.errors import DdpperfError, LaunchError, ReferenceFailed, ReferenceStopped, WorkloadError
from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.launch import Launch, SlowImport
from pytest_ddpperf.records.measurement import Environment, Measurement, Plan
from pytest_ddpperf.run.planning import PILOT_STEPS, Budget, LaunchOutcome, Purpose
from pytest_ddpperf.run.recording import Recording
from pytest_ddpperf.run.rounds import End, Observer, measure
from pytest_ddpperf.run.time_sheet import slow_starts
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.strategies.strategy import Strategy
from tests.factories import make_budget, make_environment, make_rank_launch, make_variant

STEP = 0.05  # seconds, on the slower rank
Progress = tuple[int, int, float, float, Launch | None]  # launch, of so many, seconds, expected ones, the last one
FIXED = 0.25  # seconds that a launch takes besides its timed steps


@dataclass
class Machine:
    """Runs launches by adding their seconds to a clock; keeps what was asked of it.

    Attributes:
        asked: of each launch that timed steps, the variant and the plan.
        told: of each launch, what it was to tell.
        together: who was launched at the same time, to time steps.
        cold: seconds that the first launch takes more.
        growing: seconds that reading memory takes, besides the launch and the one step that it times.
        diagnosis: the same of looking where the time goes.
    """

    now: float = 0.0
    asked: list[tuple[str, Plan]] = field(default_factory=list)
    told: list[Purpose] = field(default_factory=list)
    together: list[tuple[tuple[str, bool], ...]] = field(default_factory=list)
    cold: float = 0.0
    growing: float = 0.4
    diagnosis: float = 1.0

    def run(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        if purpose is Purpose.TIMES:
            self.together.append(tuple((variant.name, variant.of_reference) for variant, _ in launches))
        return [self._launch(variant, plan, purpose) for variant, plan in launches]

    def _launch(self, variant: Variant, plan: Plan, purpose: Purpose) -> LaunchOutcome:
        seconds = FIXED + plan.steps * STEP + self.cold * (not self.asked)
        if purpose is Purpose.TIMES:
            self.asked.append((variant.name, plan))
        else:
            seconds = FIXED + STEP + self.growing + self.diagnosis * (purpose is Purpose.DIAGNOSIS)
        self.told.append(purpose)
        self.now += seconds
        ranks = [
            make_rank_launch(rank=rank, step_times=(STEP / (2 - rank),) * plan.steps, loss=1.0, samples_per_step=4.0)
            for rank in (0, 1)
        ]
        return tuple(ranks), seconds

    def clock(self) -> float:
        return self.now


@dataclass
class Script:
    """A judge that gives prepared answers and keeps what it was shown.

    Attributes:
        answers: to looks at times.
        growths: to looks at launches that diagnose; where there is none, it is content.
    """

    answers: list[Next]
    growths: list[Next] = field(default_factory=list)
    looks: list[tuple[Measurement, ...]] = field(default_factory=list)
    diagnosed: list[tuple[Measurement, ...]] = field(default_factory=list)

    def __call__(self, measured: tuple[Measurement, ...], look: Look) -> Next:
        (self.diagnosed if look.diagnosed else self.looks).append(measured)
        if look.diagnosed:
            return self.growths.pop(0) if self.growths else Next("stop")
        return self.answers.pop(0)


def variant(name: str = "ddp", steps: int | None = None, *, of_reference: bool = False) -> Variant:
    environment = make_environment(cores=2)
    return make_variant(name, strategy=Strategy("ddp"), environment=environment, steps=steps, of_reference=of_reference)


def run_script(
    variants: list[Variant], budget: Budget, answers: list[Next]
) -> tuple[tuple[Measurement, ...], Machine, Script, list[Progress]]:
    machine, judge, seen = Machine(), Script(answers), list[Progress]()
    observer = Observer(judge=judge, progress=lambda *figures: seen.append(figures), clock=machine.clock)
    return measure(variants, budget, machine.run, observer), machine, judge, seen


def test_a_pilot_comes_first_and_fixes_the_steps() -> None:
    """40 steps, of 50 ms each: a second would be 20 of them. The pilot's launch is not among those measured."""
    (measured,), machine, _, _ = run_script([variant()], make_budget(None, 5, 3, 60, 60), [Next("stop")])
    assert machine.asked == [("ddp", Plan(warmup=5, steps=PILOT_STEPS))] + [("ddp", Plan(warmup=5, steps=40))] * 3
    assert measured.plan == Plan(warmup=5, steps=40)
    assert [launch.round for launch in measured.launches] == [0, 1, 2]


def fresh(measured: Measurement) -> tuple[Launch, ...]:
    """The launches since the last suspicion."""
    return measured.launches[measured.fresh_from :]


def phases(machine: Machine) -> list[tuple[Purpose, int]]:
    """What launches were to tell, and how many of them in a row."""
    return [(purpose, len(list(group))) for purpose, group in groupby(machine.told)]


def test_launches_that_diagnose_follow_the_verdict() -> None:
    """The pilot, two rounds, three that confirm, one more: they tell nothing but times. Then one tells all."""
    answers = [Next("confirm", 3), Next("more", 1), Next("stop")]
    (measured,), machine, judge, _ = run_script([variant()], make_budget(5, 0, 2, 60, 60), answers)
    assert phases(machine) == [(Purpose.TIMES, 1 + 2 + 3 + 1), (Purpose.DIAGNOSIS, 1)]
    assert [(len(fresh(one)), len(one.diagnoses)) for (one,) in (*judge.looks, *judge.diagnosed)] == [
        *((2, 0), (3, 0), (4, 0)),
        (4, 1),
    ]
    assert (len(measured.launches), len(measured.diagnoses)) == (6, 1)


def test_all_variants_are_diagnosed_and_none_of_their_steps_counts() -> None:
    """The steps of the launches that diagnose take a thousand times as long."""
    machine = Machine()

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        slower = 1.0 if purpose is Purpose.TIMES else 1000.0
        return [
            (tuple(replace(rank, step_times=tuple(slower * s for s in rank.step_times)) for rank in ranks), took)
            for ranks, took in machine.run(launches, purpose)
        ]

    observer = Observer(judge=Script([Next("stop")]), clock=machine.clock)
    measured = measure([variant("a"), variant("b")], make_budget(5, 0, 2, 60, 60), run, observer)
    assert [one["step_time"].samples for one in measured] == [(STEP,) * 2] * 2
    assert [[launch.step_times for launch in one.diagnoses] for one in measured] == [[(1000 * STEP,) * 5]] * 2


@pytest.mark.parametrize(
    ("max_time", "explain", "told"),
    [
        pytest.param(3.25, False, Purpose.DIAGNOSIS, id="there is time"),
        pytest.param(3.15, False, Purpose.GROWTH, id="there is none"),
        pytest.param(3.15, True, Purpose.DIAGNOSIS, id="there is none, but it is asked for"),
    ],
)
def test_where_the_time_goes_is_told_if_there_is_time_or_it_is_asked_for(
    max_time: float, told: Purpose, *, explain: bool
) -> None:
    """Pilot and two launches take 1.5 s. Reading memory takes seven steps of 50 ms, and one that is timed.

    With five more that are taken apart and four pairs of blocks of 1 + 1 steps a side that is 0.25 + 29 * 0.05 = 1.7 s:
    3.2 s in all.
    """
    budget = make_budget(5, 0, 2, max_time, max_time)
    _, machine, _, _ = run_script([variant()], budget, [Next("stop", explain=explain)])
    assert phases(machine) == [(Purpose.TIMES, 3), (told, 1)]


def test_what_seems_to_grow_has_to_do_so_in_fresh_launches_as_well() -> None:
    machine = Machine()
    judge = Script([Next("stop")], [Next("confirm", 1, ("memory_growth",)), Next("confirm", 1, ("memory_growth",))])
    observer = Observer(judge=judge, clock=machine.clock)
    (measured,) = measure([variant()], make_budget(5, 0, 2, 60, 60), machine.run, observer)
    assert phases(machine) == [(Purpose.TIMES, 3), (Purpose.DIAGNOSIS, 2)]  # twice, whatever it says then
    first, second = (one.diagnoses for (one,) in judge.diagnosed)
    assert measured.diagnoses == second
    assert first[0] is not second[0]
    assert measured.launches == judge.looks[0][0].launches
    assert measured.findings == (Finding("suspected", {"metrics": ("memory_growth",), "launches": 1}),)


@pytest.mark.parametrize(
    ("failure", "action", "raised"),
    [
        pytest.param(LaunchError("no ranks\nat all"), Next("stop", worse=True), False, id="something is worse"),
        pytest.param(
            ReferenceFailed("no ranks\nat all", benchmark=("ddp", 2)), Next("stop"), False, id="the other side"
        ),
        pytest.param(
            ReferenceStopped("no ranks\nat all", benchmark=("ddp", 2)), Next("stop"), False, id="which has run before"
        ),
        pytest.param(LaunchError("no ranks\nat all"), Next("stop"), True, id="this side"),
        pytest.param(LaunchError("no ranks\nat all"), Next("stop", explain=True), True, id="which is to be explained"),
    ],
)
def test_a_launch_that_fails_to_diagnose_takes_no_verdict_back(
    failure: DdpperfError, action: Next, *, raised: bool
) -> None:
    machine, judge = Machine(), Script([action])

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        if purpose is Purpose.TIMES:
            return machine.run(launches, purpose)
        raise failure

    def measured() -> Measurement:
        (one,) = measure([variant()], make_budget(5, 0, 2, 60, 60), run, Observer(judge=judge, clock=machine.clock))
        return one

    if raised:
        with pytest.raises(LaunchError, match="no ranks"):
            measured()
        return
    found = measured()
    assert (len(found.launches), found.diagnoses) == (2, ())
    assert found.findings == (Finding("not_diagnosed", {"reason": "no ranks"}),)
    assert judge.diagnosed == [(found,)]  # what is reported has the remark


def test_a_step_lasts_as_long_as_its_slowest_rank() -> None:
    (measured,), _, _, _ = run_script([variant()], make_budget(4, 0, 2, 60, 60), [Next("stop")])
    assert measured.launches[0].step_times == (STEP,) * 4
    assert measured["step_time"].value == pytest.approx(STEP)
    assert measured["throughput"].value == pytest.approx(8 / STEP)  # two ranks with four samples each


@pytest.mark.parametrize(
    ("budget", "plan"),
    [
        (make_budget(None, 5, 2, 60, 60), Plan(warmup=5, steps=7)),  # both sides time the same steps
        (make_budget(11, 5, 2, 60, 60), Plan(warmup=5, steps=11)),  # what the user asks for is stronger
    ],
)
def test_the_baselines_steps_are_followed_unless_steps_are_given(budget: Budget, plan: Plan) -> None:
    (measured,), _, _, _ = run_script([variant(steps=7)], budget, [Next("stop")])
    assert measured.plan == plan


def test_a_small_budget_makes_launches_short() -> None:
    """1.5 s for three launches are 0.5 s each: less the fixed 0.25 s, five steps of 50 ms."""
    (measured,), _, _, _ = run_script([variant()], make_budget(None, 5, 8, 3, 1.5), [Next("stop")])
    assert measured.plan.steps == 5


def test_more_launches_are_added_to_those_there_are() -> None:
    (measured,), _, judge, seen = run_script([variant()], make_budget(5, 0, 2, 60, 60), [Next("more", 2), Next("stop")])
    assert [len(look[0].launches) for look in judge.looks] == [2, 4]
    assert len(measured.launches) == 4
    assert [figures[:2] for figures in seen] == [(1, 2), (2, 2), (3, 4), (4, 4)]


def test_a_suspect_is_judged_by_fresh_launches_alone() -> None:
    (measured,), _, judge, _ = run_script(
        [variant()], make_budget(5, 0, 2, 60, 60), [Next("confirm", 3, ("step_time",)), Next("stop")]
    )
    first, second = (fresh(look[0]) for look in judge.looks)
    assert (len(first), len(second)) == (2, 3)
    assert measured.launches == (*first, *second)
    assert [launch.round for launch in measured.launches] == [0, 1, 2, 3, 4]
    assert measured.findings == (Finding("suspected", {"metrics": ("step_time",), "launches": 2}),)


def test_variants_share_every_round_in_changing_order() -> None:
    variants = [variant("a"), variant("b")]
    measured, machine, _, _ = run_script(variants, make_budget(5, 0, 12, 60, 60), [Next("stop")])
    rounds = [tuple(name for name, _ in machine.asked[i : i + 2]) for i in range(2, 26, 2)]
    assert {frozenset(names) for names in rounds} == {frozenset("ab")}
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert [rounds.count(("a", "b")), rounds.count(("b", "a"))] == [6, 6]  # neither gains from its place
    assert [len(one.launches) for one in measured] == [12, 12]


def test_both_sides_of_a_benchmark_run_the_same_steps() -> None:
    """The other side's steps take half the time: it runs no more of them for that."""
    machine = Machine()

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        return [
            (
                tuple(replace(rank, step_times=(STEP / 2,) * plan.steps) for rank in ranks)
                if one.of_reference
                else ranks,
                took,
            )
            for (one, plan), (ranks, took) in zip(launches, machine.run(launches, purpose), strict=True)
        ]

    sides = [variant("a"), variant("b", steps=7), variant("a", of_reference=True), variant("b", of_reference=True)]
    observer = Observer(judge=Script([Next("stop")]), clock=machine.clock)
    measured = measure(sides, make_budget(None, 5, 2, 120, 120), run, observer)
    assert [one.plan for one in measured] == [Plan(warmup=5, steps=40), Plan(warmup=5, steps=7)] * 2


@pytest.mark.parametrize("names", ["a", "ab"])
def test_both_sides_are_launched_together_and_each_comes_first_as_often(names: str) -> None:
    sides = [variant(name, of_reference=side) for side in (False, True) for name in names]
    measured, machine, _, _ = run_script(sides, make_budget(5, 0, 4, 120, 120), [Next("stop")])
    everybody = [(one.name, one.of_reference) for one in sides]
    assert machine.together[: len(sides)] == [(one,) for one in everybody]  # the pilots
    launched = machine.together[len(sides) :]
    assert [sorted(group) for group in launched] == [sorted(everybody)] * 4
    assert machine.told[-len(sides) :] == [Purpose.DIAGNOSIS] * len(sides)
    for group in launched:  # the sides of a benchmark are neighbours
        assert [name for name, _ in group] in ([*"aa"], [*"aabb"], [*"bbaa"])
    for one, another in combinations(everybody, 2):
        assert [group.index(one) < group.index(another) for group in launched].count(True) == 2
    assert all(one.turns for one in measured)


def test_variants_of_one_test_are_launched_together() -> None:
    measured, machine, _, _ = run_script([variant("a"), variant("b")], make_budget(5, 0, 2, 120, 120), [Next("stop")])
    assert [sorted(name for name, _ in group) for group in machine.together[2:]] == [["a", "b"]] * 2
    assert [one.turns for one in measured] == [True, True]


GPU = make_environment(device="cuda", device_model="gpu", device_count=2, cores=2, backend="nccl", cuda="12.8")


@pytest.mark.parametrize(
    ("environment", "turns", "background"),
    [
        pytest.param(GPU, None, None, id="on GPUs"),
        pytest.param(None, False, None, id="where that is not wanted"),
        pytest.param(None, True, False, id="where this side works in the background"),
        pytest.param(None, True, True, id="where the other side does"),
    ],
)
def test_sides_are_launched_one_after_the_other(
    environment: Environment | None, *, turns: bool | None, background: bool | None
) -> None:
    machine = Machine()

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        ran = machine.run(launches, purpose)
        return [
            ((ranks[0], replace(ranks[1], background=one.of_reference is background)), took)
            for (one, _), (ranks, took) in zip(launches, ran, strict=True)
        ]

    sides = [variant("a", of_reference=side) for side in (False, True)]
    sides = [replace(one, environment=environment or one.environment) for one in sides]
    observer = Observer(judge=Script([Next("stop")]), clock=machine.clock)
    measured = measure(sides, make_budget(5, 0, 3, 120, 120, turns=turns), run, observer)
    assert {len(group) for group in machine.together} == {1}
    assert not any(one.turns for one in measured)
    told = (Finding("background_work", {"paired": False, "benchmarks": ("a",)}),)
    assert [one.findings for one in measured] == [told if background is not None else ()] * 2


def test_time_that_is_spent_ends_it_but_for_two_launches() -> None:
    """A round takes 0.5 s and the pilot as much: in 1.2 s no third fits, and whoever asks for ten gets two."""
    (measured,), _, judge, _ = run_script([variant()], make_budget(5, 0, 10, 1.2, 1.2), [Next("more", 10)])
    assert len(measured.launches) == 2
    assert len(judge.looks) == 1


def test_a_suspect_is_confirmed_even_when_time_is_up() -> None:
    answers = [Next("confirm", 10), Next("more", 10)]
    (measured,), _, judge, _ = run_script([variant()], make_budget(5, 0, 10, 1.2, 1.2), answers)
    first, second = (fresh(look[0]) for look in judge.looks)
    assert (len(first), len(second)) == (2, 2)
    assert measured.launches == (*first, *second)


def test_a_confirmation_has_no_fewer_launches_than_made_it_necessary() -> None:
    """The pilot and seven launches of 0.5 s take 4 s of 4.5 s, and the seven that have to confirm all of 3.5 s."""
    answers = [Next("more", 1)] * 3 + [Next("confirm", 7), Next("more", 1)]
    (measured,), machine, judge, _ = run_script([variant()], make_budget(5, 0, 4, 4.5, 4.5), answers)
    assert [len(fresh(one)) for (one,) in judge.looks] == [4, 5, 6, 7, 7]
    assert machine.told[:-1] == [Purpose.TIMES] * 15
    assert [finding.code for finding in measured.findings] == ["suspected", "no_time_to_diagnose"]
    assert measured.findings[0].facts == {"metrics": (), "launches": 7}


def test_screening_leaves_the_other_half_to_the_confirmation() -> None:
    """The pilot and each launch take 0.5 s: 3 s hold five of them, and the other 3 s another six."""
    answers = [Next("confirm", 10), Next("more", 10)]
    _, _, judge, _ = run_script([variant()], make_budget(5, 0, 10, 6, 3), answers)
    assert [len(fresh(look[0])) for look in judge.looks] == [5, 6]


def test_side_by_side_too() -> None:
    """Both pilots take a second, as does a round: of 10 s the first look takes five, and a confirmation the rest."""
    machine, judge = Machine(), Script([Next("confirm", 6), Next("stop")])
    sides = [variant(), variant(of_reference=True)]
    budget = make_budget(5, 0, 6, 10.0, 5.0, turns=False)
    measure(sides, budget, machine.run, Observer(judge=judge, clock=machine.clock))
    assert [len(fresh(one)) for one, _ in judge.looks] == [4, 5]


@pytest.mark.parametrize(
    ("confirmed", "max_time", "made", "told"),
    [
        pytest.param(False, 3.5, 6, [], id="all of it is for the verdict"),
        pytest.param(False, 3.9, 6, [], id="there is no time for another launch"),
        pytest.param(True, 3.5, 4, [], id="a suspect has all of it as well"),
    ],
)
def test_a_share_of_the_session_is_measured_before_it_is_diagnosed(
    max_time: float, made: int, told: list[Purpose], *, confirmed: bool
) -> None:
    """The pilot and each launch take 0.5 s."""
    answers = [Next("confirm", 2)] * confirmed + [Next("more", 1)] * 9
    budget = replace(make_budget(5, 0, 2, max_time, max_time), shared=True)
    _, machine, judge, _ = run_script([variant()], budget, answers)
    assert [len(fresh(look[0])) for look in judge.looks][-1] == made
    assert [purpose for purpose in machine.told if purpose is not Purpose.TIMES] == told
    assert machine.now <= 3.5 + 0.2, "reading memory takes 0.2 s more than timing here"


def test_a_first_look_that_the_screening_cut_goes_on_if_nothing_looks_worse() -> None:
    """Five launches end at 3 s, and the sixth of a first look is the first of those after it."""
    answers = [Next("more", 1), Next("more", 1), Next("stop")]
    _, _, judge, _ = run_script([variant()], make_budget(5, 0, 10, 6, 3), answers)
    assert [len(one.launches) for (one,) in judge.looks] == [5, 6, 7]


def test_progress_says_what_is_expected() -> None:
    """Pilot and each launch take 0.25 + 5 x 0.05 = 0.5 s: three of them end at 2 s."""
    _, _, _, seen = run_script([variant()], make_budget(5, 0, 3, 60, 60), [Next("stop")])
    assert [elapsed for _, _, elapsed, *_ in seen] == pytest.approx([0.5, 1.0, 1.5])
    assert [expected for _, _, _, expected, _ in seen] == pytest.approx([2.0, 2.0, 2.0])
    assert [None if last is None else last.ranks[0].loss for *_, last in seen] == [None, 1.0, 1.0]


@dataclass
class Looking:
    """A judge that asks for one launch more, always; keeps how many there were, and what it was told."""

    looks: list[tuple[int, Look]] = field(default_factory=list)

    def __call__(self, measured: tuple[Measurement, ...], look: Look) -> Next:
        if not look.diagnosed:
            self.looks.append((len(measured[0].launches), look))
        return Next("more", 1)


def looks(machine: Machine, budget: Budget, *, paired_rounds: bool = False) -> list[tuple[int, Look]]:
    judge, sides = Looking(), [variant(), variant(of_reference=True)] if paired_rounds else [variant()]
    measure(sides, budget, machine.run, Observer(judge=judge, clock=machine.clock))
    return judge.looks


def test_a_look_tells_the_time_and_what_a_round_takes() -> None:
    """Rounds and the pilot take 0.5 s each."""
    found = looks(Machine(), make_budget(5, 0, 2, 3.2, 3.2))
    assert [made for made, _ in found] == [2, 3, 4, 5]
    assert [look.elapsed for _, look in found] == pytest.approx([1.5, 2.0, 2.5, 3.0])
    assert {round(look.round_seconds, 9) for _, look in found} == {0.5}
    assert [look.last for _, look in found] == [False] * 3 + [True]


@pytest.mark.parametrize(("paired_rounds", "seconds"), [(True, 13.5), (False, 6.75)])
def test_nothing_new_may_look_worse_after_the_screening_but_rounds_go_on(
    seconds: float, *, paired_rounds: bool
) -> None:
    """A round takes as long as all pilots: a second side by side, else half of it. Of 13.5 rounds 6.75 are screening.

    With the pilots, that are five rounds, for another one would end after it. Then there is time for seven more.
    """
    found = looks(Machine(), make_budget(5, 0, 2, seconds, seconds / 2, turns=False), paired_rounds=paired_rounds)
    assert [(made, look.screened) for made, look in found] == [(made, made >= 5) for made in range(2, 13)]
    assert [look.last for _, look in found] == [False] * 10 + [True]


def test_what_confirms_is_not_screened() -> None:
    seen: list[bool] = []

    def judge(_: tuple[Measurement, ...], look: Look) -> Next:
        seen.append(look.screened)
        return Next("confirm", 2) if len(seen) == 1 else Next("stop")

    machine = Machine()
    measure([variant()], make_budget(5, 0, 2, 1.2, 0.6), machine.run, Observer(judge=judge, clock=machine.clock))
    assert seen[:2] == [True, False]


def test_a_slow_pilot_is_no_measure_of_the_rounds() -> None:
    """It takes 16.5 s and is made again, in 0.5 s like launches: six of a first look, and three more until 21.5 s."""
    found = looks(Machine(cold=16.0), make_budget(5, 0, 6, 21.6, 21.6))
    assert [made for made, _ in found] == [6, 7, 8, 9]
    assert {round(look.round_seconds, 9) for _, look in found} == {0.5}


def test_a_slow_pilot_leaves_as_many_steps_as_fill_a_launch() -> None:
    """A first launch 6 s slower than others takes more than half of the 10 s that each has: it is made again."""
    machine = Machine(cold=6.0)
    measure([variant()], make_budget(None, 0, 6, 60, 30), machine.run, Observer(judge=Script([Next("stop")])))
    assert [plan.steps for _, plan in machine.asked] == [PILOT_STEPS, PILOT_STEPS, *[40] * 6]  # of 0.05 s


@pytest.mark.parametrize("paired_rounds", [False, True])
def test_the_time_that_launches_take_is_enough_for_them(*, paired_rounds: bool) -> None:
    """Whoever is told what ten launches more take, and sets that, gets ten launches more."""

    def made(budget: Budget) -> tuple[int, Look]:
        return looks(Machine(), budget, paired_rounds=paired_rounds)[-1]

    budget = make_budget(20, 0, 6, 60.0, 30.0, turns=False)
    before, look = made(budget)
    more = look.elapsed + 10 * look.round_seconds
    assert made(replace(budget, max_time=more, screening=more / 2))[0] == before + 10


def test_launches_that_there_was_no_time_for_are_told() -> None:
    """The pilot takes 0.5 s; launches of as much do not fit into 1.2 s after the second, which is made in any case."""
    (measured,), _, _, _ = run_script([variant()], make_budget(5, 0, 4, 1.2, 1.2), [Next("stop")])
    assert len(measured.launches) == 2
    assert measured.findings[-1] == Finding("few_launches", {"made": 2, "wanted": 4, "max_time": 1.2, "enough": 4})
    (enough,), _, _, _ = run_script([variant()], make_budget(5, 0, 4, 4, 4), [Next("stop")])
    assert len(enough.launches) == 4
    (measured,), _, _, _ = run_script([variant()], make_budget(5, 0, 4, 2.4, 1.2), [Next("confirm", 9), Next("stop")])
    suspected, _, few = measured.findings
    assert suspected == Finding("suspected", {"metrics": (), "launches": 2})
    assert few == Finding("few_launches", {"made": 2, "wanted": 4, "max_time": 2.4, "enough": 5})


@pytest.mark.parametrize("max_time", [1.2, 4.0, 8.0])
def test_whoever_sets_the_time_that_a_diagnosis_needs_gets_one(max_time: float) -> None:
    """Launches get longer with their time: no time that is left for a diagnosis by the short ones would be enough."""
    (hurried,), machine, judge, _ = run_script([variant()], make_budget(None, 0, 6, max_time, max_time), [Next("stop")])
    told = next(finding for finding in hurried.findings if finding.code == "no_time_to_diagnose")
    assert told.facts["setting"] == "max_time"
    assert (machine.told[-1], told.facts["max_time"]) == (Purpose.GROWTH, max_time)
    assert judge.diagnosed[-1][0].findings == hurried.findings
    enough = told.facts["enough"]
    (measured,), machine, _, _ = run_script([variant()], make_budget(None, 0, 6, enough, enough), [Next("stop")])
    assert machine.told[-1] is Purpose.DIAGNOSIS
    assert measured.findings == ()


def test_of_a_part_of_the_time_nobody_knows_how_much_would_do() -> None:
    budget = replace(make_budget(5, 0, 2, 1.2, 1.2), shared=True)
    (measured,), _, judge, _ = run_script([variant()], budget, [Next("stop")])
    told = Finding("no_time_to_diagnose", {"setting": "budget", "max_time": None, "enough": None})
    assert measured.findings == judge.diagnosed[-1][0].findings == (told,)


def test_a_judge_may_look_before_the_launches_of_a_first_look_are_made() -> None:
    budget = replace(make_budget(5, 0, 4, 60, 60), first=2)
    _, _, judge, _ = run_script([variant()], budget, [Next("more", 2), Next("stop")])
    assert [len(measured.launches) for (measured,) in judge.looks] == [2, 4]


@pytest.mark.parametrize(("launches", "max_time", "made"), [(4, 2.2, 3), (2, 1.2, 2)])
def test_three_launches_or_all_that_were_asked_for_are_no_shortage(launches: int, max_time: float, made: int) -> None:
    """The pilot and each launch take 0.5 s."""
    (measured,), _, _, _ = run_script([variant()], make_budget(5, 0, launches, max_time, max_time), [Next("stop")])
    assert len(measured.launches) == made
    assert {finding.code for finding in measured.findings} <= {"no_time_to_diagnose"}


def started(seconds: float, worked: float, imported: SlowImport | None = None) -> Launch:
    ranks = (make_rank_launch(0, worked=worked / 2, imported=imported), make_rank_launch(1, worked=worked))
    return Launch(round=0, ranks=ranks, seconds=seconds)


def test_launches_that_spend_more_on_starting_than_on_steps_are_told_with_their_slowest_import() -> None:
    budget = make_budget(None, 0, 4, 15, 15)
    lightning = SlowImport(module="lightning", seconds=3.0, reason=None)
    launches = [started(6.0, 1.5, lightning), started(5.0, 1.0)]
    (finding,) = slow_starts(launches, budget)
    assert finding.facts == {
        "starting": 8.5,
        "working": 2.5,
        "launches": 2,
        "slowest": lightning,
        "steps": None,
        "max_time": 15,
    }
    (finding,) = slow_starts([started(30.0, 1.0, lightning)], budget)
    assert finding.facts["slowest"] is None, "another cause takes the time"
    quick = [started(1.0, 0.2)] * 4
    worked = [started(6.0, 3.5)] * 4
    assert slow_starts(quick, budget) == slow_starts(worked, budget) == slow_starts([], budget) == []


def test_each_launch_is_watched_from_its_start_to_its_end() -> None:
    """It lasts 0.25 + 5 x 0.05 = 0.5 s on the machine's clock. The pilot is not counted, so nobody watches it."""
    machine = Machine()

    def watch() -> Callable[[Any], Health]:
        begun = machine.now
        return lambda _: Health(cpu=CpuHealth(throttled=machine.now - begun))

    observer = Observer(judge=Script([Next("stop")]), clock=machine.clock, watch=watch)
    (measured,) = measure([variant()], make_budget(5, 0, 2, 60, 60), machine.run, observer)
    seen = [launch.health.cpu.throttled for launch in measured.launches if launch.health is not None]
    assert seen == pytest.approx([0.5, 0.5])


def test_the_watch_ends_with_a_launch_that_fails() -> None:
    ended: list[object] = []

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        if launches[0][1].steps == PILOT_STEPS:
            return Machine().run(launches, purpose)
        raise LaunchError("no ranks")

    def watch() -> Callable[[Any], None]:
        return ended.append

    with pytest.raises(LaunchError):
        measure([variant()], make_budget(7, 0, 2, 60, 60), run, Observer(judge=Script([]), watch=watch))
    assert ended == [None]  # there were no timed steps


def test_a_round_takes_what_those_before_it_did_however_slow_one_was() -> None:
    """The median: of 4 s alone that, of 4 and 5 s the mean, of 4, 5 and 30 s the middle one. The pilot took 0.5 s."""
    machine, durations = Machine(), iter((4.0, 5.0, 30.0))

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        piloting, before = not machine.asked, machine.now
        outcomes = machine.run(launches, purpose)
        if purpose is Purpose.TIMES and not piloting:
            machine.now = before + next(durations)
        return outcomes

    judge = Looking()
    budget = make_budget(5, 0, 1, 30, 30)
    measure([variant()], budget, run, Observer(judge=judge, clock=machine.clock))
    assert [look.round_seconds for _, look in judge.looks] == [4.0, 4.5, 5.0]


def test_only_benchmarks_that_go_on_are_launched() -> None:
    """Two rounds of both, two fresh ones of the suspect, one of the other; then a round of both."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "ab"]
    a, b = (frozenset({one.key}) for one in sides[:2])
    answers = [Next("confirm", 2, ("step_time of a",), going_on=a), Next("more", 1, going_on=b), Next("more", 1)]
    measured, machine, judge, _ = run_script(sides, make_budget(5, 0, 2, 120, 120), [*answers, Next("stop")])
    launched = [sorted(group) for group in machine.together[len(sides) :]]
    pair_of = {name: [(name, False), (name, True)] for name in "ab"}
    assert launched == [
        *[pair_of["a"] + pair_of["b"]] * 2,
        *[pair_of["a"]] * 2,
        pair_of["b"],
        pair_of["a"] + pair_of["b"],
    ]
    rounds = [[launch.round for launch in one.launches] for one in measured]
    assert rounds == [[0, 1, 2, 3, 5], [0, 1, 4, 5]] * 2
    assert [[len(fresh(one)) for one in look] for look in judge.looks] == [[2] * 4, [2] * 4, [2, 3] * 2, [3, 4] * 2]
    assert [len(one.diagnoses) for one in measured] == [1] * 4
    assert [[finding.code for finding in one.findings] for one in measured] == [["suspected"], []] * 2


def test_a_round_takes_the_time_of_what_goes_on() -> None:
    """Sides of a have 5 steps of 0.05 s, those of b 25, and 0.25 s each besides: 2 * 0.5 and 2 * 1.5 s."""
    steps = {"a": 5, "b": 25}
    sides = [variant(name, steps[name], of_reference=side) for side in (False, True) for name in "ab"]
    machine, looks = Machine(), list[Look]()
    answers = iter([Next("more", 1, going_on=frozenset({sides[0].key})), Next("more", 1), Next("stop")])

    def judge(_: tuple[Measurement, ...], look: Look) -> Next:
        looks.append(look)
        return Next("stop") if look.diagnosed else next(answers)

    measure(sides, make_budget(None, 0, 2, 120, 120), machine.run, Observer(judge=judge, clock=machine.clock))
    assert [look.round_seconds for look in looks[:3]] == pytest.approx([4.0, 1.0, 4.0])
    assert [look.of_each for look in looks[:3]] == [pytest.approx({sides[0].key: 1.0, sides[1].key: 3.0})] * 3
    assert [second.elapsed - first.elapsed for first, second in pairwise(looks[:3])] == pytest.approx([1.0, 4.0])
    assert [looks[0].seconds_of(keys) for keys in (None, {sides[1].key})] == pytest.approx([4.0, 3.0])


def looks_of(sides: Sequence[Variant], answers: Sequence[Next], screening: float) -> list[tuple[float, bool, bool]]:
    """The seconds of each look within 60 s, whether it was the last one, and whether the screening was over."""
    machine, looks, left = Machine(), list[Look](), iter(answers)

    def judge(_: tuple[Measurement, ...], look: Look) -> Next:
        looks.append(look)
        return Next("stop") if look.diagnosed else next(left)

    budget = make_budget(5, 0, 2, 60, screening)
    measure(sides, budget, machine.run, Observer(judge=judge, clock=machine.clock))
    return [(round(look.elapsed, 6), look.last, look.screened) for look in looks if not look.diagnosed]


def test_the_time_is_over_by_rounds_of_what_goes_on() -> None:
    """Pilots and rounds of eight pairs take 8 s: the first look is at 24 s of 30, and a round of a alone takes 1 s."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "abcdefgh"]
    looks = looks_of(sides, [Next("more", 1, going_on=frozenset({sides[0].key}))] * 8 + [Next("stop")], 30)
    assert looks == [(24.0 + second, False, second >= 6) for second in range(9)]


def test_a_judge_that_asks_for_more_than_there_is_time_for_is_asked_again() -> None:
    """At 24 s of 30 a round of all eight pairs takes 8 s: the screening is over, and rounds of all go on until 56 s."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "abcdefgh"]
    asked_again = [(24.0, False, False), (24.0, False, True)]
    later = [(second, False, True) for second in (32.0, 40.0, 48.0)]
    assert looks_of(sides, [Next("more", 1)] * 20, 30) == [
        *asked_again,
        *later,
        (56.0, False, True),
        (56.0, True, True),
    ]


def test_a_confirmation_has_as_many_launches_as_its_suspect_had() -> None:
    """Of a there are eleven, of b three: after 15 s of 17 three fresh ones of b are made, and no more fit."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "ab"]
    a, b = (frozenset({one.key}) for one in sides[:2])
    answers = [Next("more", 8, going_on=a), Next("more", 1), Next("confirm", 9, ("step_time of b",), going_on=b)]
    measured, _, _, _ = run_script(sides, make_budget(5, 0, 2, 17, 17), [*answers, Next("stop")])
    assert [(len(one.launches), one.fresh_from) for one in measured[:2]] == [(11, 0), (6, 3)]


def test_what_has_one_side_alone_has_its_turns_after_all_pairs() -> None:
    """Slots 0 and 1, 2 and 3 then hold the sides of one benchmark each, in every round."""
    sides = [
        variant(name, of_reference=side) for side in (False, True) for name in "abc" if (name, side) != ("a", True)
    ]
    _, machine, _, _ = run_script(sides, make_budget(5, 0, 8, 120, 120), [Next("stop")])
    launched = [[name for name, _ in group] for group in machine.together if len(group) == len(sides)]
    assert len(launched) >= 8
    assert {"".join(names) for names in launched} == {"bbcca", "ccbba"}


def test_launches_follow_the_order_of_their_round() -> None:
    """Sides of a benchmark that are not interleaved with others are launched together, when the first one is due."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "abc"]
    _, machine, _, _ = run_script(sides, make_budget(5, 0, 2, 120, 120, slots=1), [Next("stop")])
    rounds = [machine.together[i : i + 3] for i in (6, 9)]
    assert all(len({name for name, _ in pair}) == 1 for pairs in rounds for pair in pairs)
    assert [group[::-1] for group in rounds[0][::-1]] == rounds[1]


def test_a_screening_and_a_confirmation_end_with_what_they_left_and_the_last_run_goes_on_from_there() -> None:
    """One pilot is made. Three launches hold 1.9 s; later runs are told them again, the last one diagnoses."""
    machine, recording = Machine(), Recording(lambda: machine.now, kept=True)

    def measured(recording: Recording, budget: Budget, answers: list[Next], end: End) -> Script:
        judge = Script(answers)
        observer = Observer(judge=judge, clock=recording.now, end=end)
        measure(
            [variant()],
            budget,
            lambda launches, purpose: recording.launched(lambda: machine.run(launches, purpose)),  # type: ignore[arg-type, return-value]
            observer,
            recording,
        )
        return judge

    judge = measured(recording, make_budget(5, 0, 2, 4.0, 1.9), [Next("more", 1), Next("more", 1)], End.SCREENED)
    assert [len(one.launches) for (one,) in judge.looks] == [2]
    assert phases(machine) == [(Purpose.TIMES, 3)]
    shown = judge.looks[0][0].launches
    more = make_budget(5, 0, 6, 20.0, 10.0, first=2)
    recording = recording.again(kept=True)
    confirmed = Next("confirm", 3), Next("stop", explain=True)
    judge = measured(recording, more, [*confirmed], End.JUDGED)
    assert [len(one.launches) for (one,) in judge.looks] == [2, 2 + 3]
    assert judge.looks[0][0].launches == judge.looks[1][0].launches[:2] == shown
    assert phases(machine) == [(Purpose.TIMES, 3 + 3)]
    judge = measured(recording.again(), more, [*confirmed], End.DIAGNOSED)
    assert judge.looks[0][0].launches == judge.looks[1][0].launches[:2] == shown
    assert phases(machine) == [(Purpose.TIMES, 3 + 3), (Purpose.DIAGNOSIS, 1)]


@dataclass
class Uneven(Machine):
    """Rounds that take what a script says, and after that as long as the last one; or hang. Losses tell the variant."""

    durations: list[float] = field(default_factory=list)
    hangs: int | None = None  # the number of the launch that does

    def _launch(self, variant: Variant, plan: Plan, purpose: Purpose) -> LaunchOutcome:
        ranks, seconds = super()._launch(variant, plan, purpose)
        return tuple(replace(rank, loss=float(ord(variant.name[0]))) for rank in ranks), seconds

    def launched(self, recording: Recording, launches: Any, purpose: Purpose) -> Any:
        """A launch as a recording knows it."""

        def launch() -> Any:
            begun = self.now
            outcome = self.run(launches, purpose)
            self.now = begun + (self.durations.pop(0) if len(self.durations) > 1 else self.durations[0])
            if len(self.told) == self.hangs:
                self.now += 48.0
                raise WorkloadError("hangs")
            return outcome

        return recording.launched(launch) if purpose is Purpose.TIMES else launch()


def run_pass(
    machine: Uneven, recording: Recording, budget: Budget, judge: Script, end: End, *names: str
) -> tuple[Measurement, ...]:
    return measure(
        [variant(name) for name in names or ("ddp",)],
        budget,
        lambda launches, purpose: machine.launched(recording, launches, purpose),
        Observer(judge=judge, clock=recording.now, end=end),
        recording,
    )


def test_what_was_measured_is_told_again_to_the_end_though_the_time_is_up() -> None:
    """The last round was a short one, so another one as long as the median would not have fitted."""
    machine = Uneven(durations=[0.1, 1.0, 1.0, 1.0, 1.0, 0.2])
    kept = Recording(machine.clock, kept=True)
    answers = [Next("confirm", 2), Next("more", 1), Next("stop")]
    run_pass(machine, kept, make_budget(5, 0, 2, 20.0, 10.0, first=2), Script([*answers]), End.JUDGED)
    assert len(machine.told) == 1 + 5
    elapsed = kept.now() - 0.1
    again, judge = kept.again(), Script([*answers])
    run_pass(machine, again, make_budget(5, 0, 2, elapsed, elapsed / 2, first=2), judge, End.DIAGNOSED)
    assert [len(one.launches) for (one,) in judge.looks] == [2, 4, 5]
    assert not again.replaying
    assert machine.told[6:] == [Purpose.GROWTH]


def test_a_failure_that_took_long_is_raised_again() -> None:
    machine = Uneven(durations=[0.1, 1.0], hangs=6)
    kept = Recording(machine.clock, kept=True)
    answers = [Next("confirm", 2), *[Next("more", 1)] * 9]
    for max_time in (60.0, 4.5):
        recording = kept if max_time == 60.0 else kept.again()
        with pytest.raises(WorkloadError, match="hangs"):
            run_pass(machine, recording, make_budget(5, 0, 2, max_time, 30.0, first=2), Script([*answers]), End.JUDGED)
    assert len(machine.told) == 6


def test_a_pass_that_stops_earlier_than_the_one_before_is_diagnosed_by_a_launch_that_diagnoses() -> None:
    machine = Uneven(durations=[0.1, 1.0])
    kept = Recording(machine.clock, kept=True)
    more = Next("more", 1)
    run_pass(machine, kept, make_budget(5, 0, 2, 20.0, 10.0, first=2), Script([more, more, Next("stop")]), End.JUDGED)
    judge = Script([Next("stop", explain=True)])
    (measured,) = run_pass(machine, kept.again(), make_budget(5, 0, 2, 20.0, 10.0, first=2), judge, End.DIAGNOSED)
    assert machine.told[-1] is Purpose.DIAGNOSIS
    assert len(measured.diagnoses) == 1


def test_launches_belong_to_their_variants_wherever_a_pass_begins_again() -> None:
    """The order of a round depends on its number alone: three launches before a suspicion, or two."""
    machine = Uneven(durations=[0.1, 1.0])
    kept = Recording(machine.clock, kept=True)
    budget = make_budget(5, 0, 2, 60.0, 30.0, first=2, turns=False)
    stop = Next("stop")
    first = [Next("more", 1), Next("confirm", 3), stop]
    run_pass(machine, kept, budget, Script(first), End.JUDGED, "a", "b")
    other = [Next("confirm", 2), Next("more", 1), Next("more", 1), stop]
    measured = run_pass(machine, kept.again(), budget, Script(other), End.JUDGED, "a", "b")
    losses = [[launch.ranks[0].loss for launch in one.launches] for one in measured]
    assert losses == [[float(ord("a"))] * 6, [float(ord("b"))] * 6]


@pytest.mark.parametrize("turns", [True, False])
def test_what_is_told_again_is_of_what_was_launched(*, turns: bool) -> None:
    """By the time that a later pass has, nothing is decided where the first one launched b alone."""
    machine = Uneven(durations=[0.1, 0.1, 0.1, 0.1, 1.0])
    kept = Recording(machine.clock, kept=True)
    budget = make_budget(5, 0, 2, 60.0, 30.0, first=2, turns=turns)
    b, more, stop = frozenset({variant("b").key}), Next("more", 1), Next("stop")
    run_pass(machine, kept, budget, Script([Next("more", 1, going_on=b), more, stop]), End.SCREENED, "a", "b")
    alone = [Next("more", 1, going_on=frozenset({variant("a").key})), stop]
    again, judge = kept.again(), Script([more, more, *alone])
    measured = run_pass(machine, again, budget, judge, End.JUDGED, "a", "b")
    assert [[launch.round for launch in one.launches] for one in measured] == [[0, 1, 3, 4], [0, 1, 2, 3]]
    assert [{launch.ranks[0].loss for launch in one.launches} for one in measured] == [{97.0}, {98.0}]
    assert kept.sets.keys() == {0, 1, 2, 3}


def test_a_confirmation_has_as_many_launches_of_its_suspect_wherever_a_pass_begins_again() -> None:
    """The first pass launched a alone, twice; the second one suspects b by then, and confirms it by three launches."""
    machine = Uneven(durations=[0.1, 0.1, 1.0])
    kept = Recording(machine.clock, kept=True)
    budget = make_budget(5, 0, 2, 60.0, 30.0, first=2)
    a, b = (frozenset({variant(name).key}) for name in "ab")
    run_pass(machine, kept, budget, Script([Next("more", 2, going_on=a), Next("stop")]), End.JUDGED, "a", "b")
    judge = Script([Next("confirm", 3, going_on=b), Next("stop")])
    measured = run_pass(machine, kept.again(), budget, judge, End.JUDGED, "a", "b")
    assert [[launch.round for launch in one.launches] for one in measured] == [[0, 1, 2, 3], [0, 1, 4, 5, 6]]
    assert [one.fresh_from for one in measured] == [0, 2]
