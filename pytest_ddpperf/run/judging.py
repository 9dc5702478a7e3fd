"""One call of a verb that judges: verified, measured, compared with a reference, listed, and failed if it has to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from pytest_ddpperf.against.paired_launches import PairedLaunches
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.errors import (
    DdpperfError,
    IncorrectTraining,
    LaunchError,
    ReferenceFailed,
    ReferenceStopped,
    Regression,
    SameCode,
    extended,
)
from pytest_ddpperf.judge.benchmark import beside_unfit, broken, unfit
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.judge.judge import Judge, References, StoredReferences
from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.metrics.scaling import DeriveSeries, gated_if_paired
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failures_text
from pytest_ddpperf.reports.time_spent import time_text
from pytest_ddpperf.run.benchmark import BenchmarkRun, JudgeCall
from pytest_ddpperf.run.benchmark_launches import BenchmarkLaunches
from pytest_ddpperf.run.fitting import fitting_results, under_limit_of
from pytest_ddpperf.run.pairing import Unpaired, side_of_baselines, times_of
from pytest_ddpperf.run.probe import focused
from pytest_ddpperf.run.references import Lacking, PairedReferences, cannot_run, environment_beside, with_environments
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import KNOBS


class JudgedRun(BenchmarkRun):
    """A call of a verb whose benchmarks are judged."""

    _unfitting: dict[tuple[str, int], str]  # why candidates do not fit, by benchmark
    _beside_baseline = False  # whether the other side is the commit of the stored baselines

    def judged(self, variants: Sequence[Variant], derive: DeriveSeries) -> tuple[Measurement, ...]:
        """Verifies, measures and judges; the results are listed, then the worst verdict fails the test if it must."""
        __tracebackhide__ = True
        self._unfitting = {}
        if self._paired is not None:
            derive = gated_if_paired(derive)
        if self._session.probe is not None:
            derive = focused(derive, self._session.probe)
        try:
            self.launches.start(variants)
            if self.settings.calibrate is not None:
                return self._calibrated(variants, derive, self.settings.calibrate)
            results = self._fitting_results(variants, derive)
        except DdpperfError as error:
            self.progress.request = None  # whatever an earlier look asked for
            self._list_broken(variants, error)
            which = error.benchmark[0] if len(variants) > 1 and error.benchmark is not None else ""
            told = extended(error, before=f"{which}: ") if which else error  # each benchmark has a rank 0
            if Verdict.BROKEN not in self.settings.failing:
                pytest.skip(str(told) if isinstance(told, IncorrectTraining) else f"broken: {told}")
            raise told from error.__cause__
        results = self._with_profiles(results)
        spent = self._spent()
        results = tuple(replace(result, spent=spent) for result in results)
        measured = tuple(result.measurement for result in results)
        fitting = tuple(each for each in measured if not each.unfit)
        self._session.extensions.measured(self._test, fitting, self._session.attempts.get(self._test, 1))
        self._session.add(results)
        failing = self.settings.failing
        verdicts = [(result, failing_verdict(result, failing)) for result in results]
        failed = [(result, verdict) for result, verdict in verdicts if verdict is not None]
        if failed and not self.settings.accepting:
            accept = self._session.accept_command(self._test)
            raise Regression(failures_text(failed, accept=accept, failing=failing))
        return measured

    def _with_profiles(self, results: tuple[Result, ...]) -> tuple[Result, ...]:
        """The results; those that fail their test have a profile, where only these are to be profiled."""
        __tracebackhide__ = True
        if self.settings.profile_on == "always" or not self.settings.profile:
            return results
        red = {each.measurement.key for each in results if failing_verdict(each, self.settings.failing) is not None}
        try:
            with self._shown():
                found = self.profiled([each for each in self.prepared_variants if each.key in red])
        except DdpperfError as error:  # the verdict stands
            self._session.traces.append((self._test, f"{self._test} is not profiled: {error.headline}"))
            return results
        profiles = {each.key: each.profile for each in found if not each.of_reference}
        return tuple(
            replace(each, measurement=replace(each.measurement, profile=profiles[each.measurement.key]))
            if profiles.get(each.measurement.key) is not None
            else each
            for each in results
        )

    def _fitting_results(self, variants: Sequence[Variant], derive: DeriveSeries) -> tuple[Result, ...]:
        """The results of all candidates; of several, those that run out of memory are left out of measuring."""
        __tracebackhide__ = True
        fitting = fitting_results(lambda left: self._results(left, derive), variants, self._unfitting, self.sections)
        unfit_ones = [name for name, _ in self._unfitting]
        measured = {result.measurement.key: beside_unfit(result, unfit_ones) for result in fitting}
        return tuple(measured.get(variant.key) or self._unfit(variant) for variant in variants)

    def _unfit(self, variant: Variant) -> Result:
        """The result of a candidate that does not fit; one preparing launch tells whether another revision fits."""
        __tracebackhide__ = True
        reason, counts = self._unfitting[variant.key], self.counts.get(variant.key)
        if self._paired is None or self._beside_baseline:
            stored = self._with_baselines([variant])[1][0]
            if stored.record is not None:  # what fitted did so under its own limit: that is the question
                stored = self._with_baselines([under_limit_of(stored.record, variant)])[1][0]
            return unfit(self._test, variant, reason, stored, counts)
        revision, lacking = self._paired.revision, ""
        try:
            self.prepared([replace(variant, of_reference=True)])
        except DdpperfError as error:  # whatever becomes of it: the others were measured
            lacking = error.headline
        beside = PairedRevision(revision=revision.label, commit=revision.commit, lacking=lacking)
        return unfit(self._test, variant, reason, beside, counts)

    def _results(self, variants: Sequence[Variant], derive: DeriveSeries) -> tuple[Result, ...]:
        """The results of the candidates, beside their stored baselines or the reference."""
        __tracebackhide__ = True
        if self._paired is not None and not self._beside_baseline:
            self._learn(self._paired)
            return self._paired_results(self._paired, tuple(variants), derive)
        following, found = self._with_baselines(variants)
        side = side_of_baselines(self._test, found, self.settings, self._session)
        if isinstance(side, RevisionSide):
            paired = self._beside_commit(side, following, found, derive)
            if not isinstance(paired, Unpaired):
                return paired
            side = paired
        if side.lacking:
            self._end_if_needed(side.reason)
        references = StoredReferences(tuple(replace(stored, unpaired=side.reason) for stored in found))
        return self._judgement(following, references, derive)

    def _beside_commit(
        self,
        side: RevisionSide,
        variants: Sequence[Variant],
        baselines: tuple[StoredBaseline, ...],
        derive: DeriveSeries,
    ) -> tuple[Result, ...] | Unpaired:
        """The results beside the stored baselines, times beside their commit; or why that cannot be measured."""
        __tracebackhide__ = True
        for launchers in side.every:
            launchers.follow(self._session.launchers)
        paired = PairedLaunches(side, self.sections, strict=True)
        self._learn(paired)
        self._pair_with(paired, variants)
        untimed = {each.key: "" for each, stored in zip(variants, baselines, strict=True) if times_of(stored) is None}
        references = PairedReferences(
            revision=side.revision,
            variants=tuple(variants),
            derive=gated_if_paired(derive),
            lacking=untimed,
            baselines=baselines,
        )
        try:
            results = self._all_judged(references)
        except ReferenceStopped as error:  # it ran before
            if self.settings.require_baseline:
                raise
            reason = Unpaired(f"{error.headline}; run it again")
        except (LaunchError, SameCode, ReferenceFailed) as error:
            reason = Unpaired(error.headline, lacking=True)
        else:
            return tuple(map(paired.with_imports, results))
        self._pair_with(None, variants)
        return reason

    def _learn(self, paired: PairedLaunches) -> None:
        """Adds what the launches of the first pass have imported."""
        if self.progress.kept.get("paired") is not paired:
            paired.learn(self.progress.kept.get("paired"))
        self.progress.kept["paired"] = paired

    def _end_if_needed(self, reason: str) -> None:
        """Ends the session if times have to be measured beside the commit of a baseline, and cannot be."""
        if self.settings.require_baseline:
            told = f"{KNOBS['require_baseline'].option}: {self._test}: only gross slowdowns could fail: {reason}"
            pytest.exit(told, returncode=pytest.ExitCode.USAGE_ERROR)

    def _pair_with(self, paired: PairedLaunches | None, variants: Sequence[Variant]) -> None:
        """Has the launches from now on be those of this checkout and of the commit of the baselines; None: alone."""
        self._paired, self._beside_baseline = paired, paired is not None
        times = self.launches.times
        self.launches = BenchmarkLaunches(self._session, self.settings, paired, test=self._test, times=times)
        self.launches.start(variants)

    def _paired_results(
        self, paired: PairedLaunches, variants: tuple[Variant, ...], derive: DeriveSeries
    ) -> tuple[Result, ...]:
        """The results beside the reference."""
        __tracebackhide__ = True
        references = PairedReferences(
            revision=paired.revision,
            variants=variants,
            derive=derive,
            lacking={},
            environment=partial(environment_beside, self._session),
        )
        return tuple(with_environments(paired.with_imports(result)) for result in self._all_judged(references))

    def _all_judged(self, references: PairedReferences) -> tuple[Result, ...]:
        """The results of both sides, measured again without each benchmark that the reference cannot run."""
        __tracebackhide__ = True
        results = self._paired_judgement(references)
        while isinstance(results, Lacking):
            if self._beside_baseline:
                self._end_if_needed(cannot_run(references.revision.label, results.reason))
            references = replace(references, lacking={**references.lacking, results.benchmark: results.reason})
            results = self._paired_judgement(references)
        return results

    def _paired_judgement(self, references: PairedReferences) -> tuple[Result, ...] | Lacking:
        """The results beside the reference, or the first benchmark that it cannot run, in whichever launch."""
        __tracebackhide__ = True
        try:
            return self._judgement(references.both_sides, references, references.derive)
        except ReferenceFailed as error:
            if isinstance(error.__cause__, SameCode):
                raise
            return Lacking(benchmark=error.benchmark, reason=error.headline)

    def _judgement(
        self, variants: Sequence[Variant], references: References, derive: DeriveSeries
    ) -> tuple[Result, ...]:
        """The results of variants that are prepared, measured and judged."""
        __tracebackhide__ = True
        variants = self.prepared(variants)
        judge = self._judge(references, derive)
        self.measure(variants, judge, compared=references.timed)
        return judge.results

    def _looked(self, judge: JudgeCall, measured: tuple[Measurement, ...], look: Look) -> Next:
        """What the judge says; the session's budget hears what the benchmark needs."""
        action = super()._looked(judge, measured, look)
        if isinstance(judge, Judge):
            self._session.budget.ask(self.call, judge.results, look)
        return action

    def _resume(self, judge: JudgeCall, earlier: JudgeCall) -> None:
        """Has the judge go on where that of the first pass ended."""
        if isinstance(judge, Judge) and isinstance(earlier, Judge):
            judge.resume(earlier)

    def _judge(self, references: References, derive: DeriveSeries) -> Judge:
        """A judge of the benchmarks that are compared with these references."""
        session = self._session
        # A probe of a bisection asks on which side of its tolerance a commit is.
        margin = EQUIVALENCE_MARGIN if session.probe is None else 1.0
        return Judge(self._test, self.settings, references, derive, session.tests, margin=margin)

    def _calibrated(self, variants: Sequence[Variant], derive: DeriveSeries, number: int) -> tuple[Measurement, ...]:
        """Measures the variants ``number`` times side by side with themselves; gives the last measurements."""
        __tracebackhide__ = True
        runs: list[tuple[Result, ...]] = []
        for _ in range(number):
            printed = len(self.sections)
            if runs:  # the fixture has begun the first one
                self._begun = None
                self._session.budget.begin_test(self._test)
            runs.append(self._results(variants, derive))
            if len(runs) > 1:
                del self.sections[printed:]  # the ranks of the first run have printed the same
        timed = (each for each in zip(*runs, strict=True) if each[-1].measurement.launches)  # the others only count
        self._session.calibrated += [Calibrated(test=self._test, results=each) for each in timed]
        self.measured = tuple(result.measurement for result in runs[-1])
        self._session.extensions.measured(self._test, self.measured, self._session.attempts.get(self._test, 1))
        return self.measured

    def _with_baselines(self, variants: Sequence[Variant]) -> tuple[list[Variant], tuple[StoredBaseline, ...]]:
        """The variants, each with as many steps as its baseline if that is comparable, and the baselines."""
        found = tuple(self._session.archive.find(self._test, variant) for variant in variants)
        comparable = [None if base.differs else base.record for base in found]
        return [
            replace(variant, steps=None if base is None else base.plan.steps)
            for variant, base in zip(variants, comparable, strict=True)
        ], found

    def _list_broken(self, variants: Sequence[Variant], error: DdpperfError) -> None:
        """Lists the benchmarks that train something else, or else all of them, which could not be measured."""
        if isinstance(error, IncorrectTraining):
            reasons = error.wrong
        else:
            guilty, reason = error.benchmark, error.headline
            others = reason if guilty is None else f"not measured, for {guilty[0]} failed"
            reasons = {variant.key: reason if variant.key == guilty else others for variant in variants}
            reasons.update(self._unfitting)
        broken_ones = [variant for variant in variants if variant.key in reasons]
        spent = self._spent()
        results = [broken(self._test, each, reasons[each.key], self.counts.get(each.key)) for each in broken_ones]
        self._session.add([replace(result, spent=spent) for result in results])

    def _spent(self) -> TimeSpent:
        """The seconds of the call until now, which the test's report tells where it fails."""
        spent = self.launches.times.spent
        self.sections.append(("ddpperf time", time_text(spent)))
        return spent
