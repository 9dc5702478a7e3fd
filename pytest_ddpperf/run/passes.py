"""The launches of a benchmark's variants, pass by pass: prepared, profiled, timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import (
    DdpperfError,
    LaunchError,
    RankFailed,
    RankSkipped,
    RanksTimedOut,
    ReferenceFailed,
    ReferenceStopped,
    SameCode,
)
from pytest_ddpperf.instruments.host import free_memory
from pytest_ddpperf.launch.interleaving import TurnSlot, run_interleaved
from pytest_ddpperf.launch.launcher import MAX_TIMEOUT, LaunchResult
from pytest_ddpperf.launch.launchers import LAUNCHER_BYTES
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.loader_settings import LoaderSettings, loader_settings
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.groups import can_take_turns
from pytest_ddpperf.run.preparation import prepared, task_text
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.run.terms import Budget, ExtraPasses, LaunchOutcome, LaunchRunner, budget_of
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import modules_of
from pytest_ddpperf.training.jobs import (
    PREPARE_LAUNCH,
    PROBE_LAUNCH,
    PROFILE_LAUNCH,
    RUN_LAUNCH,
    LaunchJob,
    PrepareJob,
    RankPrepared,
)
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches


class Passes:
    """Runs the launches of one call of a verb.

    Attributes:
        settings: of the call.
        sections: titles and texts for the test's report.
    """

    def __init__(
        self,
        session: Session,
        test: str,
        settings: Settings,
        sections: list[tuple[str, str]],
        imports: PairedLaunches | None = None,
    ) -> None:
        self.settings = settings
        self._paired = imports
        self._session = session
        self._test = test
        self._slots = 1  # launches of a side that can run at the same time
        self._memory: int | None = None  # bytes that their ranks may take
        self.sections = sections

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Around launches that a line tells of: it goes when they have ended; a rank that skips skips the test."""
        __tracebackhide__ = True
        try:
            yield
        except RankSkipped as skipped:
            # pytest would take the line of contextlib that this was raised through for the one that skips.
            raise pytest.skip.Exception(str(skipped), _use_item_location=True) from None
        finally:
            self._session.line.clear()

    def start(self, variants: Sequence[Variant]) -> None:
        """Have torch imported meanwhile for launches of all variants at the same time, if there is memory for that."""
        wanted, free = _launchers(self.settings, variants), free_memory()
        sides = [self._session.launchers.pids, *([] if self._paired is None else [self._paired.ranks_parents])]
        missing = (wanted - sum(pid is not None for pid in pids) for pids in sides)
        needed = LAUNCHER_BYTES * sum(max(0, number) for number in missing)
        enough = free is None or needed <= free
        self._slots = wanted if enough else 1
        self._memory = None if free is None else free - needed * enough
        self._session.launchers.start(self._slots)
        if self._paired is not None:
            self._paired.start(self._slots)

    def ready(self) -> None:
        """Return when that is done: else it would disturb steps, and cost the time that measuring has."""
        __tracebackhide__ = True
        self._session.launchers.wait(self._slots)
        if self._paired is not None:
            self._paired.wait(self._slots)

    def keep(self, number: int) -> None:
        """End the launchers of either side that are not needed, for so many launches of it run at the same time."""
        if number < self._slots:
            self._slots = number
            self._session.launchers.keep(number)
            if self._paired is not None:
                self._paired.keep(number)

    def budget(self, *, compared: bool) -> Budget:
        """How much measuring a benchmark may take, and how many of its launches may run at the same time."""
        return replace(budget_of(self.settings, compared=compared), slots=self._slots, memory=self._memory)

    def prepared(self, variants: Sequence[Variant]) -> list[Variant]:
        """The variants with what is found out before they are measured: pilot, counts, remarks on their verification.

        Each takes one launch, or none where this session has found out the same before.
        """
        __tracebackhide__ = True

        def launch(variant: Variant, job: PrepareJob) -> LaunchResult[RankPrepared]:
            __tracebackhide__ = True
            if job.timed:
                self.ready()
            self._session.line.show(f"{self._test} {variant.name}: {task_text(job)}")
            return self.launch(variant, PREPARE_LAUNCH, job, patience=job.parts)

        # Side by side, where nothing is timed, these launches alone tell what both sides import.
        forgetful = self.settings.counted_only and self._paired is not None
        with self.shown():
            return prepared(self.settings, variants, launch, {} if forgetful else self._session.prepared)

    def profiled(self, variants: Sequence[Variant]) -> list[Variant]:
        """The variants with their communication as the profiler sees it, in a launch of its own, where wanted."""
        __tracebackhide__ = True
        if not self.settings.profile:
            return list(variants)
        with self.shown():
            return [replace(variant, profile=self._profile(variant)) for variant in variants]

    def _profile(self, variant: Variant) -> CommunicationProfile:
        __tracebackhide__ = True
        from pytest_ddpperf.metrics import profile

        self._session.line.show(f"{self._test} {variant.name}: under the profiler")
        job = self.job(variant, Plan(warmup=self.settings.warmup, steps=1))
        return profile.merged(self.launch(variant, PROFILE_LAUNCH, job).values)

    def timed(self) -> LaunchRunner:
        """What launches variants to be timed."""
        return _Timed(self)

    def abort(self) -> None:
        """End the launches of both sides that are under way in other threads."""
        self._session.launchers.abort()
        if self._paired is not None:
            self._paired.abort()

    def probe(self, variant: Variant, plan: Plan, memory_limit: int | None) -> Sequence[RankLaunch]:
        """What the ranks of one launch report that may use so many bytes each; None for what the device has."""
        __tracebackhide__ = True
        job = self.job(variant, plan)
        return self.launch(variant, PROBE_LAUNCH, job, memory_limit).values

    def job(self, variant: Variant, plan: Plan, loader: LoaderSettings | None = None) -> LaunchJob:
        """What every rank of a launch of a variant has to do; ``loader`` is what data loading came to before."""
        counts = (variant.samples_per_step, variant.tokens_per_step)
        settings = self.settings if loader is None else replace(self.settings, loader=loader)
        if settings.communication is None:  # ranks that share a core wait for each other, whatever they send
            settings = replace(settings, communication=not variant.environment.oversubscribed)
        return LaunchJob(variant.subject, variant.resolved, settings, plan, *counts)

    def launch(
        self, variant: Variant, function: Callable[..., Any], *args: object, slot: int = 0, patience: int = 1
    ) -> LaunchResult[Any]:
        """Calls ``function(ctx, *args)`` on fresh ranks of the variant's group, by the launcher of number ``slot``.

        The deadline is ``patience`` times that of the settings.
        """
        __tracebackhide__ = True
        launchers = self._session.launchers
        run = launchers[slot].run
        if self._paired is not None:
            run = partial(self._paired.run, launchers, slot, benchmark=variant.key, reference=variant.of_reference)
        try:
            return run(
                function,
                *args,
                world_size=variant.environment.world_size,
                backend=variant.environment.backend,
                device=variant.environment.device,
                timeout=self.settings.timeout if patience == 1 else min(self.settings.timeout * patience, MAX_TIMEOUT),
                mode=variant.mode,
                preload=modules_of(variant.resolved),
            )
        except (LaunchError, SameCode):  # no matter of this variant
            raise
        except DdpperfError as error:
            error.extend(benchmark=variant.key)
            raise


class _Timed:
    """Launches variants to be timed; keeps what the ranks of the first launch of each printed for the test's report.

    What the first launch picked holds for all later ones, of other variants too: what is compared loads alike.
    """

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._printed: set[str] = set()
        self._diagnosed: Counter[str] = Counter()
        self._completed: list[tuple[str, Plan]] = []
        self._picked: dict[int, tuple[str, str]] = {}
        # Each variant has a launcher of its own: what its ranks find in memory is the same in all runs.
        self._slots: dict[tuple[str, int], int] = {}

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], extra: ExtraPasses) -> list[LaunchOutcome]:
        __tracebackhide__ = True
        for variant, _ in launches:
            self._slots.setdefault(variant.key, len(self._slots))
            if variant.pilot is not None and variant.pilot.picked is not None:
                self._picked.setdefault(variant.environment.world_size, variant.pilot.picked)
        several = len({variant.key for variant, _ in launches}) > 1
        slots = [self._slots[variant.key] if several else 0 for variant, _ in launches]
        calls = [partial(self._result_of, slot, *launch, extra) for slot, launch in zip(slots, launches, strict=True)]
        try:
            results = [calls[0]()] if len(calls) == 1 else run_interleaved(calls, self._passes.abort)
        except ReferenceFailed as error:
            reason = self._no_fault(error, launches)
            if reason is None:
                raise
            raise ReferenceStopped(reason, benchmark=error.benchmark) from error
        except DdpperfError as error:
            error.extend(after=_crowd(error, launches))
            raise
        self._completed.extend((_label(variant), plan) for variant, plan in launches)
        return [self._kept(variant, extra, result) for (variant, _), result in zip(launches, results, strict=True)]

    def _result_of(
        self, slot: int, variant: Variant, plan: Plan, extra: ExtraPasses, turns: TurnSlot | None = None
    ) -> LaunchResult[RankLaunch]:
        __tracebackhide__ = True
        size = variant.world_size
        loader = loader_settings(self._picked[size][0]) if size in self._picked else None
        job = self._passes.job(variant, plan, loader)
        # Both sides of a round diagnose with one seed, also where a pilot had to be made again.
        seed = self._diagnosed[_label(variant)]
        job = replace(job, seed=seed, diagnosed=extra.diagnosed, growth=extra.growth, turns=turns)
        if not extra.times:
            job = replace(job, plan=replace(plan, steps=1), stands_for=plan.steps)
        if turns is None:
            return self._passes.launch(variant, RUN_LAUNCH, job)
        # It has to sit out all other launches as well.
        return self._passes.launch(variant, RUN_LAUNCH, job, slot=slot, patience=turns.slots)

    def _no_fault(self, error: ReferenceFailed, launches: Sequence[tuple[Variant, Plan]]) -> str | None:
        """Why the other revision's failure does not mean that it cannot run the benchmark; None where it does."""
        crowd = _crowd(error, launches)
        if crowd:
            return f"{error}{crowd}"
        theirs = [(_label(one), plan) for one, plan in launches if one.of_reference and one.key == error.benchmark]
        if any(completed in theirs for completed in self._completed):
            return f"it had run on the other revision before, and failed now: {error}"
        return None

    def _kept(self, variant: Variant, extra: ExtraPasses, result: LaunchResult[RankLaunch]) -> LaunchOutcome:
        label, size = _label(variant), variant.environment.world_size
        self._diagnosed[label] += extra.diagnosed
        if label not in self._printed:
            self._printed.add(label)
            self._passes.sections.extend((f"{label}, {title}", text) for title, text in result.sections)
        first, *others = result.values
        if first.picked is not None:
            self._picked[size] = first.picked
        return (replace(first, picked=self._picked.get(size)), *others), result.seconds


def _launchers(settings: Settings, variants: Sequence[Variant]) -> int:
    """How many launches of a side there will be at the same time, as far as can be told before any."""
    if not settings.turns or settings.counted_only or not can_take_turns(variants):
        return 1
    return len({variant.key for variant in variants})


def _crowd(error: DdpperfError, launches: Sequence[tuple[Variant, Plan]]) -> str:
    """A line on a launch that failed for want of memory or time, of which it might have had enough alone."""
    cause = error.__cause__ if isinstance(error, ReferenceFailed) else error
    wanting = isinstance(cause, RanksTimedOut) or (isinstance(cause, RankFailed) and cause.out_of_memory)
    if len(launches) == 1 or not wanting:
        return ""
    number = format_count(len(launches), "launch")
    return f"\n{number} ran at the same time, to take turns; --ddpperf-turns=false runs one after the other"


def _label(variant: Variant) -> str:
    return f"{variant.name} w{variant.environment.world_size}" + ", other revision" * variant.of_reference
