"""The stored baselines and the history of a session."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pytest_ddpperf.against import git
from pytest_ddpperf.baselines.fingerprint import training_differences
from pytest_ddpperf.baselines.network import NetworkFile, network_file, read_network
from pytest_ddpperf.baselines.store import Store, baseline_record, warned
from pytest_ddpperf.errors import BaselineError, HistoryError
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import BenchmarkId, Environment, Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Provenance, Result, StoredBaseline
from pytest_ddpperf.reports.outputs import Stored
from pytest_ddpperf.settings import DEFAULT_SET, Settings


class Archive:
    """The baselines and the history that a session reads and writes."""

    def __init__(self, settings: Settings, root: Path, stored: Stored) -> None:
        self._stored = stored  # lists of stored and removed baselines
        self.complaints: list[str] = []  # about files that could not be read; no benchmark fails because of them
        self._settings = settings
        self._root = root
        self._baselines = root / settings.baseline_dir
        self._store = Store(self._baselines, settings.compared)
        self._fetched: set[str] = set()  # commits that were fetched, or that no remote has

    @cached_property
    def code(self) -> git.Checkout | None:
        """The measured checkout; changed baselines do not make it ``dirty``. None without git or a commit."""
        found = git.checkout(self._root, self._baselines)
        if found is None and self._settings.save is None and (why := git.unreadable(self._root)):
            self.complaints.append(f"the results name no commit: {why}")
        return found

    @cached_property
    def digest(self) -> str | None:
        """The digest of the measured code; None if nothing is saved, or if git cannot make a digest."""
        with contextlib.suppress(git.GitError):
            return None if self._settings.save is None else git.code_of(self._root)
        return None

    def provenance(self) -> Provenance:
        """Returns the origin of this run's results: the date, the commit and the digest of the code."""
        commit, dirty = (None, False) if self.code is None else (self.code.commit, self.code.dirty)
        date = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        return Provenance(date=date, commit=commit, dirty=dirty, code=self.digest)

    def find(self, test: str, benchmark: BenchmarkId) -> StoredBaseline:
        """Returns the baseline of a benchmark, or the reason why there is none."""
        found = self._store.find(test, benchmark.name, benchmark.environment)
        alike: tuple[str, ...] = ()
        if found.record is None and found.counted is None:
            simulated = benchmark.environment.simulated
            stored = (one for one in self._store.records(test) if one.environment.simulated == simulated)
            names = (record.name for record in stored if record.plain_name == benchmark.plain_name)
            alike = tuple(name for name in dict.fromkeys(names) if name != benchmark.name)

        def differs(record: BaselineRecord | None, *, counted: bool = False) -> tuple[str, ...]:
            if record is None:
                return ()
            return training_differences(record, benchmark.strategy, benchmark.recipe, counted=counted)

        return replace(
            found,
            alike=alike,
            differs=(*found.differs, *differs(found.record)),
            counted_differs=(*found.counted_differs, *differs(found.counted, counted=True)),
        )

    def network(self, environment: Environment) -> NetworkFile | None:
        """Returns the latency and bandwidth that ``ddpperf network`` stored for an environment, or None."""
        return read_network(network_file(self._baselines, environment))

    def on_network(self, measurement: Measurement) -> tuple[Finding, ...]:
        """Returns a finding that compares collectives with the stored speed of the network, or an empty tuple."""
        if not measurement.launches or measurement.world_size == 1:
            return ()
        try:
            content = self.network(measurement.environment)
        except BaselineError as error:
            self.complaints += [str(error)] * (str(error) not in self.complaints)
            return ()
        if content is None:
            return ()
        from pytest_ddpperf.analysis.conclusions import network_finding

        found = network_finding(measurement, content.fits)
        return () if found is None else (found,)

    def commit_of(self, test: str, record: BaselineRecord, *, fetch_it: bool = False) -> str:
        """Returns the commit of the code that a baseline measured; raises GitError, with advice, if it is unknown.

        If the code was not committed, the commit that added the baseline is used if it contains the same code.
        ``fetch_it``: whether to fetch a missing commit.
        """
        root, came_with = self._root, None
        try:
            git.top_folder(root)
        except git.GitError as error:
            raise git.GitError(git.no_commit(root, error)) from None
        named = None if record.dirty else record.commit
        if named is not None:
            if fetch_it and named not in self._fetched and git.commit_of(root, named) is None:
                self._fetched.add(named)
                git.fetch(root, named)
            if git.has_file(root, named, test.partition("::")[0]):
                return named
        try:
            came_with = None if record.code is None else self._came_with(test, record)
        except git.GitError:  # the baselines are in no repository
            if named is None:
                raise
        with contextlib.suppress(git.GitError):  # it may be a commit of another repository
            if came_with is not None and git.code_of(root, came_with) == record.code:
                return came_with
        if named is not None:
            raise git.GitError(git.missing(root, named, came_with))
        if record.commit is None:
            raise git.GitError("the baseline has no commit: save it again inside a git repository")
        cure = git.fetching(root) if git.is_shallow(root) else "commit the code, then save again"
        raise git.GitError(
            f"the baseline was saved with uncommitted changes, and no commit has the code that was measured: {cure}"
        )

    def _came_with(self, test: str, record: BaselineRecord) -> str | None:
        """Returns the first commit that added a baseline's step times, in any folder; None if no commit did."""
        samples = next((series.samples for series in record.series if series.metric == STEP_TIME), ())
        file = self._store.file(test, record.environment)
        return git.introduced(json.dumps(samples[0]), file.name, self._baselines) if samples else None

    def store(self, test: str, results: Sequence[Result]) -> Mapping[int, Result]:
        """Stores a test's results as baselines; returns the stored results, with warnings, by ``id(result)``."""
        store, now = Store(self._baselines, self._settings.save or DEFAULT_SET), self.provenance()
        if now.commit is None:
            why = f"nothing is committed in {self._root}: commit the code, then save again"
            try:
                git.top_folder(self._root)
            except git.GitError as error:
                why = git.no_commit(self._root, error)
            self._stored.without_commit = why
        elif now.dirty:
            self._stored.without_commit = "the code has uncommitted changes: commit them together with these baselines"
        accepted = [
            (result, baseline_record(measured, now, store.own(test, measured.name, measured.environment)))
            for result, measured in ((result, result.measurement) for result in results)
            if not measured.unfit
        ]
        for result in (result for result in results if result.measurement.unfit):
            if not self._settings.force_save:  # it may have run out of memory only once
                self._stored.unfit.append(result)
            elif store.remove(test, result.name, result.measurement.environment):
                self._stored.removed.append(result)
        by_key = {result.measurement.key: result for result, _ in accepted}
        for saved in store.save(test, [record for _, record in accepted]):
            file, benchmark = saved.file, (test, saved.new.name)
            file = file.relative_to(self._root) if file.is_relative_to(self._root) else file
            of_benchmark = (each for each in self._stored.saved if (each[0].test, each[1].new.name) == benchmark)
            first = next((each for each in of_benchmark if each[1].file == file), None)  # of an earlier run of the test
            shown = replace(saved, file=file, old=saved.old if first is None else first[1].old)
            self._stored.saved[:] = [each for each in self._stored.saved if each is not first]
            self._stored.saved.append((by_key[saved.new.key], shown))
        return {id(result): warned(result) for result, _ in accepted}

    def never_met(self, test: str, measured: Measurement, series: Series, wanted: float | None = None) -> list[Finding]:
        """Returns a finding if all values in the history are worse than ``wanted``.

        If ``wanted`` is None, the finding is made if all values are above the value of ``series``, or all are below.
        """
        from pytest_ddpperf.baselines.history.database import outside

        value, file = series.value if wanted is None else wanted, self._root / (self._settings.history or "")
        seen = None
        if file.is_file():
            with contextlib.suppress(HistoryError):  # the end of the run, which adds to the history, reports it
                seen = outside(file, test, measured, series.metric, value)
        if seen is None or (wanted is not None and (value < seen[1]) == (series.better == "higher")):
            return []
        return [Finding("never_met", {"series": series, "value": value, "stored": wanted is None, "seen": seen})]

    def record(self, history: Path, results: Sequence[Result], ended: str) -> int:
        """Adds a run, which ended at ``ended``, to the history; returns the number of the run."""
        from pytest_ddpperf.baselines.history.database import record, run_of

        return record(self._root / history, replace(run_of(self.code), date=ended), results)
