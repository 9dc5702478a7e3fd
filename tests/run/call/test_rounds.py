"""The loop of launches, with a fake run and a fake clock: every figure follows from the script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby, pairwise
from typing import Any, NamedTuple

import pytest

from pytest_ddpperf.errors import DdpperfError, LaunchError, ReferenceFailed, ReferenceStopped
from pytest_ddpperf.judge.sequential import Action, Interim
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Health, Launch, SlowImport
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.run.budget.allocation import Priority, TimeRequest
from pytest_ddpperf.run.budget.session_budget import CallId, SessionBudget
from pytest_ddpperf.run.call.planning import PILOT_STEPS, LaunchLimits, LaunchOutcome, LaunchRunner, Purpose
from pytest_ddpperf.run.call.rounds import Measuring, Observer, Rounds
from pytest_ddpperf.run.call.time_sheet import slow_starts
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.jobs import PeriodicPlan
from tests.factories import make_environment, make_launch, make_limits, make_rank_launch, make_variant

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
        growing: seconds that reading memory takes, besides the launch and the one step that it times.
        diagnosis: the same of looking where the time goes.
    """

    now: float = 0.0
    asked: list[tuple[str, Plan]] = field(default_factory=list)
    told: list[Purpose] = field(default_factory=list)
    together: list[tuple[tuple[str, bool], ...]] = field(default_factory=list)
    growing: float = 0.4
    diagnosis: float = 1.0

    def run(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        if purpose is Purpose.TIMES:
            self.together.append(tuple((variant.name, variant.of_reference) for variant, _ in launches))
        return [self._launch(variant, plan, purpose) for variant, plan in launches]

    def _launch(self, variant: Variant, plan: Plan, purpose: Purpose) -> LaunchOutcome:
        seconds = FIXED + plan.steps * STEP
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
    """A judge that gives prepared answers, then always asks for one launch more; keeps what it was shown.

    Attributes:
        answers: to looks at times.
        growths: to looks at launches that diagnose; where there is none, it is content.
    """

    answers: list[Action] = field(default_factory=list)
    growths: list[Action] = field(default_factory=list)
    looks: list[tuple[Measurement, ...]] = field(default_factory=list)
    interims: list[Interim] = field(default_factory=list)
    diagnosed: list[tuple[Measurement, ...]] = field(default_factory=list)

    def __call__(self, measured: tuple[Measurement, ...], interim: Interim) -> Action:
        if interim.diagnosed:
            self.diagnosed.append(measured)
            return self.growths.pop(0) if self.growths else Action("stop")
        self.looks.append(measured)
        self.interims.append(interim)
        return self.answers.pop(0) if self.answers else Action("more", 1)

    @property
    def made(self) -> list[int]:
        """How many launches of the first benchmark there were at each look."""
        return [len(first.launches) for first, *_ in self.looks]


def variant(name: str = "ddp", steps: int | None = None, *, of_reference: bool = False) -> Variant:
    environment = make_environment(cores=2)
    return make_variant(name, strategy=Strategy("ddp"), environment=environment, steps=steps, of_reference=of_reference)


class Given(NamedTuple):
    """What a call may take: launches, seconds, and whether half of these are kept to confirm what looks worse."""

    limits: LaunchLimits
    max_time: float
    compared: bool


def given(
    steps: int | None, warmup: int, launches: int, max_time: float, *, compared: bool = False, **more: Any
) -> Given:
    screening = max_time / 2 if compared else max_time
    return Given(make_limits(steps, warmup, launches, screening, **more), max_time, compared)


def measured_by(
    machine: Machine, variants: Sequence[Variant], what: Given, observer: Observer, run: LaunchRunner | None = None
) -> tuple[Measurement, ...]:
    """What is measured from now on by a session without a limit of its own."""
    time = SessionBudget(None, 1, machine.clock)
    time.share(
        CallId("test_it", 1), Settings(max_time=what.max_time), begun=machine.now, compared=what.compared, benchmarks=1
    )
    return Measuring(variants, what.limits, run or machine.run, observer, time).measured()


def run_script(
    variants: list[Variant], what: Given, answers: list[Action]
) -> tuple[tuple[Measurement, ...], Machine, Script, list[Progress]]:
    machine, judge, seen = Machine(), Script(answers), list[Progress]()
    observer = Observer(judge=judge, progress=lambda *figures: seen.append(figures))
    return measured_by(machine, variants, what, observer), machine, judge, seen


def test_a_pilot_comes_first_and_fixes_the_steps() -> None:
    """40 steps, of 50 ms each: a second would be 20 of them. The pilot's launch is not among those measured."""
    (measured,), machine, _, _ = run_script([variant()], given(None, 5, 3, 60), [Action("stop")])
    assert machine.asked == [("ddp", Plan(warmup=5, steps=PILOT_STEPS))] + [("ddp", Plan(warmup=5, steps=40))] * 3
    assert measured.plan == Plan(warmup=5, steps=40)
    assert [launch.round for launch in measured.launches] == [0, 1, 2]
    assert not measured.turns


def test_a_diagnosis_knows_the_period_of_long_steps_in_all_launches() -> None:
    """Two launches of 25 steps have a long one in each tenth: four in all, with two distances of 10."""
    machine, plans = Machine(), list[tuple[Purpose, Plan]]()

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        plans.extend((purpose, plan) for _, plan in launches)
        ((ranks, seconds),) = machine.run(launches, purpose)
        times = tuple(10 * STEP if step % 10 == 9 else STEP for step in range(25))
        return [(tuple(replace(rank, step_times=times) for rank in ranks), seconds)]

    observer = Observer(judge=Script([Action("stop")]))
    (measured,) = measured_by(machine, [variant()], given(25, 0, 2, 60), observer, run)
    assert [plan for purpose, plan in plans if purpose is Purpose.TIMES][1:] == [Plan(warmup=0, steps=25)] * 2
    assert plans[-1] == (Purpose.DIAGNOSIS, PeriodicPlan(warmup=0, steps=25, period=10))
    assert measured.plan == Plan(warmup=0, steps=25)


def fresh(measured: Measurement) -> tuple[Launch, ...]:
    """The launches since the last suspicion."""
    return measured.launches[measured.fresh_from :]


def phases(machine: Machine) -> list[tuple[Purpose, int]]:
    """What launches were to tell, and how many of them in a row."""
    return [(purpose, len(list(group))) for purpose, group in groupby(machine.told)]


def test_launches_that_diagnose_follow_the_verdict() -> None:
    """The pilot, two rounds, three that confirm, one more: they tell nothing but times. Then one tells all."""
    answers = [Action("confirm", 3), Action("more", 1), Action("stop")]
    (measured,), machine, judge, _ = run_script([variant()], given(5, 0, 2, 60), answers)
    assert phases(machine) == [(Purpose.TIMES, 1 + 2 + 3 + 1), (Purpose.DIAGNOSIS, 1)]
    assert [(len(fresh(one)), len(one.diagnoses)) for (one,) in (*judge.looks, *judge.diagnosed)] == [
        *((2, 0), (3, 0), (4, 0)),
        (4, 1),
    ]
    assert (len(measured.launches), len(measured.diagnoses)) == (6, 1)


@pytest.mark.parametrize(
    ("max_time", "explain", "told"),
    [
        pytest.param(3.25, False, Purpose.DIAGNOSIS, id="there is time"),
        pytest.param(3.15, False, Purpose.GROWTH, id="there is none"),
        pytest.param(3.15, True, Purpose.DIAGNOSIS, id="there is none, but it is asked for"),
    ],
)
def test_steps_are_diagnosed_if_there_is_time_or_it_is_asked_for(
    max_time: float, told: Purpose, *, explain: bool
) -> None:
    """Pilot and two launches take 1.5 s. Reading memory takes seven steps of 50 ms, and one that is timed.

    With five more that are taken apart and four pairs of blocks of 1 + 1 steps a side that is 0.25 + 29 * 0.05 = 1.7 s:
    3.2 s in all.
    """
    what = given(5, 0, 2, max_time)
    _, machine, _, _ = run_script([variant()], what, [Action("stop", explain=explain)])
    assert phases(machine) == [(Purpose.TIMES, 3), (told, 1)]


def test_memory_growth_has_to_be_confirmed_by_fresh_launches() -> None:
    machine = Machine()
    judge = Script(
        [Action("stop")], [Action("confirm", 1, ("memory_growth",)), Action("confirm", 1, ("memory_growth",))]
    )
    observer = Observer(judge=judge)
    (measured,) = measured_by(machine, [variant()], given(5, 0, 2, 60), observer)
    assert phases(machine) == [(Purpose.TIMES, 3), (Purpose.DIAGNOSIS, 2)]  # twice, whatever it says then
    first, second = (one.diagnoses for (one,) in judge.diagnosed)
    assert measured.diagnoses == second
    assert first[0] is not second[0]
    assert measured.launches == judge.looks[0][0].launches
    assert measured.findings == (Finding("suspected", {"metrics": ("memory_growth",), "launches": 1}),)


@pytest.mark.parametrize(
    ("failure", "action", "raised"),
    [
        pytest.param(LaunchError("no ranks\nat all"), Action("stop", worse=True), False, id="something is worse"),
        pytest.param(ReferenceFailed("no ranks\n", benchmark=("ddp", 2)), Action("stop"), False, id="the other side"),
        pytest.param(ReferenceStopped("no ranks\n", benchmark=("ddp", 2)), Action("stop"), False, id="that has run"),
        pytest.param(LaunchError("no ranks\nat all"), Action("stop"), True, id="this side"),
        pytest.param(LaunchError("no ranks\nat all"), Action("stop", explain=True), True, id="which is explained"),
    ],
)
def test_a_launch_that_fails_to_diagnose_takes_no_verdict_back(
    failure: DdpperfError, action: Action, *, raised: bool
) -> None:
    machine, judge = Machine(), Script([action])

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        if purpose is Purpose.TIMES:
            return machine.run(launches, purpose)
        raise failure

    def measured() -> Measurement:
        (one,) = measured_by(machine, [variant()], given(5, 0, 2, 60), Observer(judge=judge), run)
        return one

    if raised:
        with pytest.raises(LaunchError, match="no ranks"):
            measured()
        return
    found = measured()
    assert (len(found.launches), found.diagnoses) == (2, ())
    assert found.findings == (Finding("not_diagnosed", {"reason": "no ranks"}),)
    assert judge.diagnosed == [(found,)]  # what is reported has the remark


def test_the_number_of_steps_of_the_user_overrides_the_baseline() -> None:
    (measured,), _, _, _ = run_script([variant(steps=7)], given(11, 5, 2, 60), [Action("stop")])
    assert measured.plan == Plan(warmup=5, steps=11)


MORE = [Action("more", 1)] * 9
TEN = Action("more", 10)


@pytest.mark.parametrize(
    ("what", "answers", "looks"),
    [
        pytest.param(given(5, 0, 2, 60), [Action("more", 2), Action("stop")], [2, 4], id="two are added to two"),
        pytest.param(given(5, 0, 10, 1.2), [TEN], [2], id="no third one fits, but two are made in any case"),
        pytest.param(given(5, 0, 10, 1.2), [Action("confirm", 10), TEN], [2, 2], id="a suspect has two as well"),
        pytest.param(given(5, 0, 10, 6, compared=True), [Action("confirm", 10), TEN], [5, 6], id="half is to confirm"),
        pytest.param(
            given(5, 0, 10, 6, compared=True),
            [*MORE[:2], Action("stop")],
            [5, 6, 7],
            id="a first look that the screening cut goes on if nothing looks worse",
        ),
        pytest.param(given(5, 0, 2, 3.9, shared=True), MORE, [2, 3, 4, 5, 6], id="all of a share is for the verdict"),
        pytest.param(given(5, 0, 2, 3.9, shared=True), [Action("confirm", 2), *MORE], [2, 2, 3, 4], id="for a suspect"),
    ],
)
def test_interim_analyses_have_the_launches_that_fit_into_the_time(
    what: Given, answers: list[Action], looks: list[int]
) -> None:
    """The pilot and each launch take 0.5 s."""
    _, machine, judge, _ = run_script([variant()], what, [*answers])
    assert [len(fresh(interim[0])) for interim in judge.looks] == looks
    assert not what.limits.shared or {*machine.told} == {Purpose.TIMES}, "no time is left for a diagnosis"


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
    observer = Observer(judge=Script([Action("stop")]))
    measured = measured_by(machine, sides, given(None, 5, 2, 120), observer, run)
    assert [one.plan for one in measured] == [Plan(warmup=5, steps=40), Plan(warmup=5, steps=7)] * 2


@pytest.mark.parametrize("names", ["a", "ab"])
def test_both_sides_are_launched_together_and_each_comes_first_as_often(names: str) -> None:
    sides = [variant(name, of_reference=side) for side in (False, True) for name in names]
    measured, machine, _, _ = run_script(sides, given(5, 0, 4, 120), [Action("stop")])
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


def test_progress_shows_the_expected_launches_and_time() -> None:
    """Pilot and each launch take 0.25 + 5 x 0.05 = 0.5 s: three of them end at 2 s."""
    _, _, _, seen = run_script([variant()], given(5, 0, 3, 60), [Action("stop")])
    assert [figures[:2] for figures in seen] == [(1, 3), (2, 3), (3, 3)]
    assert [elapsed for _, _, elapsed, *_ in seen] == pytest.approx([0.5, 1.0, 1.5])
    assert [expected for _, _, _, expected, _ in seen] == pytest.approx([2.0, 2.0, 2.0])
    assert [None if last is None else last.ranks[0].loss for *_, last in seen] == [None, 1.0, 1.0]


@pytest.mark.parametrize(("paired_rounds", "seconds"), [(True, 13.5), (False, 6.75)])
def test_after_the_screening_rounds_continue_without_new_suspects(seconds: float, *, paired_rounds: bool) -> None:
    """A round takes as long as all pilots: a second side by side, else half of it. Of 13.5 rounds 6.75 are screening.

    With the pilots, that are five rounds, for another one would end after it. Then there is time for seven more.
    """
    sides = [variant(of_reference=side) for side in (False, True)[: 1 + paired_rounds]]
    _, _, judge, _ = run_script(sides, given(5, 0, 2, seconds, compared=True, interleave=False), [])
    assert judge.made == [*range(2, 13)]
    assert [interim.screened for interim in judge.interims] == [made >= 5 for made in judge.made]
    assert [interim.last for interim in judge.interims] == [False] * 10 + [True]


def test_launches_that_confirm_are_not_screened() -> None:
    answers = [Action("confirm", 2), Action("stop")]
    _, _, judge, _ = run_script([variant()], given(5, 0, 2, 1.2, compared=True), answers)
    assert [interim.screened for interim in judge.interims] == [True, False]


def test_launches_omitted_for_lack_of_time_are_reported() -> None:
    """The pilot takes 0.5 s; launches of as much do not fit into 1.2 s after the second, which is made in any case."""
    (measured,), _, _, _ = run_script([variant()], given(5, 0, 4, 1.2), [Action("stop")])
    assert len(measured.launches) == 2
    assert measured.findings[-1] == Finding("few_launches", {"made": 2, "wanted": 4})
    half_kept = given(5, 0, 4, 2.4, compared=True)
    (measured,), _, _, _ = run_script([variant()], half_kept, [Action("confirm", 9), Action("stop")])
    suspected, _, few = measured.findings
    assert suspected == Finding("suspected", {"metrics": (), "launches": 2})
    assert few == Finding("few_launches", {"made": 2, "wanted": 4})


@pytest.mark.parametrize(("max_time", "shared", "setting"), [(4.0, False, "max_time"), (1.2, True, "--ddpperf-budget")])
def test_a_diagnosis_that_there_is_no_time_for_names_the_setting_to_raise(
    max_time: float,
    shared: bool,  # noqa: FBT001 - a row of a table
    setting: str,
) -> None:
    steps, launches = (5, 2) if shared else (None, 6)
    what = given(steps, 0, launches, max_time, shared=shared)
    (hurried,), machine, judge, _ = run_script([variant()], what, [Action("stop")])
    assert Purpose.DIAGNOSIS not in machine.told
    assert Finding("no_time_to_diagnose", {"setting": setting}) in hurried.findings
    assert judge.diagnosed[-1][0].findings == hurried.findings


def test_if_the_budget_ends_a_decided_call_early_more_max_time_would_diagnose_nothing() -> None:
    machine = Machine()
    time = two_passes(machine)
    time.begin_test("test_it")
    call, _ = time.next_call("test_it")
    assert not time.share(call, Settings(max_time=5.0), begun=machine.now, compared=True, benchmarks=1)
    observer = Observer(judge=Script([Action("stop")]), looked=lambda interim: time.ask(call, [], interim))
    (measured,) = Measuring([variant()], make_limits(5, 0, 2, 5.0), machine.run, observer, time).measured()
    assert machine.now < 5.0
    assert Purpose.DIAGNOSIS not in machine.told
    assert Finding("no_time_to_diagnose", {"setting": "--ddpperf-budget"}) in measured.findings


@pytest.mark.parametrize(("launches", "max_time", "made"), [(4, 2.2, 3), (2, 1.2, 2)])
def test_three_launches_or_all_that_were_asked_for_are_no_shortage(launches: int, max_time: float, made: int) -> None:
    """The pilot and each launch take 0.5 s."""
    (measured,), _, _, _ = run_script([variant()], given(5, 0, launches, max_time), [Action("stop")])
    assert len(measured.launches) == made
    assert {finding.code for finding in measured.findings} <= {"no_time_to_diagnose"}


def started(seconds: float, worked: float, imported: SlowImport | None = None) -> Launch:
    ranks = (make_rank_launch(0, worked=worked / 2, imported=imported), make_rank_launch(1, worked=worked))
    return make_launch(ranks=ranks, seconds=seconds)


def test_launches_with_more_time_for_starting_than_for_steps_name_their_slowest_import() -> None:
    lightning = SlowImport(module="lightning", seconds=3.0, reason=None)
    launches = [started(6.0, 1.5, lightning), started(5.0, 1.0)]
    (finding,) = slow_starts(launches, None)
    assert finding.facts == {
        "starting": 8.5,
        "working": 2.5,
        "launches": 2,
        "slowest": lightning,
        "setting": "max_time",
    }
    (finding,) = slow_starts([started(30.0, 1.0, lightning)], 5)
    assert finding.facts["setting"] == "steps"
    assert finding.facts["slowest"] is None, "another cause takes the time"
    quick = [started(1.0, 0.2)] * 4
    worked = [started(6.0, 3.5)] * 4
    assert [slow_starts(each, None) for each in (quick, worked, [])] == [[], [], []]


def test_each_launch_is_watched_from_its_start_to_its_end() -> None:
    """It lasts 0.25 + 5 x 0.05 = 0.5 s on the machine's clock. The pilot is not counted, so nobody watches it."""
    machine = Machine()

    def watch() -> Callable[[Any], Health]:
        begun = machine.now
        return lambda _: Health(cpu=CpuHealth(throttled=machine.now - begun))

    observer = Observer(judge=Script([Action("stop")]), watch=watch)
    (measured,) = measured_by(machine, [variant()], given(5, 0, 2, 60), observer)
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
        measured_by(Machine(), [variant()], given(7, 0, 2, 60), Observer(judge=Script([]), watch=watch), run)
    assert ended == [None]  # there were no timed steps


def test_a_round_is_expected_to_take_the_median_of_earlier_rounds() -> None:
    """The median: of 4 s alone that, of 4 and 5 s the mean, of 4, 5 and 30 s the middle one. The pilot took 0.5 s."""
    machine, durations = Machine(), iter((4.0, 5.0, 30.0))

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        piloting, before = not machine.asked, machine.now
        outcomes = machine.run(launches, purpose)
        if purpose is Purpose.TIMES and not piloting:
            machine.now = before + next(durations)
        return outcomes

    judge = Script()
    measured_by(machine, [variant()], given(5, 0, 1, 30), Observer(judge=judge), run)
    assert [interim.round_seconds for interim in judge.interims] == [4.0, 4.5, 5.0]


def test_only_benchmarks_that_go_on_are_launched() -> None:
    """Two rounds of both, two fresh ones of the suspect, one of the other; then a round of both."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "ab"]
    a, b = (frozenset({one.key}) for one in sides[:2])
    answers = [
        Action("confirm", 2, ("step_time of a",), benchmarks=a),
        Action("more", 1, benchmarks=b),
        Action("more", 1),
    ]
    measured, machine, judge, _ = run_script(sides, given(5, 0, 2, 120), [*answers, Action("stop")])
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
    assert [[len(fresh(one)) for one in interim] for interim in judge.looks] == [
        [2] * 4,
        [2] * 4,
        [2, 3] * 2,
        [3, 4] * 2,
    ]
    assert [len(one.diagnoses) for one in measured] == [1] * 4
    assert [[finding.code for finding in one.findings] for one in measured] == [["suspected"], []] * 2


def test_a_round_takes_the_time_of_the_benchmarks_that_go_on() -> None:
    """Sides of a have 5 steps of 0.05 s, those of b 25, and 0.25 s each besides: 2 * 0.5 and 2 * 1.5 s."""
    steps = {"a": 5, "b": 25}
    sides = [variant(name, steps[name], of_reference=side) for side in (False, True) for name in "ab"]
    answers = [Action("more", 1, benchmarks=frozenset({sides[0].key})), Action("more", 1), Action("stop")]
    _, _, judge, _ = run_script(sides, given(None, 0, 2, 120), answers)
    looks = judge.interims
    assert [interim.round_seconds for interim in looks] == pytest.approx([4.0, 1.0, 4.0])
    assert [interim.of_each for interim in looks] == [pytest.approx({sides[0].key: 1.0, sides[1].key: 3.0})] * 3
    assert [second.elapsed - first.elapsed for first, second in pairwise(looks)] == pytest.approx([1.0, 4.0])
    assert [looks[0].seconds_of(keys) for keys in (None, {sides[1].key})] == pytest.approx([4.0, 3.0])


def looks_of_eight_pairs(answers: list[Action]) -> list[tuple[float, bool, bool]]:
    """The seconds of each look within 60 s, whether it was the last one, and whether the screening of 30 s was over."""
    _, _, judge, _ = run_script(EIGHT_PAIRS, given(5, 0, 2, 60, compared=True), answers)
    return [(round(interim.elapsed, 6), interim.last, interim.screened) for interim in judge.interims]


EIGHT_PAIRS = [variant(name, of_reference=side) for side in (False, True) for name in "abcdefgh"]


def test_the_remaining_time_is_planned_by_rounds_of_the_benchmarks_that_go_on() -> None:
    """Pilots and rounds of eight pairs take 8 s: the first look is at 24 s of 30, and a round of a alone takes 1 s."""
    looks = looks_of_eight_pairs([Action("more", 1, benchmarks=frozenset({EIGHT_PAIRS[0].key}))] * 8 + [Action("stop")])
    assert looks == [(24.0 + second, False, second >= 6) for second in range(9)]


def test_a_judge_that_asks_for_more_than_there_is_time_for_is_asked_again() -> None:
    """At 24 s of 30 a round of all eight pairs takes 8 s: the screening is over, and rounds of all go on until 56 s."""
    asked_again = [(24.0, False, False), (24.0, False, True)]
    later = [(second, False, True) for second in (32.0, 40.0, 48.0)]
    assert looks_of_eight_pairs([]) == [*asked_again, *later, (56.0, False, True), (56.0, True, True)]


def test_a_confirmation_has_as_many_launches_as_its_suspect_had() -> None:
    """Of a there are eleven, of b three: after 15 s of 17 three fresh ones of b are made, and no more fit."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "ab"]
    a, b = (frozenset({one.key}) for one in sides[:2])
    answers = [
        Action("more", 8, benchmarks=a),
        Action("more", 1),
        Action("confirm", 9, ("step_time of b",), benchmarks=b),
    ]
    measured, _, _, _ = run_script(sides, given(5, 0, 2, 17), [*answers, Action("stop")])
    assert [(len(one.launches), one.fresh_from) for one in measured[:2]] == [(11, 0), (6, 3)]


def test_a_benchmark_with_a_single_side_is_launched_after_all_pairs() -> None:
    """Slots 0 and 1, 2 and 3 then hold the sides of one benchmark each, in every round."""
    sides = [
        variant(name, of_reference=side) for side in (False, True) for name in "abc" if (name, side) != ("a", True)
    ]
    _, machine, _, _ = run_script(sides, given(5, 0, 8, 120), [Action("stop")])
    launched = [[name for name, _ in group] for group in machine.together if len(group) == len(sides)]
    assert len(launched) >= 8
    assert {"".join(names) for names in launched} == {"bbcca", "ccbba"}


def test_launches_follow_the_order_of_their_round() -> None:
    """Sides of a benchmark that are not interleaved with others are launched together, when the first one is due."""
    sides = [variant(name, of_reference=side) for side in (False, True) for name in "abc"]
    measured, machine, _, _ = run_script(sides, given(5, 0, 2, 120, slots=1), [Action("stop")])
    assert {one.findings for one in measured} == {(Finding("short_of_memory", {"paired": True}),)}
    rounds = [machine.together[i : i + 3] for i in (6, 9)]
    assert all(len({name for name, _ in pair}) == 1 for pairs in rounds for pair in pairs)
    assert [group[::-1] for group in rounds[0][::-1]] == rounds[1]


def two_passes(machine: Machine) -> SessionBudget:
    """That of a session of two tests with 26 s, of which the first pass has 13: each has 6.5 s there."""
    time = SessionBudget(26.0, 2, machine.clock)
    time.two_passes = True
    return time


def one_pass(
    machine: Machine, time: SessionBudget, judge: Callable[..., Action], earlier: Rounds | None = None
) -> tuple[Measurement, Rounds]:
    """The only call of a test in one pass. Its pilot and each launch take 0.5 s."""
    time.begin_test("test_it")
    call, _ = time.next_call("test_it")
    shared = time.share(call, Settings(max_time=math.inf), begun=machine.now, compared=True, benchmarks=1)
    limits = make_limits(5, 0, 2, time.screening, shared=shared)
    measuring = Measuring([variant()], limits, machine.run, Observer(judge=judge), time, earlier)
    (measured,) = measuring.measured()
    return measured, measuring.rounds


def second_pass(time: SessionBudget, priority: Priority, seconds: float) -> None:
    """Begins it, in which the test has so many seconds."""
    time.begin_test("test_it")
    _, progress = time.next_call("test_it")
    progress.request = TimeRequest(priority=priority, wanted=seconds)
    assert time.second_pass() == ["test_it"]


def test_the_second_pass_goes_on_with_the_launches_of_the_first() -> None:
    """Twelve launches fill the first pass; four more fit into 2 s, half of which find what looks worse."""
    machine, judge = Machine(), Script([Action("more", 20), Action("more", 1)])
    time = two_passes(machine)
    before, rounds = one_pass(machine, time, judge)
    assert [len(interim[0].launches) for interim in judge.looks] == [2, 12]
    second_pass(time, Priority.SEE, 2.0)
    judge = Script()
    measured, _ = one_pass(machine, time, judge, rounds)
    assert judge.made == [12, 13, 14, 15, 16]
    assert [interim.screened for interim in judge.interims] == [False, False, True, True, True]
    assert measured.launches[:12] == before.launches
    assert [launch.round for launch in measured.launches] == list(range(16))
    assert machine.told == [Purpose.TIMES] * (1 + 16), "no second pilot"


@pytest.mark.parametrize(("seconds", "made"), [(1.5, 3), (0.1, 2)])
def test_a_confirmation_that_the_first_pass_defers_begins_at_once_in_the_second(seconds: float, made: int) -> None:
    """It has as many launches as there is time for, and no fewer than the two that made it necessary."""
    machine, judge = Machine(), Script([Action("confirm", 3, ("step_time",))])
    time = two_passes(machine)
    before, rounds = one_pass(machine, time, judge)
    assert machine.told == [Purpose.TIMES] * (1 + 2)
    second_pass(time, Priority.CONFIRM, seconds)
    judge = Script([Action("stop", explain=True)])
    measured, _ = one_pass(machine, time, judge, rounds)
    assert [(len(one.launches), one.fresh_from) for (one,) in judge.looks] == [(2 + made, 2)]
    assert measured.launches[:2] == before.launches
    assert phases(machine) == [(Purpose.TIMES, 1 + 2 + made), (Purpose.DIAGNOSIS, 1)]
    assert measured.findings == (Finding("suspected", {"metrics": ("step_time",), "launches": 2}),)


def test_a_confirmation_of_one_benchmark_launches_no_other_in_the_second_pass() -> None:
    machine, sides = Machine(), [variant("a"), variant("b")]
    time, b = two_passes(machine), frozenset({sides[1].key})

    def measured(answers: list[Action], earlier: Rounds | None = None) -> tuple[tuple[Measurement, ...], Rounds]:
        time.begin_test("test_it")
        call, _ = time.next_call("test_it")
        time.share(call, Settings(max_time=math.inf), begun=machine.now, compared=True, benchmarks=1)
        observer = Observer(judge=Script(answers))
        measuring = Measuring(sides, make_limits(5, 0, 2, 6.5), machine.run, observer, time, earlier)
        return measuring.measured(), measuring.rounds

    _, rounds = measured([Action("confirm", 2, benchmarks=b)])
    second_pass(time, Priority.CONFIRM, 9.0)
    found, _ = measured([Action("more", 1), Action("stop")], rounds)
    assert [[launch.round for launch in one.launches] for one in found] == [[0, 1, 4], [0, 1, 2, 3, 4]]
    assert [one.fresh_from for one in found] == [0, 2]


def test_a_suspect_of_the_last_analysis_of_the_first_pass_may_still_be_confirmed() -> None:
    """Its looks leave half of the errors to the second one."""
    machine, judge = Machine(), Script()
    one_pass(machine, two_passes(machine), judge)
    looks = judge.interims
    assert [interim.last for interim in looks] == [False] * (len(looks) - 1) + [True]
    assert not any(interim.screened for interim in looks)
    assert all(interim.defers for interim in looks)
    assert [looks[0].over, looks[-1].over] == pytest.approx([0.5 * 1.5 / 6.5, 0.5])


def test_the_second_pass_completes_a_diagnosis_that_the_first_had_no_time_for() -> None:
    """At 5.5 s of 6.5 there is no time for the 1.7 s of a diagnosis, but for reading memory."""
    machine, judge = Machine(), Script([Action("more", 8), Action("stop")])
    time = two_passes(machine)
    before, rounds = one_pass(machine, time, judge)
    assert phases(machine) == [(Purpose.TIMES, 1 + 10), (Purpose.GROWTH, 1)]
    assert [finding.code for finding in before.findings] == ["no_time_to_diagnose"]
    second_pass(time, Priority.PROVE, 2.0)
    measured, rounds = one_pass(machine, time, Script([Action("stop")]), rounds)
    assert phases(machine)[2:] == [(Purpose.DIAGNOSIS, 1)]
    assert (len(measured.diagnoses), measured.findings) == (1, ())


def test_findings_of_a_diagnosis_in_the_first_pass_are_kept() -> None:
    machine, growing = Machine(), Action("confirm", 1, ("memory_growth",))
    time = two_passes(machine)
    before, rounds = one_pass(machine, time, Script([Action("stop")], [growing]))
    second_pass(time, Priority.SEE, 2.0)
    measured, _ = one_pass(machine, time, Script([Action("stop")]), rounds)
    assert measured == before
    assert [finding.code for finding in measured.findings] == ["suspected"]
    assert phases(machine) == [(Purpose.TIMES, 1 + 2), (Purpose.DIAGNOSIS, 2)]
