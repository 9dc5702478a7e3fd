"""The resources of a pytest session: settings, time budget, revisions with their fork servers, results and hooks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.baselines.fingerprint import environment, simulated_environment
from pytest_ddpperf.instruments import deadlines
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import TorchMachine, place
from pytest_ddpperf.launch.environment import late_threads, thread_count
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.run.budget.session_budget import SessionBudget
from pytest_ddpperf.run.session.extensions import Extensions
from pytest_ddpperf.run.session.leases import Leases
from pytest_ddpperf.run.session.sides import Sides
from pytest_ddpperf.run.session.tracebacks import skipping
from pytest_ddpperf.settings import Settings, overlay

if TYPE_CHECKING:
    from pytest_ddpperf.against.revision_side import RevisionSide
    from pytest_ddpperf.against.worktree import Revision
    from pytest_ddpperf.records.results import Result
    from pytest_ddpperf.reports.progress import LiveLine
    from pytest_ddpperf.run.session.archive import Archive
    from pytest_ddpperf.run.session.probe import Probe
    from pytest_ddpperf.run.session.timeouts import TestTimeout

DEFAULT_WORLD_SIZE = 2  # without GPUs
QUICK = {"launches": 2, "max_time": 5}  # the settings of a quick run
_NAMING_CODE = ("save", "against", "against_python", "calibrate", "report", "history")  # settings


class Session:
    """The resources of one pytest run, and the outputs of its tests."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        line: LiveLine,
        command: Callable[[str], str] = "pytest {}".format,
        revision: Revision | None = None,
        *,
        probe: Probe | None = None,
        tests: int = 1,
        hook: Any = None,
        timeout: TestTimeout | None = None,
    ) -> None:
        self.settings, self.root = settings, root
        self.command = command  # returns the command that runs a test again, compared with the same reference
        self.tests = tests  # number of tests that measure: they share the false alarms that a suite may raise
        self.probe = probe  # None if this run belongs to no bisection
        self.line = line  # the terminal's live line, for progress
        self.budget = SessionBudget(settings.budget, tests * (settings.calibrate or 1))
        self.extensions = Extensions(hook, lambda: self.budget.defers)
        self.limited = partial if timeout is None else timeout.limited  # shortens a launch's deadline to its test's
        self.outputs = Outputs(accepting=settings.accepting)
        self.sides = Sides(settings, root, line, revision=revision, probe=probe, before_start=self._read_code)
        self.leases = Leases(settings.gpu_lock_timeout, line.show)
        deadlines.uncaptured = line.uncaptured
        self.prepared: dict[bytes, Any] = {}  # results of preparing trainings, by preparation.identity
        self.attempts: dict[str, int] = {}  # by test that is run again: the number of the present run, from 1
        self._hears = threading.current_thread() is threading.main_thread()
        if self._hears and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # as a CI ends a job that is cancelled
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run ends as by Ctrl-C, and writes its files

    def _read_code(self) -> None:
        """Reads the commit and the digest of the code before the first launch, because the code may change later."""
        if any(getattr(self.settings, name) is not None for name in _NAMING_CODE):
            _ = self.archive.code, self.archive.digest

    @cached_property
    def archive(self) -> Archive:
        """The archive, which holds the stored baselines and the history of results."""
        from pytest_ddpperf.run.session.archive import Archive

        return Archive(self.settings, self.root, self.outputs.stored)

    def _torch(self, settings: Settings, side: RevisionSide | None = None) -> TorchMachine:
        return (side or self.sides).launchers[0].machine(gpus=settings.device != "cpu")

    def forced(self, settings: Settings, *, counts: bool = False) -> Settings:
        """Returns settings, changed for quick runs, simulated ranks or bisections. If ``counts``, counting stays on."""
        stronger: dict[str, object] = {**(QUICK if self.settings.quick else {})}
        if self.probe is not None:
            stronger = dict(self.probe.settings)
        if self.settings.simulate is not None:
            stronger = {"counts": "only", "verify": False}
        if counts and stronger.get("counts") == "off":
            del stronger["counts"]  # saves time only if nothing needs counts
        return overlay(settings, stronger, lambda knob, raw: f"{knob.name}={raw}")

    def world_sizes(self, settings: Settings) -> tuple[int, ...]:
        """Returns the numbers of ranks from the settings; by default one rank per GPU, or 2 without GPUs."""
        if self.settings.simulate is not None:
            return self.settings.simulate
        if settings.world_size is not None:
            return settings.world_size
        nodes = self.sides.nodes
        return (nodes * len(self._torch(settings).gpus.names) or max(nodes, DEFAULT_WORLD_SIZE),)

    def environment(self, settings: Settings, world_size: int, side: RevisionSide | None = None) -> Environment:
        """Returns the hardware and software of ``world_size`` ranks of the candidate, or of the reference ``side``."""
        if self.settings.simulate is not None:
            machine = self.sides.launchers[0].machine(gpus=False)
            return simulated_environment(machine_facts().python, machine, world_size)
        machine = self._torch(settings, side)
        with skipping():
            counts = self.sides.launchers[0].counts(world_size, settings.device, machine)
            placement = place(settings.device, settings.backend, counts[0], machine)
        if placement.device == "cpu":
            if settings.counts != "only":
                self.leases.on_cpu()
        elif self.leases.on_gpus(machine.gpus, counts[0], os.environ, fixed=self.sides.cluster is not None):
            machine = self._torch(settings, side)
        complaints = self.outputs.complaints
        complaints += {placement.remark, late_threads(os.environ, self.sides.threads)} - {"", *complaints}
        gpus, variables = None, dict(settings.env or ())
        if placement.device == "cuda":
            from pytest_ddpperf.instruments.nvml import gpu_facts

            gpus = gpu_facts(self.sides.gpus(counts[0]), machine.gpu_software, {**os.environ, **variables})
        binding = settings.cpu_binding
        facts, threads = machine_facts(), thread_count({**self.sides.threads, **variables})
        found = environment(
            facts, machine, placement, world_size, threads=threads, gpus=gpus, nodes=len(counts), binding=binding
        )
        return replace(found, recorded=self.extensions.recorded(found.recorded))

    def begin_test(self, test: str, attempt: int) -> None:
        """Begins an attempt of a test, and forgets attempts that pytest-rerunfailures made before."""
        self.attempts[test] = attempt
        self.budget.begin_anew(test)
        self.prepared.clear()  # results of an attempt that failed may be wrong
        self.run_again(test)

    def run_again(self, test: str) -> None:
        """Forgets the results of a test that runs again."""
        self.extensions.forget(test)
        self.outputs.forget(test)

    def add(self, results: Sequence[Result]) -> None:
        """Adds results to the outputs, with findings of the session, and calls the hooks."""
        for result in results:
            attempt = self.attempts.get(result.test, 1)
            remark = (Finding("last_attempt", {"attempt": attempt}),) if attempt > 1 else ()
            measured, stored = result.measurement, () if result.baseline is None else result.baseline.series
            compared = [one for one in stored if one.gated and one.scale != "exact" and not one.rules.repeats_step_time]
            unmet = [each for one in compared for each in self.archive.never_met(result.test, measured, one)]
            remarks = (*result.findings, *remark, *unmet, *self.leases.finding, *self.archive.on_network(measured))
            self.outputs.results.append(replace(result, attempt=attempt, findings=remarks))
            self.extensions.judged(self.outputs.results[-1:])

    def end_test(self, test: str, failure: str) -> None:
        """Ends a test, and stores its results if this was requested and no benchmark failed; xfail counts as failed."""
        self.sides.end_test()
        if not self.budget.holds(test):
            self.budget.forget(test)
            self.extensions.tell(test)
        listed = self.outputs.results
        results = [result for result in listed if result.test == test]
        if failure and not any(result.failure for result in results):  # by an assertion of the test itself
            told = {id(result): replace(result, failure=f"its test failed: {failure}") for result in results}
            listed[:] = [told.get(id(result), result) for result in listed]
        if self.settings.save is None or not results:
            return
        self.outputs.stored.failed.add(test)
        if not failure and not any(result.failure or result.verdict is Verdict.BROKEN for result in results):
            stored = self.archive.store(test, results)
            self.outputs.stored.failed.discard(test)
            listed[:] = [stored.get(id(result), result) for result in listed]

    def close(self) -> None:
        """Ends the fork servers and all their child processes."""
        self.line.clear()
        deadlines.uncaptured = nullcontext
        if self._hears and signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            self.sides.close()
        finally:
            self.leases.close()
