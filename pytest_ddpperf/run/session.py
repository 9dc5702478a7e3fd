"""What a pytest session owns: the launcher, the store of baselines, the results. It computes nothing."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.against.checkout import Checkout, checkout
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.baselines import noise
from pytest_ddpperf.baselines.acceptance import acceptable, baseline_record, warned
from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.baselines.fingerprint import environment, environment_key, training_differences
from pytest_ddpperf.baselines.naming import plain_name
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.instruments.host import MachineFacts, machine_facts
from pytest_ddpperf.launch.environment import pinned, thread_count
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.machine import TorchMachine, place
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.batch_size import Search
from pytest_ddpperf.records.measurement import Environment, Spread
from pytest_ddpperf.records.results import BaselineRecord, Found, Noise, Provenance, Result
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.preparation import Prepared
from pytest_ddpperf.run.probe import Probe
from pytest_ddpperf.settings import DEFAULT_SET, Settings, overlay
from pytest_ddpperf.stats.spreads import joined, pooled

if TYPE_CHECKING:
    from pytest_ddpperf.reports.summary import Told

DEFAULT_WORLD_SIZE = 2  # without GPUs
KEPT = 4  # launchers of a side from test to test: what most comparisons take
# Imported once, not on every rank of every launch.
PRELOADED = (
    "pytest_ddpperf.training.loop",
    "pytest_ddpperf.training.preparing",
    "pytest_ddpperf.training.step",
    "pytest_ddpperf.training.correctness.verifier",
    "pytest_ddpperf.instruments.counting.counting",
    "pytest_ddpperf.instruments.phases.diagnosis",
    "pytest_ddpperf.strategies.ddp",
)


class Session:
    """The resources and results of one pytest run.

    Attributes:
        results: of every benchmark so far, in the order measured.
        searches: for the largest batch, likewise.
        line: the terminal's live line, for progress.
        calibrated: likewise, of every benchmark that was held against itself.
        prepared: what was found out about trainings before they were measured, by ``preparation.identity``.
        complaints: what the summary has to say about the session itself.
        other: the side that benchmarks are held against; None where that is the stored baselines.
        tests: how many of those that were collected measure: they share the false alarms that a suite may raise.
        own: the side that is measured, where that is not this checkout.
        probe: how this run is to differ, as one of a search over commits; None where it is none.
    """

    def __init__(
        self,
        settings: Settings,
        root: Path,
        line: LiveLine,
        options: Sequence[str] = (),
        revision: Revision | None = None,
        *,
        probe: Probe | None = None,
    ) -> None:
        self.settings = settings
        self.tests = 1
        self.line = line
        self.results: list[Result] = []
        self.searches: list[Search] = []
        self.calibrated: list[Calibrated] = []
        self.prepared: dict[bytes, Prepared] = {}
        self.complaints: list[str] = []
        self.other = None
        self.own = None
        self.probe = probe
        if revision is not None:
            tests = settings.against_tests and probe is None  # a search runs this checkout's at every commit
            self.other = RevisionSide(revision, settings.against_setup, PRELOADED, tests=tests)
        if revision is not None and probe is not None:
            measured = Revision(probe.measured, probe.measured, revision.root)
            self.own = RevisionSide(measured, settings.against_setup, PRELOADED)
        self._options = tuple(options)
        self._root = root
        self._stored: list[str] = []
        self._recorded = ""
        self._threads = 1
        self._store = Store(self._baselines, settings.compared)

    @property
    def launcher(self) -> Launcher:
        """Starts the ranks of what runs alone."""
        return self.launchers[0]

    @cached_property
    def launchers(self) -> Launchers:
        """Start ranks; zygotes live until the session ends, and so do the threads per rank they were started with."""
        self._threads = thread_count(pinned(os.environ, mark=""))
        given = self.settings
        if any(one is not None for one in (given.save, given.against, given.calibrate, given.json, given.history)):
            _ = self._code  # named in what they leave: as it is now, for it may be changed while it is measured
        if self.other is not None:
            self.other.start()
        return (
            Launchers(lambda first: Launcher(preload=PRELOADED, like=first)) if self.own is None else self.own.launchers
        )

    @property
    def ranks_parents(self) -> tuple[int | None, ...]:
        """Process ids of what ranks are children of, on both sides; None for one that there is not yet."""
        return (*self.launchers.pids, *(() if self.other is None else self.other.ranks_parents))

    @cached_property
    def _torch(self) -> TorchMachine:
        return self.launcher.machine()

    @property
    def _baselines(self) -> Path:
        return self._root / self.settings.baseline_dir

    @cached_property
    def _code(self) -> Checkout | None:
        """What is measured. Baselines that were saved meanwhile are no change of it."""
        return checkout(self._root, self._baselines)

    @cached_property
    def _machine(self) -> MachineFacts:
        return machine_facts()

    def forced(self, settings: Settings) -> Settings:
        """The settings as the probe has them, if this run is one."""
        stronger = {} if self.probe is None else self.probe.settings
        return overlay(settings, stronger, lambda knob, raw: f"{knob.name}={raw}")

    def world_sizes(self, settings: Settings) -> tuple[int, ...]:
        """The numbers of ranks that the settings ask for: by default one per GPU, else 2."""
        return settings.world_size or (len(self._torch.gpus) or DEFAULT_WORLD_SIZE,)

    def environment(self, settings: Settings, world_size: int) -> Environment:
        """The facts that a benchmark with this many ranks depends on.

        Raises:
            LaunchError: this machine has not what the settings ask for.
        """
        placement = place(settings.device, settings.backend, world_size, self._torch)
        return environment(
            self._machine,
            device=placement.device,
            backend=placement.backend,
            world_size=world_size,
            threads=self._threads,
            torch_version=self._torch.torch,
            cuda=self._torch.cuda,
            gpu_names=self._torch.gpus,
        )

    def find(self, test: str, name: str, env: Environment, strategy: str, recipe: Mapping[str, str]) -> Found:
        """The baseline of a benchmark, or why there is none."""
        found = self._store.find(test, name, env)

        def with_training(record: BaselineRecord | None, differs: tuple[str, ...]) -> tuple[str, ...]:
            return differs if record is None else (*differs, *training_differences(record, strategy, recipe))

        alike: tuple[str, ...] = ()
        if found.record is None and found.counted is None:
            plain = plain_name(name, recipe)
            stored = self._store.records(test)
            alike = tuple(dict.fromkeys(one.name for one in stored if plain_name(one.name, one.recipe) == plain))
        return replace(
            found,
            alike=alike,
            noise=self._noise(test, name, env, strategy, recipe),
            differs=with_training(found.record, found.differs),
            counted_differs=with_training(found.counted, found.counted_differs),
        )

    def _noise(self, test: str, name: str, env: Environment, strategy: str, recipe: Mapping[str, str]) -> Noise | None:
        """What a calibration has told of a benchmark's noise, else what the history does."""
        known = noise.find(self._baselines, test, name, env)
        if known is not None and known.of_training(strategy, recipe):
            return known.noise
        if self.settings.history is None or not (file := self._root / self.settings.history).exists():
            return None
        from pytest_ddpperf.baselines.history.database import entries
        from pytest_ddpperf.baselines.history.noise_from_history import learned_noise

        try:
            recorded = entries(file, STEP_TIME, test=test, name=name, world_size=env.world_size)
        except HistoryError as error:  # no fault of the benchmark
            remark = f"noise was not learned: {error}"
            self.complaints += [remark] if remark not in self.complaints else []
            return None
        return learned_noise(recorded, environment_key=environment_key(env), strategy=strategy, recipe=recipe)

    def scatter(self, env: Environment) -> Spread | None:
        """By how much launches that run alone scatter here: by benchmarks before and calibrations; None if unknown.

        Single launches that something held up count as much as others: they are what has to be expected.
        """
        calibrated = noise.read(noise.noise_file(self._baselines, env)).values()
        before = [
            one.measurement[STEP_TIME].samples
            for one in self.results
            if one.measurement.launches
            and not one.measurement.turns
            and environment_key(one.measurement.environment) == environment_key(env)
        ]
        found = joined([pooled(before), *(one.between_launches for test in calibrated for one in test.values())])
        return found if found.df else None

    def accept_command(self, test: str) -> str:
        """What to type so that the result of a test becomes the baseline that it was compared with."""
        name = self.settings.compared
        save = "--ddpperf-save" if name == DEFAULT_SET else f"--ddpperf-save={name}"
        return " ".join(("pytest", f'"{test}"', *self._options, save))

    def end_test(self, test: str, *, passed: bool) -> None:
        """Store the results of a test, if that was asked for and it may be.

        Raises:
            BaselineError: they cannot be written.
        """
        if "launchers" in self.__dict__:
            self.launchers.keep(KEPT)
        if self.other is not None:
            self.other.keep(KEPT)
        self._store_noise(test, passed=passed)
        results = [result for result in self.results if result.test == test]
        if self.settings.save is None or not results:
            return
        if not passed:
            self._stored.append(f"not stored: {test} failed")
            return
        accepted = [result for result in results if self.settings.force_save or acceptable(result)]
        self._stored += [
            f"not stored: {r.name} of {test} is inconclusive; the old baseline stays (--ddpperf-force-save stores it)"
            for r in results
            if r not in accepted
        ]
        self._save(test, self.settings.save, accepted)
        self.results = [warned(result) if result in accepted else result for result in self.results]

    def _store_noise(self, test: str, *, passed: bool) -> None:
        found = [
            (one.measurement.environment, one.calibration) for one in self.calibrated if passed and one.test == test
        ]
        for file in noise.save(self._baselines, test, found):
            names = ", ".join(one.name for env, one in found if file.parent.name == environment_key(env))
            self._stored.append(f"{self._shown(str(file))}: noise of {test}: {names}")

    def provenance(self) -> Provenance:
        """Today, and what is checked out."""
        commit, dirty = (None, False) if self._code is None else (self._code.commit, self._code.dirty)
        return Provenance(date=dt.datetime.now(tz=dt.timezone.utc).date().isoformat(), commit=commit, dirty=dirty)

    def _save(self, test: str, name: str, results: Sequence[Result]) -> None:
        now = self.provenance()
        changes = Store(self._baselines, name).save(test, [baseline_record(result, now) for result in results])
        self._stored += map(self._shown, changes)

    def _shown(self, path: str) -> str:
        return path.removeprefix(f"{self._root}{os.sep}")

    def told(self) -> Told:
        """What the terminal's summary is made of."""
        from pytest_ddpperf.reports.summary import Told

        return Told(
            results=self.results,
            searches=self.searches,
            calibrated=self.calibrated,
            complaints=self.complaints,
            stored=self._stored,
            recorded=self._recorded,
            accepting=self.settings.accepting,
            here=self._here,
        )

    @property
    def _here(self) -> str:
        """This side of a run side by side, in words; empty where nothing is known of it, or there is no other."""
        code = None if self.other is None else self._code
        if code is None or self.other is None:
            return ""
        from pytest_ddpperf.reports.phrases import commit_text

        revision = self.other.revision
        same = revision.folder is None and revision.commit == code.commit and not code.dirty
        return commit_text(code.commit, dirty=code.dirty) + ", the same commit without changes" * same

    def write_json(self) -> None:
        """Write the results to the file that was asked for, if one was.

        Raises:
            SettingError: it cannot be written.
        """
        if self.settings.json is not None:
            from pytest_ddpperf.reports.json_report import results_document, write

            document = results_document(self.results, self._code, self.searches, self.calibrated)
            write(self._root / self.settings.json, document)

    def record(self) -> None:
        """Add the run to the history, if that was asked for and anything was measured.

        Raises:
            HistoryError: it cannot be written; then nothing of the run is in it.
        """
        if self.settings.history is None or self.settings.calibrate is not None or not self.results:
            return
        from pytest_ddpperf.baselines.history.database import record, run_of

        number = record(self._root / self.settings.history, run_of(self._code), self.results)
        self._recorded = f"recorded as run {number} of {self.settings.history}"

    def close(self) -> None:
        """End the zygotes and whatever still runs below them."""
        self.line.clear()
        try:
            if "launchers" in self.__dict__:
                self.launchers.close()
        finally:
            for side in (self.own, self.other):
                if side is not None:
                    side.close()
