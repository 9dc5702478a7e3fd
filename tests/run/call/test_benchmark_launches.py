"""What each launch of a benchmark is asked for; no rank is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.errors import DdpperfError, RankFailed, RanksTimedOut, ReferenceFailed, ReferenceStopped
from pytest_ddpperf.launch.interleaving import TurnSlot
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import MAX_TIMEOUT, Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.messages import Preloaded, SeenImport
from pytest_ddpperf.records.launch import RankLaunch, SlowImport
from pytest_ddpperf.records.loader_settings import loader_settings
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.run.budget.session_budget import SessionBudget
from pytest_ddpperf.run.call.benchmark_launches import BenchmarkLaunches, TimedLaunches
from pytest_ddpperf.run.call.benchmark_run import BenchmarkRun
from pytest_ddpperf.run.call.planning import Purpose
from pytest_ddpperf.run.call.variants import Pilot, Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob, RankPrepared
from pytest_ddpperf.training.subject import Script
from tests.factories import make_counts, make_rank_launch, make_variant

STEP = LaunchResult((make_rank_launch(),), (), 1.0)
PLAN = Plan(warmup=1, steps=5)


def launches(settings: Settings = Settings(), session: Any = None, paired: Any = None) -> BenchmarkLaunches:  # noqa: B008
    return BenchmarkLaunches(session, settings, paired)


def timed(settings: Settings = Settings()) -> TimedLaunches:  # noqa: B008
    return TimedLaunches(launches(settings), [])


def preparing(settings: Settings, session: Any, paired: Any = None) -> BenchmarkRun:
    return BenchmarkRun(session, "test_x.py::test_a", settings, [], paired)


@dataclass
class Asked:
    """A launch of one step that was asked for: its variant and job, and how it was to run."""

    variant: Variant
    job: LaunchJob
    slot: int = 0
    patience: int = 1
    turns: TurnSlot | None = None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """The launches that are asked for; none of them starts a rank."""
    found: list[Asked] = []

    def launch(_launches: BenchmarkLaunches, variant: Variant, _function: Any, job: LaunchJob, **how: Any) -> Any:
        found.append(Asked(variant, job, **how))
        return STEP

    monkeypatch.setattr(BenchmarkLaunches, "launch", launch)
    return found


def test_both_sides_of_a_round_are_diagnosed_with_one_seed(asked: list[Asked]) -> None:
    """Also where the pilot of one was slow and made again."""
    run = timed()
    ours, theirs = (make_variant("ddp", of_reference=other) for other in (False, True))
    for variant in (ours, ours, theirs):
        run([(variant, PLAN)], Purpose.TIMES)
    for variant in (ours, theirs, theirs, ours):
        run([(variant, PLAN)], Purpose.DIAGNOSIS)
    seeds = [(each.variant.of_reference, each.job.seed) for each in asked if each.job.diagnosed]
    assert seeds == [(False, 0), (True, 0), (True, 1), (False, 1)]


def test_each_interleaved_launch_has_its_launcher_and_time_for_all(asked: list[Asked]) -> None:
    """Both sides have launchers of their own, so their numbers are those of the variants, in any order."""
    run = timed()
    both = [make_variant(name, of_reference=other) for other in (False, True) for name in "ab"]
    for variant in both:
        run([(variant, PLAN)], Purpose.TIMES)
    assert [(each.slot, each.patience, each.job.turns, each.turns) for each in asked] == [(0, 1, False, None)] * 4
    for order in (both, both[::-1]):
        asked.clear()
        run([(variant, Plan(warmup=1, steps=90)) for variant in order], Purpose.TIMES)
        assert {each.variant.name: each.slot for each in asked} == {"a": 0, "b": 1}
        assert len(asked) == 4
        assert all(each.patience == 4 and each.job.turns and each.turns is not None for each in asked)
    asked.clear()
    run([(both[1], PLAN)], Purpose.TIMES)
    assert [(each.slot, each.patience, each.turns) for each in asked] == [(1, 1, None)], "one that goes on alone"


MIB = 2**20


class Side:
    """Launchers of one side, so many of which run already."""

    def __init__(self, running: int) -> None:
        self.running = running
        self.preloaded = 0  # bytes of copies for each launcher
        self.started: list[int] = []
        self.kept: list[int] = []

    def with_variables(self, _: object) -> Side:
        """The same side: no variant here has variables of its own."""
        return self

    def missing_bytes(self, number: int, _scope: str, _ranks: int) -> int:
        return 300 * MIB * max(0, number - self.running) + self.preloaded * number

    def wait(self, number: int, _scope: str, _ranks: int) -> None:
        self.running = number

    def start(self, number: int) -> None:
        self.started.append(number)

    def keep(self, number: int) -> None:
        self.kept.append(number)


class Both:
    """A session: all that is asked of it here."""

    def __init__(self, here: int, there: int | None) -> None:
        self.launchers = Side(here)
        self.sides = self
        self.paired = (
            None if there is None else SimpleNamespace(reference=SimpleNamespace(launchers=Side(there), opposite=None))
        )


@pytest.mark.parametrize(
    ("here", "there", "free", "expected"),
    [
        pytest.param(1, None, 600 * MIB, (3, 0), id="two more launchers fit"),
        pytest.param(1, None, 600 * MIB - 1, (1, 600 * MIB - 1), id="they do not"),
        pytest.param(1, 1, 1300 * MIB, (3, 100 * MIB), id="both sides need two more"),
        pytest.param(1, 1, 1200 * MIB - 1, (1, 1200 * MIB - 1), id="which do not fit"),
        pytest.param(5, 1, 600 * MIB, (3, 0), id="more of this side than needed are no help to the other"),
        pytest.param(0, 0, None, (3, None), id="nobody knows"),
    ],
)
def test_as_many_launches_are_interleaved_as_launchers_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, here: int, there: int | None, free: int | None, expected: tuple[int, int | None]
) -> None:
    """A launcher takes 300 MiB here; three variants need one each, of either side. The ranks get what is left."""
    monkeypatch.setattr("pytest_ddpperf.run.call.benchmark_launches.free_memory", lambda: free)
    session: Any = Both(here, there)
    launched = launches(session=session, paired=session.paired)
    launched.start([make_variant(name) for name in "abc"])
    limits = launched.limits(30.0, shared=False)
    assert (limits.slots, limits.memory) == expected
    assert session.launchers.started == [expected[0]]
    assert session.paired is None or session.paired.reference.launchers.started == [expected[0]]


def test_memory_of_fork_servers_with_imports_of_a_first_launch_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpperf.run.call.benchmark_launches.free_memory", lambda: 900 * MIB)
    session: Any = Both(0, None)
    launched = launches(session=session)
    launched.start([make_variant(name) for name in "abc"])
    assert launched.limits(30.0, shared=False).memory == 0
    launched.ready()
    assert launched.limits(30.0, shared=False).slots == 3
    session.launchers.preloaded = 301 * MIB
    launched.ready()
    assert (launched.limits(30.0, shared=False).slots, session.launchers.kept) == (1, [1])
    assert launched.limits(30.0, shared=False).memory == 900 * MIB


@pytest.mark.parametrize("there", [None, 3])
def test_launchers_that_are_not_needed_end(monkeypatch: pytest.MonkeyPatch, there: int | None) -> None:
    monkeypatch.setattr("pytest_ddpperf.run.call.benchmark_launches.free_memory", lambda: None)
    session: Any = Both(3, there)
    launched = launches(session=session, paired=session.paired)
    launched.start([make_variant(name) for name in "abc"])
    launched.keep(3)
    assert session.launchers.kept == []
    launched.keep(1)
    assert session.launchers.kept == [1]
    assert there is None or session.paired.reference.launchers.kept == [1]
    assert launched.limits(30.0, shared=False).slots == 1  # for further runs of the same, as of a calibration


def test_one_variant_or_one_after_the_other_needs_one_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpperf.run.call.benchmark_launches.free_memory", lambda: 0)
    one, two = (make_variant(name) for name in "ab")
    for settings, variants in ((Settings(), [one]), (Settings(interleave=False), [one, two])):
        session: Any = Both(1, 1)
        launches(settings, session, session.paired).start(variants)
        assert session.launchers.started == session.paired.reference.launchers.started == [1]


def test_pairs_of_a_benchmark_need_one_launcher_of_a_side(asked: list[Asked]) -> None:
    run = timed()
    for name in "ab":
        run([(make_variant(name, of_reference=other), PLAN) for other in (False, True)], Purpose.TIMES)
    assert [each.slot for each in asked] == [0, 0, 0, 0]


def test_no_deadline_is_longer_than_can_be_waited_for() -> None:
    deadlines: list[float] = []

    def run(_function: Any, *, timeout: float, **_group: Any) -> LaunchResult[int]:
        deadlines.append(timeout)
        return LaunchResult((1,), (), 1.0)

    class Fake(list[Any]):
        def note(self, *_: object) -> None:
            """Keep nothing."""

        def with_variables(self, _: object) -> Fake:
            """The same launchers."""
            return self

    session: Any = SimpleNamespace(
        sides=SimpleNamespace(launchers=Fake([SimpleNamespace(run=run)])), limited=lambda launch: launch
    )
    step = make_variant("mine")
    for timeout in (30.0, 900_000.0):
        launched = launches(Settings(timeout=timeout), session)
        launched.launch(step, own_step, patience=2)
    assert deadlines == [60.0, MAX_TIMEOUT]


def test_compared_with_the_baselines_commit_the_candidate_has_launchers_of_the_same_age() -> None:
    """The session's have had launches before, and what these left in a process is in the memory of its ranks."""
    asked: list[Any] = []

    def run(own: Any, *_: object, **__: object) -> LaunchResult[object]:
        asked.append(own)
        return LaunchResult((), (), 1.0)

    old, young = Launchers(lambda _: Launcher()), Launchers(lambda _: Launcher())
    session: Any = SimpleNamespace(sides=SimpleNamespace(launchers=old), limited=lambda launch: launch)
    for opposite in (young, None):
        side = SimpleNamespace(launchers=Launchers(lambda _: Launcher()), opposite=opposite)
        paired: Any = SimpleNamespace(reference=side, run=run)
        launches(session=session, paired=paired).launch(make_variant("mine"), own_step)
    assert asked == [young, old]


def test_a_launch_of_a_script_has_separate_files_unless_the_script_keeps_its_files(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*_: object, projects: tuple[str, ...], **__: object) -> LaunchResult[object]:
        asked.append(projects)
        return LaunchResult((), (), 1.0)

    side: Any = SimpleNamespace(launchers=Launchers(lambda _: Launcher()), opposite=None)
    session: Any = SimpleNamespace(sides=side, limited=lambda launch: launch, root=tmp_path)
    asking = launches(session=session, paired=SimpleNamespace(reference=side, run=run))
    for script in (Script(print), Script(print, keep_files=True)):
        asking.launch(make_variant("mine", subject=script), own_step)
    assert str(tmp_path) in asked[0]
    assert asked[1] == ()


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        pytest.param(partial(RankFailed, "rank 1 was killed", out_of_memory=True), True, id="out of memory"),
        pytest.param(partial(RanksTimedOut, "rank 1 waits"), True, id="late"),
        pytest.param(partial(RankFailed, "rank 1 raised"), False, id="a fault of its own"),
    ],
)
@pytest.mark.parametrize("other", [False, True])
def test_a_launch_that_runs_out_of_memory_or_time_among_others_may_run_alone(
    monkeypatch: pytest.MonkeyPatch, failure: Callable[[], RankFailed], *, told: bool, other: bool
) -> None:
    """The other revision can run it, so it is not new; whoever reads it learns what to try."""
    both = [make_variant("ddp", of_reference=side) for side in (False, True)]

    def launch(_launches: BenchmarkLaunches, variant: Variant, *_: Any, **_seat: Any) -> LaunchResult[RankLaunch]:
        if variant.of_reference is not other:
            return LaunchResult((make_rank_launch(),), (), 1.0)
        cause = failure()
        if other:
            raise ReferenceFailed(str(cause), benchmark=variant.key) from cause
        raise cause

    monkeypatch.setattr(BenchmarkLaunches, "launch", launch)
    run = timed()
    expected = type(failure()) if not other else ReferenceStopped if told else ReferenceFailed
    with pytest.raises(expected) as raised:
        run([(one, PLAN) for one in both], Purpose.TIMES)
    hint = "\n2 launches ran at the same time, interleaved; --ddpperf-interleave=false runs one after the other"
    assert str(raised.value).endswith(hint) is told
    with pytest.raises(DdpperfError) as raised:
        run([(one, PLAN) for one in both if one.of_reference is other], Purpose.TIMES)
    assert hint not in str(raised.value)


@pytest.mark.parametrize(
    ("before", "plan", "extra", "stopped"),
    [
        pytest.param(None, PLAN, Purpose.TIMES, False, id="its first launch"),
        pytest.param((PLAN, Purpose.TIMES), PLAN, Purpose.TIMES, True, id="one as before"),
        pytest.param((PLAN, Purpose.DIAGNOSIS), PLAN, Purpose.TIMES, True, id="one that was diagnosed before"),
        pytest.param((PLAN, Purpose.TIMES), PLAN, Purpose.DIAGNOSIS, True, id="and diagnosed"),
        pytest.param((PLAN, Purpose.TIMES), Plan(warmup=1, steps=90), Purpose.TIMES, False, id="more steps than it"),
    ],
)
def test_a_benchmark_that_the_other_revision_has_run_is_not_new(
    monkeypatch: pytest.MonkeyPatch, before: tuple[Plan, Purpose] | None, plan: Plan, extra: Purpose, *, stopped: bool
) -> None:
    """Else one lost connection would let a regression pass as new."""
    theirs = make_variant("ddp", of_reference=True)
    fine: list[bool] = []

    def launch(*_: Any, **_seat: Any) -> LaunchResult[RankLaunch]:
        if not fine:
            raise ReferenceFailed("rank 0 of 2 raised", benchmark=theirs.key)
        return STEP

    monkeypatch.setattr(BenchmarkLaunches, "launch", launch)
    run = timed()
    if before is not None:
        fine.append(True)
        run([(theirs, before[0])], before[1])
        fine.clear()
    with pytest.raises(ReferenceStopped if stopped else ReferenceFailed):
        run([(theirs, plan)], extra)


def own_step(_ctx: object) -> Callable[[], float]:
    return lambda: 1.0


class Preparing:
    """A session whose launches prepare, each for what was noted of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[str] = []
        self.patience: list[int] = []
        self.prepared: dict[bytes, Any] = {}
        self.budget = SessionBudget(None, 1)
        self.line = SimpleNamespace(show=self.noted.append, clear=lambda: self.noted.append("end"))
        self.sides = self
        self.launchers: Any = SimpleNamespace(
            wait=lambda slots, *_: self.noted.append(f"{slots} there"),
            missing_bytes=lambda *_: 0,
            with_variables=lambda _: self.launchers,
        )
        monkeypatch.setattr(BenchmarkLaunches, "launch", lambda _launches, *asked, **how: self._launch(*asked, **how))

    def roots(self, *, reference: bool) -> tuple[str, ...]:
        return ()

    def _launch(
        self, variant: Variant, function: Any, job: PrepareJob, *, patience: int = 1
    ) -> LaunchResult[RankPrepared]:
        self.noted.append(f"{function.name} {variant.name}")
        self.patience.append(patience)
        timed = make_rank_launch(rank=0, step_times=(0.1,) * 5) if job.timed else None
        return LaunchResult((RankPrepared(timed=timed, counts=COUNTS, verification=None),), (), 1.0)


COUNTS = merged([make_counts({}, flops=1.0)])


def test_a_variant_is_prepared_by_one_launch_when_nothing_disturbs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Preparing(monkeypatch)
    passes = preparing(Settings(), session)
    step = make_variant("mine", subject=own_step)
    for _ in range(2):
        (found,) = passes.prepared([step])
        assert (found.counts, found.pilot is not None) == (COUNTS, True)
    line = "test_x.py::test_a mine: timing a few steps, counting"
    assert session.noted == ["1 there", line, "prepare_launch mine", "end", "1 there", "end"]


def test_a_launch_for_several_things_has_the_time_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Preparing(monkeypatch)
    for settings in (Settings(timeout=30.0), Settings(timeout=30.0, counts="only")):
        session.prepared.clear()
        preparing(settings, session).prepared([make_variant("mine", subject=own_step)])
    assert session.patience == [2, 1]


@pytest.mark.parametrize(("counted_only", "launches"), [(True, 2), (False, 1)])
def test_side_by_side_counts_alone_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch, launches: int, *, counted_only: bool
) -> None:
    """Nothing else would tell what both sides import."""
    session: Any = Preparing(monkeypatch)
    side: Any = SimpleNamespace(wait=lambda *_: None, missing_bytes=lambda *_: 0, with_variables=lambda _: side)
    paired: Any = SimpleNamespace(reference=SimpleNamespace(launchers=side, opposite=None))
    passes = preparing(Settings(counts="only" if counted_only else "on"), session, paired)
    for _ in range(2):
        passes.prepared([make_variant("mine", subject=own_step)])
    assert len(session.patience) == launches


def test_the_slowest_import_of_a_launch_is_kept_with_why_it_is_not_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = tuple(SeenImport(name, "", seconds) for name, seconds in (("quick", 0.1), ("slow", 2.0)))
    monkeypatch.setattr(BenchmarkLaunches, "launch", lambda *_, **__: replace(STEP, imports=imports))
    sides = Launchers(lambda _: Launcher(), ("auto",))
    session: Any = SimpleNamespace(sides=SimpleNamespace(launchers=sides))
    run = TimedLaunches(launches(session=session), [])

    def kept() -> Any:
        ((ranks, _),) = run([(make_variant(), PLAN)], Purpose.TIMES)
        return ranks[0].imported

    assert kept() == SlowImport(module="slow", seconds=2.0, reason="")
    sides.note("", [SeenImport("slow", "", 2.0, refused=Preloaded(reason="reads HOME"))])
    assert kept().reason == "reads HOME"
    imports = ()
    assert kept() is None


def test_loader_settings_picked_by_a_preparing_launch_hold_for_all_variants(asked: list[Asked]) -> None:
    picked = ("workers=2", "2 workers were fastest")
    pilot = Pilot(step=1.0, fixed=1.0, background=True, nbytes=0)
    variants = [
        make_variant(name, pilot=each) for name, each in zip("ab", (replace(pilot, picked=picked), pilot), strict=True)
    ]
    run = timed(Settings(loader=loader_settings("auto")))
    found = [run([(variant, PLAN)], Purpose.TIMES) for variant in variants]
    assert [str(each.job.settings.loader) for each in asked] == ["workers=2", "workers=2"]
    assert [ranks[0].picked for ((ranks, _),) in found] == [picked, picked]
