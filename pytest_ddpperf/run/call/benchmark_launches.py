"""Launches (fresh process groups) of a benchmark, which run this checkout or the revision that it is compared with."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ddpperf import errors
from pytest_ddpperf.instruments.host import free_memory
from pytest_ddpperf.launch.environment import Variables
from pytest_ddpperf.launch.interleaving import TurnSlot, run_interleaved
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import MAX_TIMEOUT
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.records.launch import RankLaunch, SlowImport
from pytest_ddpperf.records.loader_settings import LoaderSettings, loader_settings
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.call.planning import LaunchLimits, LaunchOutcome, Purpose, can_interleave
from pytest_ddpperf.run.call.time_sheet import TimeSheet
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import modules_of
from pytest_ddpperf.training.jobs import RUN_LAUNCH, SIMULATE_LAUNCH, LaunchJob
from pytest_ddpperf.training.subject import Script
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches

__tracebackhide__ = errors.hidden

SIMULATING = ("pytest_ddpperf.planner.simulate.group",)  # modules that simulated ranks import


class BenchmarkLaunches:
    """Starts a benchmark's launches; ``paired``: the object that also launches the reference revision, or None."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        paired: PairedLaunches | None = None,
        *,
        test: str = "",
        times: TimeSheet | None = None,
    ) -> None:
        self.settings = settings
        self.paired = paired
        self.times = TimeSheet() if times is None else times
        self._session = session
        self._file = test.partition("::")[0]  # for all tests of this file the same modules are preloaded
        self._ranks = 0  # number of ranks of the largest launch
        self._slots: dict[Variables, int] = {(): 1}  # number of launchers of a side, by the variables of their ranks
        self._together = 1  # launches of a side that can run at the same time
        self._memory: int | None = None  # bytes that the ranks of these launches may use

    @property
    def _own(self) -> Launchers:
        return (self.paired and self.paired.reference.opposite) or self._session.sides.launchers

    @property
    def _sides(self) -> tuple[Launchers, ...]:
        return (self._own,) if self.paired is None else (self._own, self.paired.reference.launchers)

    @property
    def _launchers(self) -> list[tuple[Launchers, int]]:
        """Returns (fork servers, number to start) for each revision with each set of environment variables."""
        return [(side.with_variables(each), number) for side in self._sides for each, number in self._slots.items()]

    def start(self, variants: Sequence[Variant]) -> None:
        """Starts a launcher, which forks ranks, for each variant, so that all can run at once if memory allows."""
        begun = self.times.now()
        self._ranks = max(1 if variant.environment.simulated else variant.world_size for variant in variants)
        of_each = {variant.key: variant.variables for variant in variants}
        self._slots = dict.fromkeys(of_each.values(), 1)
        if self.settings.counts != "only" and can_interleave(variants, self.settings.interleave):
            self._slots, self._together = dict(Counter(of_each.values())), len(of_each)
        self._fit()
        for launchers, number in self._launchers:
            with contextlib.suppress(errors.LaunchError):  # the first launch raises it
                launchers.start(number)
        self.times.note_launch(begun)

    def ready(self) -> None:
        """Waits until all launchers have imported their modules, because imports would disturb timed steps."""
        begun = self.times.now()
        self._fit()  # launches since then may have shown modules to import
        for launchers, number in self._launchers:
            launchers.wait(number, self._file, self._ranks)
        self.times.note_launch(begun)

    def _fit(self) -> None:
        """Makes launches run one after another if memory is short, and stores the memory left for their ranks."""
        free = free_memory()
        needed = sum(each.missing_bytes(number, self._file, self._ranks) for each, number in self._launchers)
        enough = free is None or needed <= free
        if not enough:
            self.keep(1)
        self._memory = None if free is None else free - needed * enough

    def keep(self, number: int) -> None:
        """Keeps ``number`` launchers of each revision and ends the others, so that fewer launches can run at once."""
        if number < self._together:
            self._together = number
            self._slots = {variables: min(known, number) for variables, known in self._slots.items()}
            for side in self._sides:
                side.keep(number)

    def abort(self) -> None:
        """Ends all launches that other threads run, of candidate and reference."""
        for side in self._sides:
            side.abort()

    def limits(self, screening: float, *, shared: bool) -> LaunchLimits:
        """Returns limits for plans of ``screening`` seconds; ``shared``: whether the session's budget gave them."""
        return LaunchLimits(
            settings=self.settings, screening=screening, slots=self._together, memory=self._memory, shared=shared
        )

    def job(self, variant: Variant, plan: Plan, loader: LoaderSettings | None = None) -> LaunchJob:
        """Returns the job of each rank in a variant's launch; ``loader``: settings that ``loader=auto`` has chosen."""
        settings = variant.effective_settings(self.settings)
        if loader is not None and settings.picks_loading:
            settings = replace(settings, loader=loader)
        if settings.communication is None:  # ranks that share a core wait for each other, whatever they send
            settings = replace(settings, communication=not variant.environment.oversubscribed)
        counts = variant.samples_per_step, variant.tokens_per_step
        return LaunchJob(variant.subject, variant.resolved, settings, plan, *counts)

    def launch(
        self,
        variant: Variant,
        function: Callable[..., Any],
        *args: object,
        slot: int = 0,  # of the launcher that starts the ranks
        patience: int = 1,  # times the setting ``timeout``
        turns: TurnSlot | None = None,  # place in the queue of interleaved launches
    ) -> LaunchResult[Any]:
        """Calls ``function(ctx, *args)`` on new ranks, and returns the results of the ranks."""
        launchers = self._own.with_variables(variant.variables)
        run = launchers[slot].run
        if self.paired is not None:
            run = partial(
                self.paired.run,
                launchers,
                slot,
                variables=variant.variables,
                benchmark=variant.key,
                reference=variant.of_reference,
            )
        world_size, backend, alone = variant.environment.world_size, variant.environment.backend, False
        preload = modules_of(variant.resolved)
        if variant.environment.simulated:  # one process simulates the group
            function, args = SIMULATE_LAUNCH, (*args, self._session.settings.simulate_rank, world_size)
            world_size, backend, alone, preload = 1, "gloo", True, (*preload, *SIMULATING)
        try:
            result = self._session.limited(run)(
                function,
                *args,
                world_size=world_size,
                backend=backend,
                device=variant.environment.device,
                timeout=self.settings.timeout if patience == 1 else min(self.settings.timeout * patience, MAX_TIMEOUT),
                mode=variant.mode,
                preload=preload,
                own_group=alone or isinstance(variant.subject, Script),
                turns=turns,
                bind=self.settings.cpu_binding == "cores",
                projects=variant.subject.projects(self._session.root) if isinstance(variant.subject, Script) else (),
            )
        except (errors.LaunchError, errors.SameCode):  # the variant is not to blame
            raise
        except errors.DdpperfError as error:
            raise errors.extended(error, benchmark=variant.key) from error.__cause__
        self._sides[variant.of_reference].note(self._file, result.imports)
        return result

    def slowest_import(self, variant: Variant, result: LaunchResult[Any]) -> SlowImport | None:
        """Returns the slowest import of a launch's first rank, and why the imported module is not preloaded."""
        if not result.imports:
            return None
        slowest = max(result.imports, key=lambda one: one.seconds)
        reason = self._sides[variant.of_reference].why_not(slowest)
        return SlowImport(module=slowest.module, seconds=slowest.seconds, reason=reason)


class TimedLaunches:
    """Runs launches that time or diagnose variants; reports the ranks' output in each variant's first launch."""

    def __init__(self, launches: BenchmarkLaunches, sections: list[tuple[str, str]]) -> None:
        self._launches = launches
        self._sections = sections
        self._printed: set[str] = set()  # labels of variants whose output was added
        self._diagnosed: Counter[str] = Counter()
        self._completed: set[tuple[str, Plan]] = set()
        self._picked: dict[int, tuple[str, str]] = {}  # by world size, settings of data loading for all launches
        # Each variant has its own launcher, so that its ranks find the same in memory in all runs.
        self._slots: dict[tuple[str, int], tuple[Variables, int]] = {}
        self._several = False

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        """Runs one launch of each variant and returns the outcomes; interleaves several launches, a few steps each."""
        for variant, _ in launches:
            alike = sum(variables == variant.variables for variables, _ in self._slots.values())
            self._slots.setdefault(variant.key, (variant.variables, alike))
            if variant.pilot is not None and variant.pilot.picked is not None:
                self._picked.setdefault(variant.world_size, variant.pilot.picked)
        # A variant that goes on alone keeps its launcher.
        self._several = several = self._several or len({variant.key for variant, _ in launches}) > 1
        begun = self._launches.times.now()
        calls = [
            partial(self._result_of, self._slots[variant.key][1] if several else 0, variant, plan, purpose)
            for variant, plan in launches
        ]
        try:
            results = [calls[0]()] if len(calls) == 1 else run_interleaved(calls, self._launches.abort)
        except errors.ReferenceFailed as error:
            reason = self._no_fault(error, launches)
            if reason is None:
                raise
            raise errors.ReferenceStopped(reason, benchmark=error.benchmark) from error
        except errors.DdpperfError as error:
            told = errors.extended(error, after=_interleaving_hint(error, launches))
            if isinstance(told, errors.RankFailed):
                told.shared = len(launches) > 1 and self._launches.settings.memory_limit is None
            raise told from error.__cause__
        part = "measuring" if purpose is Purpose.TIMES else "diagnosing"
        self._launches.times.note_launch(
            begun, **{part: max(rank.worked for result in results for rank in result.values)}
        )
        self._completed.update((variant.label, plan) for variant, plan in launches)
        return [self._outcome(variant, purpose, result) for (variant, _), result in zip(launches, results, strict=True)]

    def _result_of(
        self, slot: int, variant: Variant, plan: Plan, purpose: Purpose, turns: TurnSlot | None = None
    ) -> LaunchResult[RankLaunch]:
        picked = self._picked.get(variant.world_size)
        job = replace(
            self._launches.job(variant, plan, loader_settings(picked[0]) if picked else None),
            # Candidate and reference diagnose with one seed, even if a pilot had to be repeated.
            seed=self._diagnosed[variant.label],
            diagnosed=purpose is Purpose.DIAGNOSIS,
            growth=purpose is not Purpose.TIMES,
            turns=turns is not None,
        )
        if purpose is not Purpose.TIMES:
            job = replace(job, plan=replace(plan, steps=1), stands_for=plan.steps)
        if turns is None:
            return self._launches.launch(variant, RUN_LAUNCH, job, slot=slot)
        # It has to wait for all other launches' turns as well.
        return self._launches.launch(variant, RUN_LAUNCH, job, slot=slot, patience=turns.queue.slots, turns=turns)

    def _no_fault(self, error: errors.ReferenceFailed, launches: Sequence[tuple[Variant, Plan]]) -> str | None:
        """Returns a reason to believe that the reference can run the benchmark despite this failure, or None."""
        hint = _interleaving_hint(error, launches)
        if hint:
            return f"{error}{hint}"
        failed = {
            (variant.label, plan)
            for variant, plan in launches
            if variant.of_reference and variant.key == error.benchmark
        }
        if failed & self._completed:
            return f"an earlier launch of the other revision succeeded, but this launch failed: {error}"
        return None

    def _outcome(self, variant: Variant, purpose: Purpose, result: LaunchResult[RankLaunch]) -> LaunchOutcome:
        label, size = variant.label, variant.world_size
        self._diagnosed[label] += purpose is Purpose.DIAGNOSIS
        if label not in self._printed:
            self._printed.add(label)
            self._sections.extend((f"{label}, {title}", text) for title, text in result.sections)
        first, *others = result.values
        if first.picked is not None:
            self._picked[size] = first.picked
        picked = self._picked.get(size) if variant.effective_settings(self._launches.settings).picks_loading else None
        imported = self._launches.slowest_import(variant, result)
        return (replace(first, picked=picked, imported=imported), *others), result.seconds


def _interleaving_hint(error: errors.DdpperfError, launches: Sequence[tuple[Variant, Plan]]) -> str:
    """Returns a hint to disable interleaving if an interleaved launch lacked memory or time; else ""."""
    cause = error.__cause__ if isinstance(error, errors.ReferenceFailed) else error
    wanting = isinstance(cause, errors.RanksTimedOut) or (isinstance(cause, errors.RankFailed) and cause.out_of_memory)
    if len(launches) == 1 or not wanting:
        return ""
    number = format_count(len(launches), "launch")
    return f"\n{number} ran at the same time, interleaved; --ddpperf-interleave=false runs one after the other"
