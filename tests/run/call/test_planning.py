"""What pilots tell: of memory, all that the ranks of a launch took, at most; and how many steps fill a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import DeviceMemory, RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.call.planning import (
    LaunchLimits,
    LaunchOutcome,
    LaunchRunner,
    Purpose,
    grouped,
    pilot_of,
    planned,
)
from pytest_ddpperf.run.call.preparation import prepare_job
from pytest_ddpperf.run.call.variants import Pilot, Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.subject import Script
from tests.factories import make_environment, make_limits, make_rank_launch, make_variant

ENVIRONMENT = make_environment()
BOTH = [make_variant(name, environment=ENVIRONMENT) for name in "ab"]


@dataclass
class Machine:
    """Whose launches last ``seconds``, and whose ranks take so many bytes each: one figure for each launch."""

    seconds: float
    taken: list[int | None]

    def run(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        assert purpose is Purpose.TIMES
        taken = self.taken.pop(0)
        ranks = tuple(make_rank_launch(rank=rank, step_times=(0.1,), taken=taken) for rank in (0, 1))
        return [(ranks, self.seconds) for _ in launches]


def launching(fixed: float) -> LaunchRunner:
    """Returns a function that runs pilots of five steps of 10 ms, which take ``fixed`` seconds besides."""

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        ranks = tuple(make_rank_launch(rank=rank, step_times=(0.01,) * 5) for rank in (0, 1))
        return [(ranks, 0.05 + fixed) for _ in launches]

    return run


@pytest.mark.parametrize(
    ("memory", "seconds", "taken", "together"),
    [
        pytest.param(1200, 0.5, [200, 400], True, id="just enough for two ranks of each"),
        pytest.param(1199, 0.5, [200, 400], False, id="too little"),
        pytest.param(1199, 9.0, [200, 100, 100, 400], False, id="of slow pilots, made again, the larger counts"),
        pytest.param(0, 0.5, [None, None], True, id="what the system does not tell is not counted"),
    ],
)
def test_the_ranks_of_all_have_to_fit(memory: int, seconds: float, taken: list[int | None], *, together: bool) -> None:
    machine = Machine(seconds, [*taken])
    found = planned(BOTH, make_limits(5, 0, 2, 30, memory=memory), machine.run)
    assert (found.groups, machine.taken) == (((0, 1),) if together else ((0,), (1,)), [])
    assert bool(found.findings) is not together


@pytest.mark.parametrize(
    ("timeout", "steps"),
    [
        pytest.param(120.0, 20, id="5.5 s, the rest of its part of the time, for 28: 40 steps would take 8 s"),
        pytest.param(5.0, 9, id="1.75 s, the rest of three quarters of the deadline"),
        pytest.param(2.0, 5, id="the fewest, as the pilot had them"),
    ],
)
def test_launches_are_planned_to_end_well_before_their_deadline(timeout: float, steps: int) -> None:
    plans = planned(known(2.0), make_limits(None, 0, 2, 30, timeout=timeout, interleave=False), Machine(0.5, []).run)
    assert {plan.steps for plan in plans.plans} == {steps}


def steps_of(
    step: float, *, epoch: int | None = None, turns: bool = False, seconds: float = 60.0, fixed: float = 0.25
) -> int:
    """The steps of launches that take ``fixed`` seconds besides, alone or in turns with the other side."""
    sides = (False, True) if turns else (False,)
    known = [
        make_variant(
            "a", environment=ENVIRONMENT, of_reference=other, pilot=replace(pilot(step=step, fixed=fixed), epoch=epoch)
        )
        for other in sides
    ]
    limits = make_limits(None, 0, 6, seconds * len(sides))
    (steps,) = {plan.steps for plan in planned(known, limits, Machine(0.5, []).run).plans}
    return steps


@pytest.mark.parametrize(("fixed", "alone", "in_turns"), [(0.2, 500, 200), (0.5, 500, 500), (0.8, 800, 800)])
def test_a_launch_times_a_second_or_half_if_interleaved_or_twice_its_overhead(
    fixed: float, alone: int, in_turns: int
) -> None:
    """Steps take 2 ms, and of 200 or more a launch times hundreds."""
    assert steps_of(0.002, fixed=fixed) == alone
    assert steps_of(0.002, fixed=fixed, turns=True) == in_turns


def test_a_launch_times_enough_steps_to_include_every_40th() -> None:
    """Steps of 10 ms fill a second, in turns half a second, with 100 and 50 of them; of those of 100 ms 40 take 4 s.

    There is time for three launches: of 9 s each has 3 s, which leaves 2.75 s for 28 steps of 100 ms.
    """
    assert [steps_of(0.01), steps_of(0.01, turns=True)] == [100, 40]
    assert [steps_of(0.1), steps_of(0.1, turns=True)] == [40, 40]
    assert steps_of(0.1, seconds=9.0) == 20


@pytest.mark.parametrize(
    ("step", "fit", "steps"),
    [(0.001, 1000, 1000), (0.0029, 345, 300), (0.0051, 197, 180), (0.011, 91, 80), (0.023, 44, 40)],
)
def test_a_launch_times_a_round_number_of_steps_in_which_periods_of_10_20_and_100_are_whole(
    step: float, fit: int, steps: int
) -> None:
    """A second has room for ``fit`` steps; of 200 or more the launch times hundreds, of 40 or more twenties."""
    assert math.ceil(1 / step) == fit
    assert steps_of(step) == steps


@pytest.mark.parametrize(
    ("step", "epoch", "steps"),
    [
        pytest.param(0.01, 30, 90, id="three of the 3.3 that fit into a second"),
        pytest.param(0.01, 150, 300, id="two, which take 3 s"),
        pytest.param(0.1, 33, 66, id="two, which take 6.6 s"),
        pytest.param(0.1, 150, 150, id="one of the 1.3 that fit into its part of 20 s"),
        pytest.param(0.1, 300, 180, id="no whole one fits"),
    ],
)
def test_a_launch_times_whole_epochs_of_its_loader(step: float, epoch: int, steps: int) -> None:
    assert steps_of(step, epoch=epoch) == steps


@pytest.mark.parametrize(("of_ranks", "epoch"), [((12.0, 12.5), 13), ((None, 12.0), None), ((None, None), None)])
def test_a_pilot_takes_the_longest_epoch_of_all_ranks(of_ranks: tuple[float | None, ...], epoch: int | None) -> None:
    ranks = tuple(make_rank_launch(rank=rank, epoch_steps=steps) for rank, steps in enumerate(of_ranks))
    assert pilot_of(ranks, 1.0, Plan(warmup=1, steps=1)).epoch == epoch


def test_three_launches_fit_into_the_screening_if_many_share_the_time() -> None:
    """Six sides have 20 / 3 / 6 = 1.11 s each for one of three launches, and steps take 10 ms.

    If all else takes 0.3 s, 0.6 s are timed. Of 0.4 s it would be 0.8 s, which do not fit: 0.71 s are left, and of 72
    steps launches time 60. Beside 0.6 s and 2 s even as much as those does not fit, but less would tell little.
    """
    sides = [
        make_variant(name, environment=ENVIRONMENT, of_reference=other) for other in (False, True) for name in "abc"
    ]

    def steps(fixed: float) -> set[int]:
        return {plan.steps for plan in planned(sides, make_limits(None, 0, 6, 20), launching(fixed)).plans}

    assert [steps(fixed) for fixed in (0.3, 0.4, 0.6, 2.0)] == [{60}, {60}, {60}, {200}]


def test_in_a_shared_budget_two_launches_fit_into_the_screening_at_full_length() -> None:
    """Two sides have 6 / 2 / 2 = 1.5 s each: beside 0.2 s a second is timed, where half a second is usual in turns."""
    pair = [make_variant("a", environment=ENVIRONMENT, of_reference=other) for other in (False, True)]

    def steps(screening: float, *, shared: bool) -> set[int]:
        limits = make_limits(None, 0, 6, screening, shared=shared)
        return {plan.steps for plan in planned(pair, limits, launching(0.2)).plans}

    assert [steps(6.0, shared=shared) for shared in (True, False)] == [{100}, {40}]
    assert [steps(4.0, shared=shared) for shared in (True, False)] == [{80}, {40}]


def test_if_two_launches_are_asked_for_only_two_have_to_fit() -> None:
    """6 s are 3 s for each: beside 1 s, 2 s of steps. With three it would be 2 s, and 1 s of steps."""
    plans = [planned(BOTH[:1], make_limits(None, 0, launches, 6), launching(1.0)).plans for launches in (2, 3, 6)]
    assert plans == [(Plan(warmup=0, steps=200),), (Plan(warmup=0, steps=100),), (Plan(warmup=0, steps=100),)]


def test_the_time_of_diagnosing_launches_is_planned() -> None:
    """Each takes 0.5 s besides. It times one step of 0.2 s, reads memory around 20 and takes apart five.

    Four pairs of blocks have a step a side, and one that leads in to each: 16 more, 42 in all.
    """
    found = planned(known(0.5), make_limits(20, 0, 2, 30), Machine(0.5, []).run)
    assert [plan.steps for plan in found.plans] == [20, 20]
    assert sum(found.seconds) == pytest.approx(2 * 4.5)
    assert found.diagnosis_seconds == pytest.approx(2 * 8.9)


@pytest.mark.parametrize(
    ("variants", "turns", "steps"),
    [
        pytest.param([BOTH[0], replace(BOTH[0], of_reference=True)], True, 40, id="both sides"),
        pytest.param([BOTH[0], replace(BOTH[0], of_reference=True)], False, 100, id="one after the other"),
        pytest.param(BOTH, True, 100, id="others"),
    ],
)
def test_only_interleaved_sides_of_one_benchmark_have_short_launches(
    variants: Sequence[Variant], steps: int, *, turns: bool
) -> None:
    """Steps of 10 ms, of which 50 fit into half a second."""
    found = planned(variants, make_limits(None, 0, 2, 30, interleave=turns), launching(0.2))
    assert [plan.steps for plan in found.plans] == [steps] * 2


def pilot(*, step: float = 0.1, fixed: float = 0.2, background: bool = False, nbytes: int = 5) -> Pilot:
    return Pilot(step=step, fixed=fixed, background=background, nbytes=nbytes)


def known(fixed: float) -> list[Variant]:
    """Both, of whose steps, of 0.2 s, a launch before has told."""
    return [replace(one, pilot=pilot(step=0.2, fixed=fixed, nbytes=600)) for one in BOTH]


def test_a_pilot_that_is_known_is_not_launched_again() -> None:
    machine = Machine(0.5, [])
    found = planned(known(0.5), make_limits(None, 0, 2, 30, memory=1200), machine.run)
    assert found.groups == ((0, 1),)
    assert sum(found.seconds) == pytest.approx(sum(0.5 + 0.2 * plan.steps for plan in found.plans))
    assert planned(known(0.5), make_limits(None, 0, 2, 30, memory=1199), machine.run).groups == ((0,), (1,))


@pytest.mark.parametrize(
    ("fixed", "screening", "launches"),
    [
        pytest.param(1.9, 2.0, 0, id="not so slow that another one is worth its time"),
        pytest.param(2.1, 2.0, 2, id="slower than launches mostly are"),
        pytest.param(9.0, 200.0, 0, id="which does not matter where there is time"),
        pytest.param(200.0, 200.0, 2, id="but for what takes all of it"),
    ],
)
def test_a_known_pilot_is_repeated_only_if_it_was_very_slow(fixed: float, screening: float, launches: int) -> None:
    machine = Machine(0.5, [100] * launches)
    planned(known(fixed), make_limits(5, 0, 6, screening), machine.run)
    assert machine.taken == []


def test_on_cuda_short_steps_fill_twice_the_overhead_of_a_launch() -> None:
    """Steps of 2 ms beside 4 s: 8 s are 4000 of them, and a script has to train for as many as on the CPU at most."""

    def steps(device: str, subject: object = None) -> int:
        environment = make_environment(device=device)
        variant = make_variant(subject=subject, environment=environment, pilot=pilot(step=0.002, fixed=4.0))
        (plan,) = planned([variant], make_limits(None, 5, 2, 60), Machine(0.5, []).run).plans
        return plan.steps

    assert [steps("cuda"), steps("cuda", Script(print)), steps("cpu")] == [4000, 1000, 1000]


def test_a_pilot_on_cuda_goes_by_the_slowest_rank_of_all_its_steps() -> None:
    """Not of each of them: 5 s on either rank, which the slowest rank of each step would call 8 s."""
    ranks = tuple(
        make_rank_launch(number, times, blocks=(5,), unseen=0.0)
        for number, times in enumerate([(1.0, 0.5, 1.5, 1.0, 1.0), (0.5, 1.0, 0.5, 2.0, 1.0)])
    )
    assert pilot_of(ranks, 6.0, Plan(warmup=12, steps=5)).step == 1.0


@pytest.mark.parametrize(("device", "wanted", "warmup"), [("cuda", 5, 12), ("cuda", 20, 20), ("cpu", 5, 5)])
def test_on_cuda_twelve_steps_or_more_warm_up(device: str, wanted: int, warmup: int) -> None:
    """DDP measures itself in its first ten, and the step after one that it measured waits for the device."""
    asked: list[Plan] = []

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        asked.extend(plan for _, plan in launches)
        return [((make_rank_launch(step_times=(0.1,) * 5),), 0.6) for _ in launches]

    variant = make_variant(environment=make_environment(device=device))
    found = planned([variant], make_limits(8, wanted, 2, 30), run)
    assert (asked, found.plans) == ([Plan(warmup=warmup, steps=5)], (Plan(warmup=warmup, steps=8),))
    assert prepare_job(Settings(warmup=wanted), variant).training.plan == Plan(warmup=warmup, steps=5)


LIMITS = make_limits(5, 0, 2, 30)
ALONE = Finding("short_of_memory", {"paired": False})
PAIRS = Finding("short_of_memory", {"paired": True})


def sides(names: str, *, of_reference: bool) -> list[Variant]:
    """Of this side, then of the other one: numbers 0 to 2 and 3 to 5 for ``abc``."""
    sides = (False, True) if of_reference else (False,)
    return [make_variant(name, environment=ENVIRONMENT, of_reference=side) for side in sides for name in names]


@pytest.mark.parametrize(
    ("of_reference", "nbytes", "limits", "groups", "finding"),
    [
        pytest.param(False, (5, 5, 5), replace(LIMITS, memory=15), ((0, 1, 2),), None, id="all fit"),
        pytest.param(False, (5, 5, 5), replace(LIMITS, memory=14), ((0,), (1,), (2,)), ALONE, id="they do not"),
        pytest.param(False, (5, 5, 5), replace(LIMITS, slots=2), ((0,), (1,), (2,)), ALONE, id="too few seats"),
        pytest.param(
            False,
            (5, 5, 5),
            replace(LIMITS, settings=Settings(interleave=False), memory=0),
            ((0,), (1,), (2,)),
            None,
            id="not wanted",
        ),
        pytest.param(True, (5,) * 6, replace(LIMITS, memory=30, slots=3), ((0, 1, 2, 3, 4, 5),), None, id="both fit"),
        pytest.param(True, (5,) * 6, replace(LIMITS, memory=29), ((0, 3), (1, 4), (2, 5)), PAIRS, id="pairs fit"),
        pytest.param(True, (5,) * 6, replace(LIMITS, slots=1), ((0, 3), (1, 4), (2, 5)), PAIRS, id="pairs need one"),
        pytest.param(
            True, (5, 9, 5) * 2, replace(LIMITS, memory=10), ((0, 3), (2, 5), (1,), (4,)), PAIRS, id="some pairs fit"
        ),
        pytest.param(True, (5,) * 6, replace(LIMITS, memory=9), tuple((i,) for i in range(6)), ALONE, id="none fits"),
    ],
)
def test_variants_that_fit_into_memory_together_are_launched_at_the_same_time(
    of_reference: bool,  # noqa: FBT001
    nbytes: tuple[int, ...],
    limits: LaunchLimits,
    groups: tuple[tuple[int, ...], ...],
    finding: Finding | None,
) -> None:
    found = grouped(sides("abc", of_reference=of_reference), [pilot(nbytes=each) for each in nbytes], limits)
    assert found == (groups, (finding,) if finding else ())


@pytest.mark.parametrize(
    ("turns", "of_gpu", "groups", "code"),
    [
        pytest.param(True, (0.2, 0.25) * 2, ((0, 1, 2, 3),), None, id="all fit"),
        pytest.param(True, (0.4, 0.45) * 2, ((0, 2), (1, 3)), "short_of_gpu_memory", id="pairs fit"),
        pytest.param(True, (0.4, 0.46) * 2, ((0, 2), (1,), (3,)), "short_of_gpu_memory", id="one pair fits"),
        pytest.param(True, (0.1, None) * 2, ((0, 2), (1,), (3,)), "short_of_gpu_memory", id="of one nobody knows"),
        pytest.param(None, (0.1, 0.1) * 2, ((0,), (1,), (2,), (3,)), None, id="not by default"),
    ],
)
def test_launches_on_gpus_are_interleaved_if_asked_for_and_if_they_fit(
    *, turns: bool | None, of_gpu: tuple[float | None, ...], groups: tuple[tuple[int, ...], ...], code: str | None
) -> None:
    variants = [replace(side, environment=make_environment(device="cuda")) for side in sides("ab", of_reference=True)]
    pilots = [replace(pilot(), of_gpu=share) for share in of_gpu]
    found, findings = grouped(variants, pilots, replace(LIMITS, settings=Settings(interleave=turns)))
    assert (found, [finding.code for finding in findings]) == (groups, [code] if code else [])


def on_gpus(*used: int | None) -> tuple[RankLaunch, ...]:
    """Ranks that told so much of 1000 bytes; None if one could not."""
    told = [
        each if each is None else DeviceMemory(device=str(i), uuid="", used=each, total=1000, reserved=0)
        for i, each in enumerate(used)
    ]
    return tuple(replace(make_rank_launch(i), device_memory=memory) for i, memory in enumerate(told))


@pytest.mark.parametrize(
    ("used", "share"),
    [
        pytest.param((300, 450), 0.45, id="the fullest one counts"),
        pytest.param((300, None), None, id="of one nobody knows"),
    ],
)
def test_the_memory_share_of_a_gpu_is_computed_from_all_ranks(
    used: tuple[int | None, ...], share: float | None
) -> None:
    assert pilot_of(on_gpus(*used), 1.0, Plan(warmup=1, steps=1)).of_gpu == share


@pytest.mark.parametrize(
    ("used", "groups"),
    [
        pytest.param((400, 100, 100, 450), ((0, 1),), id="both fit"),
        pytest.param((400, 100, 100, 501), ((0,), (1,)), id="the larger one counts"),
        pytest.param((400, 100, None, 450), ((0,), (1,)), id="of one nobody knows"),
    ],
)
def test_of_two_pilots_on_a_gpu_the_larger_one_counts(
    used: tuple[int | None, ...], groups: tuple[tuple[int, ...], ...]
) -> None:
    """Both start slowly, so each is launched twice."""
    left = list(used)
    both = [replace(one, environment=make_environment(device="cuda")) for one in BOTH]

    def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        assert purpose is Purpose.TIMES
        return [(on_gpus(left.pop(0)), 9.0) for _ in launches]

    assert planned(both, make_limits(5, 0, 2, 30, interleave=True), run).groups == groups
    assert not left


def test_if_one_variant_works_in_the_background_none_are_interleaved() -> None:
    """What is held against each other has to be timed alike; with another revision, that is each against its own."""
    pilots = [pilot(), pilot(background=True), pilot()]
    assert grouped(sides("abc", of_reference=False), pilots, replace(LIMITS, memory=4)) == (
        ((0,), (1,), (2,)),
        (Finding("background_work", {"paired": False, "benchmarks": ("b",)}),),
    )
    assert grouped(sides("abc", of_reference=True), [*pilots, pilot(), pilot(), pilot()], LIMITS) == (
        ((0, 3), (2, 5), (1,), (4,)),
        (Finding("background_work", {"paired": True, "benchmarks": ("b",)}),),
    )


def test_a_single_variant_is_not_interleaved() -> None:
    assert grouped(sides("a", of_reference=False), [pilot(background=True)], replace(LIMITS, memory=0, slots=1)) == (
        ((0,),),
        (),
    )
