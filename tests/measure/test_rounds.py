"""The loop of launches, with a fake run and a fake clock: every figure follows from the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.health import CpuHealth, Health
from pytest_ddpperf.measure import (
    Budget,
    Look,
    Next,
    Observer,
    Progress,
    Ran,
    Telling,
    Variant,
    fitting_steps,
    measure,
)
from pytest_ddpperf.measure.pilot import LAUNCH_SECONDS, PILOT_STEPS
from pytest_ddpperf.records import Environment, Measurement, Plan, RankLaunch
from pytest_ddpperf.strategies import Strategy

STEP = 0.05  # seconds, on the slower rank
FIXED = 0.25  # seconds that a launch takes besides its timed steps


@dataclass
class Machine:
    """Runs launches by adding their seconds to a clock; keeps what was asked of it."""

    now: float = 0.0
    asked: list[tuple[str, Plan]] = field(default_factory=list)
    diagnosed: list[bool] = field(default_factory=list)
    growth: list[bool] = field(default_factory=list)
    together: list[tuple[tuple[str, bool], ...]] = field(default_factory=list)

    def run(self, launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        self.together.append(tuple((variant.name, variant.other) for variant, _ in launches))
        return [self._launch(variant, plan, telling) for variant, plan in launches]

    def _launch(self, variant: Variant, plan: Plan, telling: Telling) -> Ran:
        self.asked.append((variant.name, plan))
        self.diagnosed.append(telling.diagnosed)
        self.growth.append(telling.growth)
        seconds = FIXED + plan.steps * STEP
        self.now += seconds
        ranks = [RankLaunch(rank, (STEP / (2 - rank),) * plan.steps, {}, 1.0, 4.0, None) for rank in (0, 1)]
        return tuple(ranks), seconds

    def clock(self) -> float:
        return self.now


@dataclass
class Script:
    """A judge that gives prepared answers and keeps what it was shown."""

    answers: list[Next]
    looks: list[tuple[Measurement, ...]] = field(default_factory=list)

    def __call__(self, measured: tuple[Measurement, ...], _look: Look) -> Next:
        self.looks.append(measured)
        return self.answers.pop(0)


def variant(name: str = "ddp", steps: int | None = None, *, other: bool = False) -> Variant:
    environment = Environment("cpu", "chip", 0, "chip", 2, 1, 1, "gloo", 2, "2.13", None)
    return Variant(name, None, Strategy("ddp"), None, environment, steps=steps, other=other)


def run_script(
    variants: list[Variant], budget: Budget, answers: list[Next]
) -> tuple[tuple[Measurement, ...], Machine, Script, list[Progress]]:
    machine, judge, seen = Machine(), Script(answers), list[Progress]()
    observer = Observer(judge, seen.append, clock=machine.clock)
    return measure(variants, budget, machine.run, observer), machine, judge, seen


def test_a_pilot_comes_first_and_fixes_the_steps() -> None:
    """A second of 50 ms steps is 20 of them; the pilot's launch is not among those measured."""
    (measured,), machine, _, _ = run_script([variant()], Budget(None, 5, 3, 60, 60), [Next("stop")])
    assert machine.asked == [("ddp", Plan(5, PILOT_STEPS))] + [("ddp", Plan(5, 20))] * 3
    assert measured.plan == Plan(5, 20)
    assert [launch.round for launch in measured.launches] == [0, 1, 2]


def test_a_step_lasts_as_long_as_its_slowest_rank() -> None:
    (measured,), _, _, _ = run_script([variant()], Budget(4, 0, 2, 60, 60), [Next("stop")])
    assert measured.launches[0].step_times == (STEP,) * 4
    assert measured["step_time"].value == pytest.approx(STEP)
    assert measured["throughput"].value == pytest.approx(8 / STEP)  # two ranks with four samples each


@pytest.mark.parametrize(
    ("budget", "plan"),
    [
        (Budget(None, 5, 2, 60, 60), Plan(5, 7)),  # both sides time the same steps
        (Budget(11, 5, 2, 60, 60), Plan(5, 11)),  # what the user asks for is stronger
    ],
)
def test_the_baselines_steps_are_followed_unless_steps_are_given(budget: Budget, plan: Plan) -> None:
    (measured,), _, _, _ = run_script([variant(steps=7)], budget, [Next("stop")])
    assert measured.plan == plan


def test_a_small_budget_makes_launches_short() -> None:
    """4 s for 8 launches is 0.5 s each: less the fixed 0.25 s, five steps of 50 ms."""
    (measured,), _, _, _ = run_script([variant()], Budget(None, 5, 8, 8, 4), [Next("stop")])
    assert measured.plan.steps == 5


def test_more_launches_are_added_to_those_there_are() -> None:
    (measured,), _, judge, seen = run_script([variant()], Budget(5, 0, 2, 60, 60), [Next("more", 2), Next("stop")])
    assert [len(look[0].launches) for look in judge.looks] == [2, 4]
    assert len(measured.launches) == 4
    assert [(progress.launch, progress.of) for progress in seen] == [(1, 2), (2, 2), (3, 4), (4, 4)]


def test_a_suspect_is_judged_by_fresh_launches_alone() -> None:
    (measured,), _, judge, _ = run_script(
        [variant()], Budget(5, 0, 2, 60, 60), [Next("confirm", 3, ("step_time",)), Next("stop")]
    )
    first, second = (look[0].launches for look in judge.looks)
    assert (len(first), len(second)) == (2, 3)
    assert measured.launches == second
    assert not set(map(id, first)) & set(map(id, second))
    assert measured.findings == ("step_time looked worse in 2 launches; judged by fresh ones alone",)


def test_variants_share_every_round_in_changing_order() -> None:
    variants = [variant("a"), variant("b")]
    measured, machine, _, _ = run_script(variants, Budget(5, 0, 12, 60, 60), [Next("stop")])
    rounds = [tuple(name for name, _ in machine.asked[i : i + 2]) for i in range(2, 26, 2)]
    assert {frozenset(names) for names in rounds} == {frozenset("ab")}
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert [rounds.count(("a", "b")), rounds.count(("b", "a"))] == [6, 6]  # neither gains from its place
    assert [len(one.launches) for one in measured] == [12, 12]


def test_both_sides_of_a_benchmark_run_the_same_steps() -> None:
    """The other side's steps take half the time: it runs no more of them for that."""
    machine = Machine()

    def run(launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        return [
            (tuple(replace(rank, step_times=(STEP / 2,) * plan.steps) for rank in ranks) if one.other else ranks, took)
            for (one, plan), (ranks, took) in zip(launches, machine.run(launches, telling), strict=True)
        ]

    sides = [variant("a"), variant("b", steps=7), variant("a", other=True), variant("b", other=True)]
    observer = Observer(Script([Next("stop")]), list[Progress]().append, clock=machine.clock)
    measured = measure(sides, Budget(None, 5, 2, 120, 120), run, observer)
    assert [one.plan for one in measured] == [Plan(5, 20), Plan(5, 7)] * 2


@pytest.mark.parametrize("names", ["a", "ab"])
def test_both_sides_are_launched_together_and_each_comes_first_as_often(names: str) -> None:
    sides = [variant(name, other=other) for other in (False, True) for name in names]
    measured, machine, _, _ = run_script(sides, Budget(5, 0, 4, 120, 120), [Next("stop")])
    everybody = [(one.name, one.other) for one in sides]
    assert machine.together[: len(sides)] == [(one,) for one in everybody]  # the pilots
    launched = machine.together[len(sides) :]
    assert [sorted(group) for group in launched] == [sorted(everybody)] * 4
    for group in launched:  # the sides of a benchmark are neighbours
        assert [name for name, _ in group] in ([*"aa"], [*"aabb"], [*"bbaa"])
    for one, another in combinations(everybody, 2):
        assert [group.index(one) < group.index(another) for group in launched].count(True) == 2
    assert all(one.turns for one in measured)


def test_variants_of_one_test_are_launched_together() -> None:
    measured, machine, _, _ = run_script([variant("a"), variant("b")], Budget(5, 0, 2, 120, 120), [Next("stop")])
    assert [sorted(name for name, _ in group) for group in machine.together[2:]] == [["a", "b"]] * 2
    assert [one.turns for one in measured] == [True, True]


GPU = Environment("cuda", "gpu", 2, "chip", 2, 1, 1, "nccl", 2, "2.13", "12.8")


@pytest.mark.parametrize(
    ("environment", "turns", "background"),
    [
        pytest.param(GPU, True, None, id="on GPUs"),
        pytest.param(None, False, None, id="where that is not wanted"),
        pytest.param(None, True, False, id="where this side works in the background"),
        pytest.param(None, True, True, id="where the other side does"),
    ],
)
def test_sides_are_launched_one_after_the_other(
    environment: Environment | None, *, turns: bool, background: bool | None
) -> None:
    machine = Machine()

    def run(launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        ran = machine.run(launches, telling)
        return [
            ((ranks[0], replace(ranks[1], background=one.other is background)), took)
            for (one, _), (ranks, took) in zip(launches, ran, strict=True)
        ]

    sides = [variant("a", other=other) for other in (False, True)]
    sides = [replace(one, environment=environment or one.environment) for one in sides]
    observer = Observer(Script([Next("stop")]), lambda _: None, clock=machine.clock)
    measured = measure(sides, Budget(5, 0, 3, 120, 120, turns=turns), run, observer)
    assert {len(group) for group in machine.together} == {1}
    assert not any(one.turns for one in measured)
    told = ("launched one after the other, without turns: ranks of a work on in the background",)
    assert [one.findings for one in measured] == [told if background is not None else ()] * 2


def test_time_that_is_spent_ends_it_but_for_two_launches() -> None:
    """A round takes 0.5 s and the pilot as much: in 1.2 s no third fits, and whoever asks for ten gets two."""
    (measured,), _, judge, _ = run_script([variant()], Budget(5, 0, 10, 1.2, 1.2), [Next("more", 10)])
    assert len(measured.launches) == 2
    assert len(judge.looks) == 1


def test_a_suspect_is_confirmed_even_when_time_is_up() -> None:
    answers = [Next("confirm", 10), Next("more", 10)]
    (measured,), _, judge, _ = run_script([variant()], Budget(5, 0, 10, 1.2, 1.2), answers)
    first, second = (look[0].launches for look in judge.looks)
    assert (len(first), len(second)) == (2, 2)
    assert measured.launches == second
    assert not set(map(id, first)) & set(map(id, second))


def test_screening_leaves_the_other_half_to_the_confirmation() -> None:
    """The pilot and each launch take 0.5 s: 3 s hold five of them, and the other 3 s another six."""
    answers = [Next("confirm", 10), Next("more", 10)]
    _, _, judge, _ = run_script([variant()], Budget(5, 0, 10, 6, 3), answers)
    assert [len(look[0].launches) for look in judge.looks] == [5, 6]


@pytest.mark.parametrize(
    ("first_look", "confirming", "in_rounds", "expected"),
    [
        pytest.param(18.0, False, True, 42.0, id="as much is left for a confirmation"),
        pytest.param(48.0, False, True, 30.0, id="half at least"),
        pytest.param(18.0, False, False, 30.0, id="beside a baseline, half"),
        pytest.param(18.0, True, True, 60.0, id="a confirmation gets all"),
    ],
)
def test_side_by_side_screening_leaves_time_for_the_first_look_of_a_confirmation(
    first_look: float,
    expected: float,
    *,
    confirming: bool,
    in_rounds: bool,
) -> None:
    budget = Budget(None, 5, 6, 60, 30)
    assert budget.deadline(first_look=first_look, confirming=confirming, in_rounds=in_rounds) == expected


def test_progress_says_what_is_expected() -> None:
    """Pilot and each launch take 0.25 + 5 x 0.05 = 0.5 s: three of them end at 2 s."""
    _, _, _, seen = run_script([variant()], Budget(5, 0, 3, 60, 60), [Next("stop")])
    assert [progress.elapsed for progress in seen] == pytest.approx([0.5, 1.0, 1.5])
    assert [progress.expected for progress in seen] == pytest.approx([2.0, 2.0, 2.0])


def test_the_first_launches_are_diagnosed_and_so_are_those_that_confirm() -> None:
    answers = [Next("confirm", 3), Next("stop")]
    _, machine, _, _ = run_script([variant()], Budget(20, 0, 6, 600, 600), answers)
    assert machine.diagnosed == [False, *[True] * 4, False, False, *[True] * 3]  # the pilot, six launches, three more


def test_growth_of_memory_is_read_at_first_and_as_long_as_it_is_asked_for() -> None:
    answers = [Next("more", 1, growth=True), Next("more", 2), Next("confirm", 3), Next("more", 1), Next("stop")]
    _, machine, _, _ = run_script([variant()], Budget(5, 0, 2, 600, 600), answers)
    assert machine.growth == [False, *[True] * 3, False, False, *[True] * 3, False]


@dataclass
class Slow(Machine):
    """One whose pilot, and whose launches that tell more than times, take so many seconds more."""

    cold: float = 0.0
    diagnosis: float = 0.0
    growing: float = 0.0

    def run(self, launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        more = self.diagnosis * telling.diagnosed + self.growing * telling.growth + self.cold * (not self.asked)
        self.now += more
        return [(ranks, seconds + more) for ranks, seconds in super().run(launches, telling)]


@dataclass
class Looking:
    """A judge that asks for one launch more, always; keeps how many there were, and when."""

    looks: list[tuple[int, float, float, bool]] = field(default_factory=list)

    def __call__(self, measured: tuple[Measurement, ...], look: Look) -> Next:
        seconds = (round(look.elapsed, 6), round(look.round_seconds, 6))
        self.looks.append((len(measured[0].launches), *seconds, look.last))
        return Next("more", 1)


def looks(machine: Machine, budget: Budget) -> list[tuple[int, float, float, bool]]:
    judge = Looking()
    measure([variant()], budget, machine.run, Observer(judge, lambda _: None, clock=machine.clock))
    return judge.looks


def test_rounds_are_planned_by_what_those_like_them_take() -> None:
    """Launches of 0.5 s; of the first three, which tell if memory grows, two are diagnosed: 1.5, 1.5 and 0.8 s.

    With the pilot that is 4.3 s. Rounds of nothing but times are not known then, but do not take more than 0.5 s, the
    pilot: two of them end at 5.3 s, when a third one would end at 5.8 s.
    """
    found = looks(Slow(diagnosis=0.7, growing=0.3), Budget(5, 0, 3, 5.7, 5.7))
    assert found == [(3, 4.3, 0.5, False), (4, 4.8, 0.5, False), (5, 5.3, 0.5, True)]


def test_a_slow_pilot_is_no_measure_of_the_rounds() -> None:
    """It takes 16.5 s and is made again, in 0.5 s like launches: six of a first look, and three more until 21.5 s."""
    found = looks(Slow(cold=16.0), Budget(5, 0, 6, 21.6, 21.6))
    assert [made for made, *_ in found] == [6, 7, 8, 9]
    assert {seconds for _, _, seconds, _ in found} == {0.5}


def test_a_slow_pilot_leaves_as_many_steps_as_fill_a_launch() -> None:
    """A first launch 4 s slower than others takes most of the 5 s that each has: it is made again, at 0.5 s."""
    machine = Slow(cold=4.0)
    measure([variant()], Budget(None, 0, 6, 60, 30), machine.run, Observer(Script([Next("stop")]), lambda _: None))
    assert [plan.steps for _, plan in machine.asked] == [PILOT_STEPS, PILOT_STEPS, *[20] * 6]  # of 0.05 s


def test_times_come_before_a_diagnosis_that_there_is_no_time_for() -> None:
    """A diagnosis takes 4 s, a launch 1.25 s: after two, at 11 s, there is time for four launches more, if none has it.

    A third diagnosis would end at 16.25 s, and the others at 20 s.
    """
    machine = Slow(diagnosis=4.0)
    found = looks(machine, Budget(20, 0, 6, 17.7, 17.7))
    assert machine.diagnosed == [False, True, True, *[False] * 5]
    assert [made for made, *_ in found] == [6, 7]  # at 16 and 17.25 s
    enough = Slow(diagnosis=4.0)
    looks(enough, Budget(20, 0, 6, 20.0, 20.0))
    assert enough.diagnosed[:4] == [False, True, True, True]


def test_side_by_side_a_confirmation_has_time_for_all_of_its_first_look() -> None:
    """Rounds of two launches of 0.5 s, and of a first look 0.4 s more for each, and 0.6 s where they are diagnosed.

    The first look takes 2 x 3 + 4 x 1.8 = 13.2 s. So a screening of 40 s has time until 26.8 s: the pilots' 1 s, as
    much, and twelve rounds more.
    """
    machine = Slow(growing=0.4, diagnosis=0.6)
    judge = Script([Next("more", 1)] * 12 + [Next("confirm", 6), Next("stop")])
    sides = [variant(), variant(other=True)]
    budget = Budget(5, 0, 6, 40.0, 10.0, turns=False)
    ours, _ = measure(sides, budget, machine.run, Observer(judge, lambda _: None, clock=machine.clock))
    assert [len(look[0].launches) for look in judge.looks] == [*range(6, 19), 6]
    assert machine.now == pytest.approx(1.0 + 13.2 + 12 * 1.0 + 13.2)
    assert ours.findings == (" looked worse in 18 launches; judged by fresh ones alone",)


@pytest.mark.parametrize("in_rounds", [False, True])
def test_the_time_that_launches_take_is_enough_for_them(*, in_rounds: bool) -> None:
    """Whoever is told what ten launches more take, and sets that, gets ten launches more."""
    sides = [variant(), variant(other=True)] if in_rounds else [variant()]
    said: list[tuple[int, Look]] = []

    def judge(measured: tuple[Measurement, ...], look: Look) -> Next:
        said.append((len(measured[0].launches), look))
        return Next("more", 1)

    def made(budget: Budget) -> int:
        machine = Slow(growing=0.4, diagnosis=0.6, cold=3.0)
        measure(sides, budget, machine.run, Observer(judge, lambda _: None, clock=machine.clock))
        return said[-1][0]

    budget = Budget(20, 0, 6, 60.0, 30.0, turns=False)
    before, look = made(budget), said[-1][1]
    seconds = look.elapsed + 10 * look.round_seconds
    more = budget.max_time_for(seconds, first_look=look.first_look, confirming=False, in_rounds=in_rounds)
    assert made(replace(budget, max_time=more, screening=more / 2)) == before + 10


def test_of_long_steps_fewer_launches_are_diagnosed() -> None:
    _, machine, _, _ = run_script([variant()], Budget(19, 0, 4, 600, 600), [Next("stop")])
    assert machine.diagnosed == [False, True, True, False, False]


def test_launches_that_there_was_no_time_for_are_told() -> None:
    """The pilot takes 0.5 s; launches of as much do not fit into 1.2 s after the second, which is made in any case."""
    (measured,), _, _, _ = run_script([variant()], Budget(5, 0, 4, 1.2, 1.2), [Next("stop")])
    assert len(measured.launches) == 2
    told = "time for 2 of 4 launches only: raise max_time, which is 1.2 s"
    assert measured.findings[-1] == told
    (measured,), _, _, _ = run_script([variant()], Budget(5, 0, 4, 2.4, 1.2), [Next("stop")])
    assert (
        measured.findings[-1]
        == "time for 2 of 4 launches only: raise max_time, which is 2.4 s, part of it kept to confirm a suspicion"
    )
    (measured,), _, _, _ = run_script([variant()], Budget(5, 0, 4, 2.4, 1.2), [Next("confirm", 9), Next("stop")])
    assert measured.findings[-1].endswith("of 4 launches only: raise max_time, which is 2.4 s")


def test_each_launch_is_watched_from_its_start_to_its_end() -> None:
    """It lasts 0.25 + 5 x 0.05 = 0.5 s on the machine's clock. The pilot is not counted, so nobody watches it."""
    machine = Machine()

    def watch() -> Callable[[], Health]:
        begun = machine.now
        return lambda: Health(CpuHealth(throttled=machine.now - begun))

    observer = Observer(Script([Next("stop")]), lambda _: None, clock=machine.clock, watch=watch)
    (measured,) = measure([variant()], Budget(5, 0, 2, 60, 60), machine.run, observer)
    seen = [launch.health.cpu.throttled for launch in measured.launches if launch.health is not None]
    assert seen == pytest.approx([0.5, 0.5])


def test_the_watch_ends_with_a_launch_that_fails() -> None:
    ended: list[bool] = []

    def run(launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        if launches[0][1].steps == PILOT_STEPS:
            return Machine().run(launches, telling)
        raise LaunchError("no ranks")

    def watch() -> Callable[[], None]:
        return lambda: ended.append(True)

    with pytest.raises(LaunchError):
        measure([variant()], Budget(7, 0, 2, 60, 60), run, Observer(Script([]), lambda _: None, watch=watch))
    assert ended == [True]


def test_steps_that_fit() -> None:
    assert fitting_steps(0.15, 10) == 7  # ceil(1 / 0.15)
    assert fitting_steps(0.1, 0.75) == 8  # ceil(0.75 / 0.1)
    assert fitting_steps(10.0, 60) == 5
    assert fitting_steps(1e-6, 60) == 1000
    assert fitting_steps(0.0, -1.0) == 5
    assert pytest.approx(1.0) == LAUNCH_SECONDS
