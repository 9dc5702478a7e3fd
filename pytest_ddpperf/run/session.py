"""What a pytest session owns: launchers, both sides of a paired run, results, and what hooks add."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.baselines.fingerprint import environment, simulated_environment
from pytest_ddpperf.instruments.health import Watch, watch_health
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import TorchMachine, place
from pytest_ddpperf.launch.environment import Variables, late_threads, thread_count, thread_variables
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.run.budget.session_budget import CallId, SessionBudget
from pytest_ddpperf.run.extensions import Extensions
from pytest_ddpperf.run.frames import skipping
from pytest_ddpperf.run.leases import Leases
from pytest_ddpperf.settings import DEFAULT_SET, Settings, overlay
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.against.git import Checkout
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.against.revision_side import RevisionSide
    from pytest_ddpperf.against.worktree import Revision
    from pytest_ddpperf.analysis.candidates import StrategyAdvice
    from pytest_ddpperf.analysis.predictions import Predicted
    from pytest_ddpperf.analysis.transfers import FittedNetwork
    from pytest_ddpperf.judge.calibration import Calibrated
    from pytest_ddpperf.launch.nodes.cluster import Cluster
    from pytest_ddpperf.launch.nodes.launchers import NodeLaunchers
    from pytest_ddpperf.launch.redirection import Redirection
    from pytest_ddpperf.records.batch_size import Search
    from pytest_ddpperf.records.convergence import Convergence
    from pytest_ddpperf.records.results import Provenance, Result
    from pytest_ddpperf.reports.progress import LiveLine
    from pytest_ddpperf.reports.summary import SummaryData
    from pytest_ddpperf.run.archive import Archive
    from pytest_ddpperf.run.lasting_groups import LastingGroups
    from pytest_ddpperf.run.preparation import Prepared
    from pytest_ddpperf.run.probe import Probe
    from pytest_ddpperf.run.timeouts import TestTimeout

DEFAULT_WORLD_SIZE = 2  # without GPUs
KEPT = 4  # launchers of a side from test to test: what most comparisons take
QUICK = {"launches": 2, "max_time": 5}  # the settings of a first look
PRELOADED = (  # imported once, not on every rank of every launch
    "pytest_ddpperf.training.loop",
    "pytest_ddpperf.training.preparing",
    "pytest_ddpperf.training.step",
    "pytest_ddpperf.training.correctness.verifier",
    "pytest_ddpperf.instruments.counting.counting",
    "pytest_ddpperf.instruments.phases.diagnosis",
    "pytest_ddpperf.strategies.ddp",
)


class Session:
    """The resources and results of one pytest run."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        line: LiveLine,
        options: Sequence[str] = (),
        revision: Revision | None = None,
        *,
        probe: Probe | None = None,
        tests: int = 1,
        hook: Any = None,
        timeout: TestTimeout | None = None,
    ) -> None:
        self.settings = settings
        self.tests = tests  # that measure: they share the false alarms that a suite may raise
        self.budget = SessionBudget(settings.budget, tests * (settings.calibrate or 1))
        self.extensions = Extensions(hook, lambda: self.budget.defers)
        self.limited = partial if timeout is None else timeout.limited  # of a launch, by the deadline of its test
        self.line = line  # the terminal's live line, for progress
        self.results: list[Result] = []  # of every benchmark so far, in the order measured
        self.searches: list[Search] = []  # for the largest batch
        self.convergences: list[Convergence] = []  # of trainings to the end
        self.predictions: list[Predicted] = []  # of steps that nobody ran
        self.advice: list[StrategyAdvice] = []  # on how to train
        self.calibrated: list[Calibrated] = []
        self.prepared: dict[bytes, Prepared] = {}  # by preparation.identity
        self.networks: dict[str, FittedNetwork] = {}  # that were measured for predictions, by environment
        self.measured: dict[str, list[Measurement]] = {}  # by test, compared with nothing
        self.complaints: list[str] = []  # of the summary, on the session itself
        self.traces: list[tuple[str, str]] = []  # tests, and lines of the summary on traces that were written
        self.parts: list[tuple[str, str]] = []  # of the summary, that hooks add; empty before the session has ended
        self.reference = self.candidate = None  # None: stored baselines, and this checkout
        self._threads: dict[str, str] = {}  # the variables of threads, before the first launch none
        self._echo = echo = line.echo if line.echoes else None  # is told what ranks print, while they run
        self.probe = probe  # None where this run is none of a bisection
        if revision is not None:
            own = settings.against_tests and not revision.here and probe is None  # searches run this checkout's
            self.reference = self._side(revision, tests=own, echo=echo and partial(echo, who="reference rank"))
        if revision is not None and probe is not None:
            self.candidate = self._side(probe.revision(revision), echo=echo)
        self._of_commits: dict[str, RevisionSide] = {}  # of baselines
        self._launchers: Launchers | None = None
        self.groups: LastingGroups | None = None  # ranks that live on from test to test
        self.leases = Leases(settings.lease, line.show)
        self.cluster: Cluster | None = None  # of a launcher's processes, which this one controls
        self._archive: Archive | None = None
        self.attempts: dict[str, int] = {}  # by test that is run again: which run of it this is, from 1
        self._unstored: set[str] = set()  # tests that failed
        self._options, self._root, self._recorded = tuple(options), root, ""

    @property
    def launchers(self) -> Launchers:
        """The launchers of the candidate; their zygotes live until the session ends."""
        if self._launchers is None:
            self._threads.update(thread_variables(os.environ))  # of the ranks of all launches
            naming = ("save", "against", "against_python", "calibrate", "json", "report", "history")
            if any(getattr(self.settings, name) is not None for name in naming):
                _ = self._code, self._digest  # what results name is read now: it may be changed while it is measured
            if self.reference is not None:
                self.reference.start()
            self._launchers = (
                Launchers(self._launcher, self.settings.preload) if self.candidate is None else self.candidate.launchers
            )
        return self._launchers

    def _launcher(self, first: Launcher | None) -> Launcher:
        nodes = self._nodes(PRELOADED, None, first)
        return Launcher(threads=self._threads, preload=PRELOADED, echo=self._echo, like=first, nodes=nodes)

    def _nodes(
        self, preload: Sequence[str], redirection: Redirection | None, like: Launcher | None
    ) -> NodeLaunchers | None:
        """What a launcher reaches other nodes by; None where this node is the only one."""
        if self.cluster is None or not self.cluster.nodes:
            return None
        from pytest_ddpperf.launch.nodes.launchers import NodeLaunchers

        return NodeLaunchers(self.cluster, preload, redirection, like)

    @property
    def ranks_parents(self) -> tuple[int | None, ...]:
        """Process ids of the zygotes of both sides, which are the parents of ranks; None for one that does not run."""
        return (*self.launchers.parents, *(pid for each in self._other_launchers for pid in each.parents))

    def roots_of(self, *, reference: bool) -> tuple[str, ...]:
        """The roots of the project as the ranks of a side import it, and of this checkout, which tests may be of."""
        side = self.reference if reference else self.candidate
        own = str(self._root)
        return (own,) if side is None else (side.redirection.path(own), own)

    def _torch(self, settings: Settings, side: RevisionSide | None = None) -> TorchMachine:
        return (side or self).launchers[0].machine(gpus=settings.device != "cpu")

    @property
    def archive(self) -> Archive:
        """The stored baselines and the history."""
        if self._archive is None:
            from pytest_ddpperf.run.archive import Archive

            self._archive = Archive(self.settings, self._root)
        return self._archive

    @cached_property
    def _code(self) -> Checkout | None:
        """The checkout that is measured; baselines that were saved meanwhile are no change of it."""
        from pytest_ddpperf.against.git import checkout

        return checkout(self._root, self._root / self.settings.baseline_dir)

    def forced(self, settings: Settings, *, counts: bool = False) -> Settings:
        """The settings with those of a first look or of the probe on top; ``counts``: what is measured needs them."""
        stronger: dict[str, object] = {**(QUICK if self.settings.quick else {})}
        if self.probe is not None:
            stronger = dict(self.probe.settings)
        if self.settings.simulate is not None:
            stronger = {"counted": True, "counted_only": True, "verify": False}
        if counts:
            stronger.pop("counted", None)  # which saves time where nothing needs counts
        return overlay(settings, stronger, lambda knob, raw: f"{knob.name}={raw}")

    def world_sizes(self, settings: Settings) -> tuple[int, ...]:
        """The numbers of ranks that the settings ask for: by default one per GPU, else 2."""
        if self.settings.simulate is not None:
            return self.settings.simulate
        if settings.world_size is not None:
            return settings.world_size
        nodes = 1 if self.cluster is None else 1 + len(self.cluster.nodes)
        return (nodes * len(self._torch(settings).gpus.names) or max(nodes, DEFAULT_WORLD_SIZE),)

    def environment(
        self, settings: Settings, world_size: int, variables: Variables = (), side: RevisionSide | None = None
    ) -> Environment:
        """The facts that so many ranks, which have these variables besides, depend on; ``side``: the candidate's."""
        if self.settings.simulate is not None:
            return simulated_environment(machine_facts().python, self.launchers[0].machine(gpus=False), world_size)
        machine = self._torch(settings, side)
        with skipping():
            counts = self.launchers[0].counts(world_size, settings.device, machine)
            placement = place(settings.device, settings.backend, counts[0], machine)
        if placement.device == "cpu":
            if not settings.counted_only:
                self.leases.on_cpu()
        elif self.leases.on_gpus(machine.gpus, counts[0], os.environ, fixed=self.cluster is not None):
            machine = self._torch(settings, side)
        self.complaints += {placement.remark, late_threads(os.environ, self._threads)} - {"", *self.complaints}
        gpus = None
        if placement.device == "cuda":
            from pytest_ddpperf.instruments.gpu_facts import gpu_facts

            gpus = gpu_facts(self.gpus(counts[0]), machine.gpu_software, {**os.environ, **dict(variables)})
        facts, threads = machine_facts(), thread_count({**self._threads, **dict(variables)})
        found = environment(
            facts, machine, placement, world_size, threads=threads, gpus=gpus, nodes=len(counts), binding=settings.bind
        )
        return replace(found, recorded=self.extensions.recorded(found.recorded))

    def folder_of_traces(self, settings: Settings) -> Path | None:
        """Where the traces of a benchmark are written; None for nowhere."""
        return (self._root / settings.profile).resolve() if isinstance(settings.profile, Path) else None

    def gpus(self, world_size: int) -> tuple[str, ...]:
        """The PCI ids of the GPUs that so many ranks compute on, as far as torch tells."""
        return tuple(filter(None, self.launchers[0].machine().gpus.pci[:world_size]))

    def watch(self, gpus: Sequence[str], nodes: int) -> Watch:
        """Begins to watch this node, its GPUs of these PCI ids, and others: so many in all."""
        here = watch_health(self.ranks_parents, gpus=gpus)
        others = dict if self.cluster is None else self.cluster.watch(nodes - 1)
        return lambda window: replace(here(window), nodes=others())

    def begin_test(self, test: str, attempt: int) -> None:
        """Forgets what earlier attempts of a test have left, as of pytest-rerunfailures; no verdict failed them."""
        self.attempts[test] = attempt
        self.budget.begin_anew(test)
        self.prepared.clear()  # what an attempt that failed found out may be wrong
        self.run_again(test)

    def run_again(self, test: str) -> None:
        """Forgets the results of a test that runs once more."""
        self._unstored.discard(test)
        self.measured.pop(test, None)
        self.extensions.forget(test)
        self.traces[:] = [(of_test, line) for of_test, line in self.traces if of_test != test]
        for kept in list[list[Any]](self._made):
            kept[:] = [one for one in kept if one.test != test]

    def begin_measuring(self, call: CallId, settings: Settings, begun: float, *, compared: bool) -> bool:
        """Deals out the time of a call that began then; whether the session limits it."""
        return self.budget.share(call, settings.max_time, begun=begun, compared=compared)

    @property
    def verdicts_stand(self) -> bool:
        """Whether a test that a verdict fails is not measured again: not if a second pass may follow."""
        return not self.budget.defers

    def check_out_reference(self) -> None:
        """Checks the reference revision out; LaunchError where git cannot. A search tells that of its commits later."""
        if self.reference is not None and self.probe is None:
            self.reference.check_out()

    def add(self, results: Sequence[Result]) -> None:
        """Lists results, and tells the hooks."""
        for result in results:
            attempt = self.attempts.get(result.test, 1)
            remark = (Finding("last_attempt", {"attempt": attempt}),) if attempt > 1 else ()
            remarks = (*result.findings, *remark, *self.leases.finding, *self.archive.on_network(result.measurement))
            self.results.append(replace(result, attempt=attempt, findings=remarks))
            self.extensions.judged(self.results[-1:])

    def remark(self, test: str, key: tuple[str, int], finding: Finding) -> None:
        """Adds a remark to the listed result of a benchmark."""
        for i, each in enumerate(self.results):
            if (each.test, each.measurement.key) == (test, key):
                self.results[i] = replace(each, findings=(*each.findings, finding))

    def paired_launches(self, sections: list[tuple[str, str]]) -> PairedLaunches | None:
        """The launches of a benchmark on both sides; None where there is no reference revision."""
        if self.reference is None:
            return None
        from pytest_ddpperf.against.paired_launches import PairedLaunches

        return PairedLaunches(self.reference, sections, self.candidate)

    @property
    def _others(self) -> list[RevisionSide]:
        return [*filter(None, [self.reference]), *self._of_commits.values()]

    @property
    def _other_launchers(self) -> list[Launchers]:
        return [launchers for side in self._others for launchers in side.every]

    def side_of(self, commit: str) -> RevisionSide:
        """The side of the commit of a baseline; LaunchError where git does not have it."""
        from pytest_ddpperf.against.worktree import baseline_revision

        if commit not in self._of_commits:
            revision = baseline_revision(commit, self._root)
            self._of_commits[commit] = self._side(revision, tests=True, opposite=True, opposite_echo=self._echo)
        return self._of_commits[commit]

    def _side(self, revision: Revision, **how: Any) -> RevisionSide:
        from pytest_ddpperf.against.revision_side import RevisionSide

        setup, asked, threads = self.settings.against_setup, self.settings.preload, self._threads
        nodes = self._nodes
        return RevisionSide(revision, setup, PRELOADED, asked=asked, threads=threads, nodes=nodes, **how)

    def accept_command(self, test: str) -> str:
        """The command that makes the result of a test the baseline that it was compared with."""
        name = self.settings.compared
        save = "--ddpperf-save" if name == DEFAULT_SET else f"--ddpperf-save={name}"
        return " ".join(("pytest", f'"{test}"', *self._options, save))

    def end_test(self, test: str, *, passed: bool) -> None:
        """Stores the results of a test, if that was asked for and it may be."""
        for commit in [*self._of_commits][:-1]:  # the next test's is mostly the last one
            self._of_commits.pop(commit).close()
        for launchers in filter(None, (self._launchers, *self._other_launchers)):
            launchers.keep(KEPT)
        if not self.budget.holds(test):
            self.budget.forget(test)
            self.extensions.tell(test)
        results = [result for result in self.results if result.test == test]
        if self.settings.save is None or not results:
            return
        self._unstored.add(test)
        if not passed:
            return
        stored = self.archive.store(test, results, self.provenance())
        self._unstored.discard(test)
        self.results = [stored.get(id(result), result) for result in self.results]

    def provenance(self) -> Provenance:
        """Today, and what is checked out."""
        from pytest_ddpperf.records.results import Provenance

        commit, dirty = (None, False) if self._code is None else (self._code.commit, self._code.dirty)
        date = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        return Provenance(date=date, commit=commit, dirty=dirty, code=self._digest)

    @cached_property
    def _digest(self) -> str | None:
        """A digest of the code that is measured; None if nothing is saved, or git does not tell it."""
        from pytest_ddpperf.against.git import GitError, code_of

        with contextlib.suppress(GitError):
            baselines = self._root / self.settings.baseline_dir
            return None if self.settings.save is None else code_of(self._root, baselines=baselines)
        return None

    def collect_reports(self) -> None:
        """Asks the hooks for parts of the summary."""
        self.parts = self.extensions.reports(self.results)

    @property
    def _made(self) -> tuple[list[Any], ...]:
        """All that tests have made, each with its ``test``."""
        return self.results, self.searches, self.convergences, self.calibrated, self.predictions, self.advice

    @property
    def silent(self) -> bool:
        """Whether the terminal's summary would be empty."""
        complaints = self.complaints or self.leases.remarks or (self._archive is not None and self._archive.complaints)
        return not any((*self._made, self._recorded, complaints))

    def measured_text(self) -> str:
        """What ``ddpperf.measure`` measured, a line each."""
        measured = [(test, one) for test, several in self.measured.items() for one in several]
        return "".join(
            f"ddpperf.measure: {test} {one.name}, {format_count(one.world_size, 'rank')}: {one.figure}, compared with "
            "nothing\n"
            for test, one in measured
        )

    def summary(self) -> SummaryData:
        """What the terminal's summary is made of."""
        from pytest_ddpperf.reports.summary import SummaryData

        archive, sides = self.archive, (self._launchers, None if self.reference is None else self.reference.launchers)
        told = *self.complaints, *self.leases.remarks
        remarks = dict.fromkeys(remark for side in sides if side is not None for remark in side.remarks)
        return SummaryData(
            results=self.results,
            searches=self.searches,
            convergences=self.convergences,
            calibrated=self.calibrated,
            predictions=self.predictions,
            advice=self.advice,
            complaints=[*told, *remarks, *archive.complaints, *filter(None, [self.budget.complaint])],
            stored=archive.stored(sorted(self._unstored)),
            recorded=self._recorded,
            accepting=self.settings.accepting,
            here=self._here,
            traces=[line for _, line in self.traces],
            added=self.parts,
        )

    @property
    def _here(self) -> str:
        """The candidate of a paired run in words; empty where nothing is known of it, or the run is not paired."""
        if self.reference is None or self._code is None:
            return ""
        from pytest_ddpperf.reports.phrases import commit_text

        revision, code = self.reference.revision, self._code
        same = revision.folder is None and revision.commit == code.commit and not code.dirty
        return commit_text(code.commit, dirty=code.dirty) + ", the same commit without changes" * same

    def document(self, interrupted: str | None = None) -> dict[str, Any]:
        """All results as ``--ddpperf-json`` writes them; ``interrupted``: why tests are missing."""
        from pytest_ddpperf.reports.documents.results import results_document

        found = (self.results, self._code, self.searches, self.calibrated, interrupted)
        foreseen = partial(results_document, predictions=self.predictions, advice=self.advice)
        return foreseen(*found, convergences=self.convergences, date=self.ended)

    @cached_property
    def ended(self) -> str:
        """When the session ended, as ISO 8601 in UTC: the first moment at which that was asked for."""
        return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")

    def record(self) -> None:
        """Adds the run to the history, if that was asked for and anything was measured."""
        if self.settings.history is None or self.settings.calibrate is not None or not self.results:
            return
        number = self.archive.record(self.settings.history, self._code, self.results, self.ended)
        self._recorded = f"this run is number {number} of {self.settings.history}"

    def end_groups(self) -> None:
        """Ends ranks that live on; tests that follow start others."""
        if self.groups is not None:
            self.groups.close()

    def close(self) -> None:
        """Ends the zygotes and whatever still runs below them."""
        self.line.clear()
        try:
            self.end_groups()
            if self._launchers is not None:
                self._launchers.close()
        finally:
            self.leases.close()
            for side in filter(None, (self.candidate, *self._others)):
                side.close()
