"""The stored baselines, the noise and the history of a session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.against.git import Checkout, has_file, introduced
from pytest_ddpperf.baselines import noise
from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.baselines.fingerprint import environment_key, training_differences
from pytest_ddpperf.baselines.network import NetworkFile, network_file, read_network
from pytest_ddpperf.baselines.runs import adds_run, changed_counts, lies_apart, with_run
from pytest_ddpperf.baselines.store import SavedRecord, Store, acceptable, baseline_record, warned
from pytest_ddpperf.errors import BaselineError, HistoryError
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import BenchmarkId, Environment, Measurement, Spread
from pytest_ddpperf.records.noise import Noise
from pytest_ddpperf.records.results import BaselineRecord, Provenance, Result, StoredBaseline
from pytest_ddpperf.settings import DEFAULT_SET, Settings
from pytest_ddpperf.stats.spreads import joined, pooled

if TYPE_CHECKING:
    from pytest_ddpperf.reports.stored import Stored


class Archive:
    """The baselines, the noise and the history that a session reads and writes."""

    def __init__(self, settings: Settings, root: Path) -> None:
        self.saved: list[tuple[Result, SavedRecord]] = []
        self.undecided: list[Result] = []  # which were not stored
        self.unfit: list[Result] = []  # whose baselines stay
        self.removed: list[Result] = []  # whose baselines are gone, for they do not fit any more
        self.apart: list[Result] = []  # which were not added to the stored runs of the same commit
        self.noise: list[tuple[Calibrated, Path]] = []
        self.complaints: list[str] = []  # what could not be read, and spoils no benchmark
        self._runs: dict[str, Mapping[noise.Training, BaselineRecord]] = {}  # by environment key
        self._recorded_noise: dict[str, Mapping[noise.Training, Noise]] = {}  # by environment key
        self._settings = settings
        self._root = root
        self._baselines = root / settings.baseline_dir
        self._store = Store(self._baselines, settings.compared)

    def find(self, test: str, benchmark: BenchmarkId) -> StoredBaseline:
        """The baseline of a benchmark, or why there is none."""
        found = self._store.find(test, benchmark.name, benchmark.environment)
        alike: tuple[str, ...] = ()
        if found.record is None and found.counted is None:
            simulated = benchmark.environment.simulated
            stored = (one for one in self._store.records(test) if one.environment.simulated == simulated)
            names = (record.name for record in stored if record.plain_name == benchmark.plain_name)
            alike = tuple(name for name in dict.fromkeys(names) if name != benchmark.name)

        def differs(record: BaselineRecord | None) -> tuple[str, ...]:
            return () if record is None else training_differences(record, benchmark.strategy, benchmark.recipe)

        return replace(
            found,
            alike=alike,
            noise=self._noise(test, benchmark),
            differs=(*found.differs, *differs(found.record)),
            counted_differs=(*found.counted_differs, *differs(found.counted)),
        )

    def network(self, environment: Environment) -> NetworkFile | None:
        """What ``ddpperf network`` has stored of an environment; None where nothing is."""
        return read_network(network_file(self._baselines, environment))

    def on_network(self, measurement: Measurement) -> tuple[Finding, ...]:
        """What the stored network says of a measurement's collectives; nothing where none is stored."""
        if not measurement.launches or measurement.world_size == 1:
            return ()
        try:
            content = self.network(measurement.environment)
        except BaselineError as error:
            self.complaints += [str(error)] * (str(error) not in self.complaints)
            return ()
        if content is None:
            return ()
        from pytest_ddpperf.analysis.expected import network_finding

        found = network_finding(measurement, content.fits)
        return () if found is None else (found,)

    def commit_of(self, test: str, record: BaselineRecord) -> str | None:
        """The commit that has the code of a baseline's times; None where no commit has it.

        Who changes code and saves commits both together: then it is the commit that the times first came with. GitError
        where git cannot tell.
        """
        module = test.partition("::")[0]
        if record.commit is not None and not record.dirty and has_file(self._root, record.commit, module):
            return record.commit
        samples = next((series.samples for series in record.series if series.metric == STEP_TIME), ())
        file = self._store.file(test, record.environment)  # it may have been moved
        return introduced(json.dumps(samples[0]), file.name, self._baselines) if samples else None

    def _noise(self, test: str, benchmark: BenchmarkId) -> Noise | None:
        """The noise of a benchmark by all calibrations and recorded runs of such a machine."""
        calibrated = {
            noise.training_of(of_test, known): known
            for of_test, variants in noise.read(noise.noise_file(self._baselines, benchmark.environment)).items()
            for known in variants.values()
        }
        key = environment_key(benchmark.environment)
        if key not in self._runs:
            files = map(self._of_several_runs, self._store.files(key))
            self._runs[key] = {trained: record for found in files for trained, record in found.items()}
        return noise.known_noise(noise.training_of(test, benchmark), calibrated, self._learned(key), self._runs[key])

    def _of_several_runs(self, file: Path) -> Mapping[noise.Training, BaselineRecord]:
        """The baselines of a file that are of several runs."""
        try:
            found = self._store.of_several_runs(file)
        except BaselineError as error:  # the test whose own it is fails by it
            self.complaints.append(f"noise was not learned: {error}")
            return {}
        return {noise.training_of(test, record): record for test, records in found.items() for record in records}

    def _learned(self, key: str) -> Mapping[noise.Training, Noise]:
        """The noise of all benchmarks of an environment by the history."""
        if self._settings.history is None or not (file := self._root / self._settings.history).exists():
            return {}
        from pytest_ddpperf.baselines.history.database import entries

        if key not in self._recorded_noise:
            try:
                self._recorded_noise[key] = noise.recorded_noise(entries(file, STEP_TIME), key)
            except HistoryError as error:  # no fault of the benchmark
                self._recorded_noise[key] = {}
                self.complaints.append(f"noise was not learned: {error}")
        return self._recorded_noise[key]

    def scatter(self, env: Environment, results: Sequence[Result]) -> Spread | None:
        """The scatter of launches that run alone here, by earlier results and calibrations; None if unknown.

        Single launches that something held up count as much as others, because they have to be expected.
        """
        calibrated = noise.read(noise.noise_file(self._baselines, env)).values()
        before = [
            measured[STEP_TIME].samples
            for measured in (result.measurement for result in results)
            if measured.launches
            and not measured.turns
            and environment_key(measured.environment) == environment_key(env)
        ]
        found = joined([pooled(before), *(known.between_launches for test in calibrated for known in test.values())])
        return found if found.df else None

    def stored(self, failed: Sequence[str]) -> Stored:
        """What became of baselines and noise; of ``failed`` tests nothing is stored."""
        from pytest_ddpperf.reports.stored import Stored

        return Stored(
            saved=self.saved,
            undecided=self.undecided,
            apart=self.apart,
            unfit=self.unfit,
            removed=self.removed,
            failed=failed,
            noise=self.noise,
        )

    def store(self, test: str, results: Sequence[Result], now: Provenance) -> Mapping[int, Result]:
        """Stores the results of a test that may be stored; gives these with their warnings, by ``id``."""
        store = Store(self._baselines, self._settings.save or DEFAULT_SET)
        fitting = (result for result in results if not result.measurement.unfit)
        accepted = [(result, record) for result in fitting if (record := self._record(store, test, result, now))]
        for result in (result for result in results if result.measurement.unfit):
            if not self._settings.force_save:  # it may have run out of memory for once
                self.unfit.append(result)
            elif store.remove(test, result.name, result.measurement.environment):
                self.removed.append(result)
        by_key = {result.measurement.key: result for result, _ in accepted}
        for saved in store.save(test, [record for _, record in accepted]):
            first = self._saved_before(test, saved.new.name, saved.file)
            shown = replace(saved, file=self._shown(saved.file), old=saved.old if first is None else first[1].old)
            self.saved = [each for each in self.saved if each is not first]
            self.saved.append((by_key[saved.new.key], shown))
        return {id(result): warned(result, record) for result, record in accepted}

    def _saved_before(self, test: str, name: str, file: Path) -> tuple[Result, SavedRecord] | None:
        """What this session has saved of a benchmark in an earlier run."""
        named = (each for each in self.saved if (each[0].test, each[1].new.name) == (test, name))
        return next((each for each in named if each[1].file == self._shown(file)), None)

    def _record(self, store: Store, test: str, result: Result, now: Provenance) -> BaselineRecord | None:
        """What is stored of a result, with the earlier runs of the same commit; None where nothing may be."""
        settings, record = self._settings, baseline_record(result, now)
        found = store.find(test, result.name, result.measurement.environment)
        before = None if found.differs or not result.measurement.launches else found.record
        earlier = self._saved_before(test, result.name, store.file(test, record.environment)) is not None
        if before is None or not adds_run(before, record, same_session=earlier):
            if settings.force_save or acceptable(result, settings.resolution):
                return record
            self.undecided.append(result)
            return None
        changed = changed_counts(before, record)
        if changed:
            raise BaselineError(
                f"{test}: {result.name}: {' and '.join(changed)} of this run differ from those of the stored runs of "
                f"the same commit, so it is not added to them: fix what counts depend on (versions, seeds, input), or "
                f"delete {self._shown(store.file(test, record.environment))} and save again"
            )
        if settings.accepting and not (settings.force_save or earlier) and lies_apart(result):
            self.apart.append(result)
            return None
        return with_run(before, record)

    def store_noise(self, test: str, calibrated: Sequence[Calibrated]) -> None:
        """Stores the noise that calibrations of a test found."""
        found = [(each.measurement.environment, each.calibration) for each in calibrated]
        files = noise.save(self._baselines, test, found)
        by_key = {file.parent.name: self._shown(file) for file in files}
        self.noise += [(each, by_key[environment_key(each.measurement.environment)]) for each in calibrated]

    def record(self, history: Path, code: Checkout | None, results: Sequence[Result], ended: str) -> int:
        """Adds a run, which ended then, to the history; gives its number."""
        from pytest_ddpperf.baselines.history.database import record, run_of

        return record(self._root / history, replace(run_of(code), date=ended), results)

    def _shown(self, path: Path) -> Path:
        return path.relative_to(self._root) if path.is_relative_to(self._root) else path
