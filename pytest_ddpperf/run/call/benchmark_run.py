"""One call that measures, such as ``ddpperf.check``: prepares variants of a training, then launches them in rounds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import hidden
from pytest_ddpperf.judge.sequential import Action, Interim
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.metrics import communication
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.progress import progress_line
from pytest_ddpperf.run.call.benchmark_launches import BenchmarkLaunches, TimedLaunches
from pytest_ddpperf.run.call.planning import warmup_of
from pytest_ddpperf.run.call.preparation import prepared, task_text
from pytest_ddpperf.run.call.rounds import Measuring, Observer
from pytest_ddpperf.run.call.time_sheet import TimeSheet
from pytest_ddpperf.run.call.variants import Variant, counted_only
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.run.session.tracebacks import skipping
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training import jobs
from pytest_ddpperf.training.subject import Script

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.judge.judge import Judge
    from pytest_ddpperf.records.acceptance import Acceptance
    from pytest_ddpperf.records.results import Result

__tracebackhide__ = hidden


class BenchmarkRun:
    """One call such as ``ddpperf.check(...)``; ``paired``: the object that also launches the reference, or None."""

    _accepts: Sequence[Acceptance] = ()  # of the call

    def __init__(
        self,
        session: Session,
        test: str,
        settings: Settings,
        sections: list[tuple[str, str]],
        paired: PairedLaunches | None = None,
        *,
        times: TimeSheet | None = None,
    ) -> None:
        self.settings = settings
        self.sections = sections  # titles and texts for the test's report
        self.measured: tuple[Measurement, ...] = ()  # of the candidate
        self.counts: dict[tuple[str, int], Counts] = {}  # of the candidate, also if a benchmark could not be measured
        self.prepared_variants: tuple[Variant, ...] = ()  # last measured, of both sides
        self.call, self.progress = session.budget.next_call(test)
        self._spent_before = self.progress.spent  # in the first pass
        self._session = session
        self._test = test
        self._paired = paired
        self._begun: float | None = None  # when ranks could be launched, after imports and checkouts
        self._measurings = 0
        self._untimed = False  # whether the session's budget had no time for timed launches
        traces = settings.profile
        self._trace_folder = (session.root / traces).resolve() if isinstance(traces, Path) else None  # None: no traces
        self.launches = BenchmarkLaunches(session, settings, paired, test=test, times=times)

    def prepared(self, variants: Sequence[Variant]) -> list[Variant]:
        """Launches ranks that time, count and verify a few steps of each variant; returns the variants with results."""

        def launch(variant: Variant, job: jobs.PrepareJob) -> LaunchResult[jobs.RankPrepared]:
            training = replace(job.training, roots=self._session.sides.roots(reference=variant.of_reference))
            self._show(f"{variant.name}: {task_text(job)}")
            begun, whole = self.launches.times.now(), replace(job, training=training)
            launched: LaunchResult[jobs.RankPrepared]
            launched = self.launches.launch(variant, jobs.PREPARE_LAUNCH, whole, patience=job.parts)
            measuring = [0.0 if rank.timed is None else rank.timed.worked for rank in launched.values]
            spent = zip(measuring, ((rank.counting, rank.verifying) for rank in launched.values), strict=True)
            measured, (counting, verifying) = max(spent, key=lambda seconds: seconds[0] + sum(seconds[1]))
            self.launches.times.note_launch(begun, measuring=measured, counting=counting, verifying=verifying)
            if not job.timed:  # no other launch reports the output of its ranks
                self.sections.extend((f"{variant.label}, {title}", text) for title, text in launched.sections)
            counts = [rank.counts for rank in launched.values if rank.counts is not None]
            if counts and not variant.of_reference:
                self.counts[variant.key] = merged(counts)
            return launched

        # Without timed launches, these alone report the imports of both sides.
        timed = self._timed
        forgetful = not timed and self._paired is not None
        with self._shown():
            self._ready()
            begun = self._session.budget.now()
            known = {} if forgetful else self._session.prepared
            found = prepared(self.settings, variants, launch, known, timed=timed)
        self._session.budget.note_preparation(begun, len({variant.key for variant in variants}))
        self.counts.update({each.key: each.counts for each in found if each.counts and not each.of_reference})
        return found

    @property
    def _timed(self) -> bool:
        """Returns whether this call measures times; without time left in the session's budget, it only counts."""
        self._untimed = self._untimed or self._session.budget.is_over
        return not (self._untimed or self.settings.counts == "only")

    def _ready(self) -> None:
        """Waits until launches are possible. The first call of this method starts the clock for ``max_time``."""
        self.launches.ready()
        self._begun = self._session.budget.now() if self._begun is None else self._begun

    def measure(
        self, variants: Sequence[Variant], judge: Judge | None, *, compared: bool = True
    ) -> tuple[Measurement, ...]:
        """Measures prepared variants side by side until ``judge`` says stop; without a judge, in a few launches."""
        if not self._timed:
            measurements = tuple(map(partial(counted_only, asked=self.settings.counts == "only"), variants))
            if judge is not None:
                judge(measurements, Interim(0.0, 0.0, last=True))
                verdicts = {result.verdict for result in self._accepted(judge)}
                if Verdict.INCONCLUSIVE in verdicts and Verdict.REGRESSED not in verdicts:
                    self._session.budget.leave_untimed(self.call)
        else:
            self._measurings += 1
            with self._shown():
                if self.settings.profile_on == "always":
                    variants = self.profiled(variants)
                self.prepared_variants = tuple(variants)
                self._ready()
                measuring = self._measuring(variants, judge, compared=compared)
                measurements = measuring.measured()
            self.progress.kept[f"measuring {self._measurings}"] = variants, measuring.rounds, judge
        sides = zip(variants, measurements, strict=True)
        self.measured = tuple(measurement for variant, measurement in sides if not variant.of_reference)
        return measurements

    def _measuring(self, variants: Sequence[Variant], judge: Judge | None, *, compared: bool) -> Measuring:
        """Returns an object that runs rounds of launches; it continues the rounds of the test's first run, if any."""
        budget, sides = self._session.budget, self._session.sides
        begun = budget.now() if self._begun is None else self._begun
        shared = budget.share(
            self.call,
            self.settings,
            begun=begun,
            compared=compared and not self.settings.accepting,
            benchmarks=len({variant.key for variant in variants}),
        )
        before, rounds, earlier = self.progress.kept.get(f"measuring {self._measurings}", ((), None, None))
        if _benchmarks(before) != _benchmarks(variants):
            rounds = None
        elif judge is not None:
            judge.resume(earlier)
        nodes = max(variant.environment.nodes for variant in variants)
        on_gpus = variants[0].environment.device == "cuda"
        gpus = sides.gpus(max(variant.world_size for variant in variants)) if on_gpus else ()
        observer = Observer(
            judge=(lambda *_: Action("stop", explain=True)) if judge is None else judge,
            looked=(lambda _: None)
            if judge is None
            else lambda interim: budget.ask(self.call, self._accepted(judge), interim),
            progress=partial(self._tell_progress, variants[0].name),
            watch=lambda: sides.watch(gpus, nodes),
            grouped=self.launches.keep,
        )
        limits, run = self.launches.limits(budget.screening, shared=shared), TimedLaunches(self.launches, self.sections)
        return Measuring(variants, limits, run, observer, budget, rounds)

    def _accepted(self, judge: Judge) -> list[Result]:
        """Returns the judge's results, in which accepted regressions no longer count as failures."""
        from pytest_ddpperf.judge.benchmark import with_accepted

        return [with_accepted(result, self._accepts) for result in judge.results]

    def profiled(self, variants: Sequence[Variant]) -> Sequence[Variant]:
        """Profiles variants and writes traces if settings say so; returns the variants with their profiles."""
        if not self.settings.profile:
            return variants
        found = [each if isinstance(each.subject, Script) else self._profiled(each) for each in variants]
        folder = self._trace_folder
        if folder is not None:
            traced = [each for each in found if not isinstance(each.subject, Script)]
            self._session.outputs.traces.extend((self._test, line) for line in self._written(folder, traced))
        return found

    def _written(self, folder: Path, variants: Sequence[Variant]) -> list[str]:
        """Writes a merged trace and a summary of each variant to ``folder``; returns a line of text on each variant."""
        from pytest_ddpperf.run.call.traces import file_name, write_beside

        lines = []
        reference = {each.key: file_name(self._test, each) for each in variants if each.of_reference}
        for variant in sorted(variants, key=lambda each: not each.of_reference):
            name = file_name(self._test, variant)
            beside = "" if variant.of_reference else reference.get(variant.key, "")
            told = write_beside(folder, name, variant.world_size, beside)
            if beside:
                self.sections.append((f"{variant.label}, traces compared with the reference", "\n\n".join(told)))
            lines.append(f"{self.settings.profile}/{name}_summary.txt: {told[0]}")
        return lines

    def _profiled(self, variant: Variant) -> Variant:
        """Returns the variant with its communication, as the profiler records it in a separate launch."""
        self._show(f"{variant.name}: under the profiler")
        job = self.launches.job(variant, Plan(warmup=warmup_of(variant, self.settings.warmup), steps=1))
        folder, trace = self._trace_folder, None
        if folder is not None:
            from pytest_ddpperf.run.call.traces import file_name

            trace = jobs.TraceJob(str(folder), file_name(self._test, variant))
        begun = self.launches.times.now()
        # Writing a trace may take as long as the steps.
        ranks = self.launches.launch(variant, jobs.PROFILE_LAUNCH, job, trace, patience=1 + (trace is not None)).values
        self.launches.times.note_launch(begun, diagnosing=self.launches.times.now() - begun)
        reasons = dict.fromkeys(rank.no_snapshot for rank in ranks if rank.no_snapshot)
        lacks = f"{variant.label}: no snapshot of the GPU's memory: "
        self._session.outputs.traces.extend((self._test, lacks + reason) for reason in reasons)
        if not communication.saw_work(ranks):
            return replace(variant, findings=(*variant.findings, Finding("empty_profile")))
        return replace(variant, profile=communication.merged(ranks))

    def probe(self, variant: Variant, plan: Plan, memory_limit: int | None) -> Sequence[RankLaunch]:
        """Runs one launch and returns its ranks' reports; ``memory_limit``: bytes per rank, None for no limit."""
        return self.launches.launch(variant, jobs.PROBE_LAUNCH, self.launches.job(variant, plan), memory_limit).values

    def trained(self, variant: Variant, job: jobs.ConvergeJob, which: str) -> Sequence[tuple[jobs.RankTraining, ...]]:
        """Trains in one launch, named ``which`` on the status line; returns each rank's trainings, one per strategy."""
        self._show(f"converge: {which}")
        with self._shown():
            launched = self.launches.launch(variant, jobs.CONVERGE_LAUNCH, job, patience=len(job.strategies) + 1)
        if not job.launch:
            self.sections.extend(
                (f"converge w{variant.world_size}, {title}", text) for title, text in launched.sections
            )
        return launched.values

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Lets launches show a status line in this context, then clears it; skips the test if a rank skips."""
        try:
            with skipping():
                yield
        finally:
            self._session.line.clear()

    def _tell_progress(self, name: str, *figures: Any) -> None:
        *where, last = figures
        self._show(progress_line(name, *where, last=last if self._session.line.tells_more else None))

    def _show(self, text: str) -> None:
        left = self._session.budget.text()
        self._session.line.show(f"{self._test} {left and f'{left}; '}{text}")


def _benchmarks(variants: Sequence[Variant]) -> list[tuple[object, bool]]:
    """Returns, for each variant, the fields that identify its benchmark, and whether it runs the reference's code."""
    return [(variant.identity_fields, variant.of_reference) for variant in variants]
