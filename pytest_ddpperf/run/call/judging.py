"""One call such as ``ddpperf.check``, which verifies, measures and judges variants, and may fail the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pytest

from pytest_ddpperf import errors
from pytest_ddpperf.against.paired_launches import PairedLaunches
from pytest_ddpperf.judge.benchmark import acceptances, broken, unfit, with_accepted
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.metrics.scaling import DeriveSeries, gated_if_paired
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.breakdown import time_text
from pytest_ddpperf.reports.causes import reason_text
from pytest_ddpperf.reports.failure import failures_text
from pytest_ddpperf.reports.findings import broken_reason
from pytest_ddpperf.reports.remarks import cause_in_words
from pytest_ddpperf.run.call import references as refs
from pytest_ddpperf.run.call.benchmark_launches import BenchmarkLaunches
from pytest_ddpperf.run.call.benchmark_run import BenchmarkRun
from pytest_ddpperf.run.call.memory_fit import MemoryFit, under_limit_of
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.run.session.probe import focused
from pytest_ddpperf.settings import DEFAULT_SET, KNOBS

__tracebackhide__ = errors.hidden

ComparedWith: TypeAlias = "refs.PairedReferences | refs.StoredReferences"


class JudgedRun(BenchmarkRun):
    """One call such as ``ddpperf.check(...)`` whose benchmarks get a verdict."""

    _fit: MemoryFit  # of the candidates
    _derive: DeriveSeries  # of the candidates alone, or with the reference
    _beside_baseline = False  # whether the reference is the commit of the stored baselines

    def judged(self, variants: Sequence[Variant], derive: DeriveSeries) -> tuple[Measurement, ...]:
        """Verifies, measures and judges variants; fails the test for a failing verdict. ``derive`` computes metrics."""
        from pytest_ddpperf.analysis.conclusions import concluded
        from pytest_ddpperf.analysis.diagnosis import analysis_of

        if self._paired is not None:
            derive = gated_if_paired(derive)
        self._accepts = acceptances(self._test, self.settings, self._session.extensions.metrics)
        if self._session.probe is not None:
            derive, self._accepts = focused(derive, self._session.probe), []  # a bisection follows every worsening
        self._fit, self._derive = MemoryFit(variants, self.sections), derive
        try:
            self.launches.start(variants)
            if self.settings.calibrate is not None:
                return self._calibrated(self.settings.calibrate)
            fit = {result.measurement.key: result for result in self._results()}
            found = (fit.get(variant.key) or self._unfit(variant) for variant in variants)
            results = tuple(with_accepted(each, self._accepts) for each in found)
        except errors.DdpperfError as error:
            self.progress.request = None  # an earlier interim verdict may have made one
            self._list_broken(variants, error)
            which = error.benchmark[0] if len(variants) > 1 and error.benchmark is not None else ""
            told = errors.extended(error, before=f"{which}: ") if which else error  # each benchmark has a rank 0
            if Verdict.BROKEN not in self.settings.failing:
                pytest.skip(str(told) if isinstance(told, errors.IncorrectTraining) else f"broken: {told}")
            raise told from error.__cause__
        results = self._with_profiles(results)
        spent = self._spent()
        results = concluded([replace(one, spent=spent, step=analysis_of(one.measurement)) for one in results])
        measured = tuple(result.measurement for result in results)
        self._tell_measured([each for each in measured if not each.unfit])
        failing = () if self.settings.accepting else self.settings.failing
        verdicts = [failing_verdict(result, failing) for result in results]
        judged = [
            result if verdict is None else replace(result, failure=reason_text(result, verdict, failing))
            for result, verdict in zip(results, verdicts, strict=True)
        ]
        self._session.add(judged)
        failed = [(one, verdict) for one, verdict in zip(judged, verdicts, strict=True) if verdict is not None]
        if failed:
            line, accept = self._session.line, self._accept_command()
            printed = ("stdout", "stderr")  # of ranks that did not fail
            self.sections[:] = [each for each in self.sections if not each[0].endswith(printed)]
            text = failures_text(failed, accept=accept, failing=failing, width=line.width, verbose=line.tells_more)
            worst, _ = max(failed, key=lambda one: one[1].severity)
            raise errors.Regression(text, summary=cause_in_words(worst))
        return measured

    def _tell_measured(self, measured: Sequence[Measurement]) -> None:
        attempt = self._session.attempts.get(self._test, 1)
        self._session.extensions.measured(self._test, measured, attempt)

    def _accept_command(self) -> str:
        name = self._session.settings.compared
        save = "--ddpperf-save" if name == DEFAULT_SET else f"--ddpperf-save={name}"
        return f"{self._session.command(self._test)} {save}"

    def _with_profiles(self, results: tuple[Result, ...]) -> tuple[Result, ...]:
        """Adds profiles to results that fail their test, if ``profile_on=regression``; returns all results."""
        if self.settings.profile_on == "always" or not self.settings.profile:
            return results
        red = {each.measurement.key for each in results if failing_verdict(each, self.settings.failing) is not None}
        try:
            with self._shown():
                found = self.profiled([each for each in self.prepared_variants if each.key in red])
        except errors.DdpperfError as error:  # the verdict stands
            self._session.outputs.traces.append((self._test, f"{self._test} is not profiled: {error.headline}"))
            return results
        profiles = {each.key: each.profile for each in found if not each.of_reference}
        measured = [replace(each.measurement, profile=profiles.get(each.measurement.key)) for each in results]
        return tuple(replace(each, measurement=one) for each, one in zip(results, measured, strict=True))

    def _unfit(self, variant: Variant) -> Result:
        """Returns the result of a candidate that does not fit into memory, after testing whether its reference fits."""
        reason, counts = self._fit.reasons[variant.key], self.counts.get(variant.key)
        if self._paired is None or self._beside_baseline:
            stored = self._with_baselines([variant])[1][0]
            if stored.record is not None:  # the baseline fitted under its own limit, which decides here, too
                stored = self._with_baselines([under_limit_of(stored.record, variant)])[1][0]
            return unfit(self._test, variant, reason, stored, counts)
        revision, lacking = self._paired.reference.revision, ""
        try:
            self.prepared([replace(variant, of_reference=True)])
        except errors.DdpperfError as error:  # whatever the error is: the others were measured
            lacking = error.headline
        beside = PairedRevision(revision=revision.label, commit=revision.commit, lacking=lacking)
        return unfit(self._test, variant, reason, beside, counts)

    def _results(self) -> tuple[Result, ...]:
        """Measures and judges the candidates that fit into memory; if a reference fails, measures again without it."""
        references = self._references(self._fit.left)
        session = self._session
        # A probe of a bisection asks on which side of its tolerance a commit is.
        margin = EQUIVALENCE_MARGIN if session.probe is None else 1.0
        while True:
            judge = Judge(self._test, self.settings, references, session.tests, margin=margin)
            try:
                self.measure(self.prepared(references.both_sides), judge, compared=references.timed)
            except errors.DdpperfError as error:
                if (instead := self._instead_of(references, error)) is None:
                    raise
                references = instead
            else:
                paired = self._paired
                results = judge.results if paired is None else map(paired.with_imports, judge.results)
                return tuple(map(refs.with_environments, results))

    def _references(self, variants: Sequence[Variant]) -> ComparedWith:
        """Returns the references: another revision, the commit of the baselines, or only the stored baselines."""
        if self._paired is not None and not self._beside_baseline:
            self._learn(self._paired)
            return refs.PairedReferences(
                revision=self._paired.reference.revision,
                variants=tuple(variants),
                derive=self._derive,
                lacking={},
                environment=partial(refs.environment_beside, self._session),
            )
        following, found = self._with_baselines(variants)
        side = (
            refs.side_of_baselines(self._test, found, self.settings, self._session) if self._timed else refs.Unpaired()
        )
        if isinstance(side, refs.Unpaired):
            return self._stored_times(following, found, side)
        for launchers in side.every:
            launchers.follow(self._session.sides.launchers)
        paired = PairedLaunches(side, self.sections, strict=True)
        self._learn(paired)
        self._pair_with(paired, following)
        return refs.PairedReferences(
            revision=side.revision,
            variants=tuple(following),
            derive=gated_if_paired(self._derive),
            lacking={
                each.key: "" for each, stored in zip(following, found, strict=True) if refs.times_of(stored) is None
            },
            baselines=found,
        )

    def _instead_of(self, references: ComparedWith, error: errors.DdpperfError) -> ComparedWith | None:
        """Returns the references with which to measure again after ``error``; None if the call must raise ``error``."""
        if isinstance(error, errors.RankFailed):
            again = self.settings.calibrate is None and self._fit.tries_again(error)
            return self._references(self._fit.left) if again else None
        if isinstance(references, refs.StoredReferences):
            return None
        if isinstance(error, errors.ReferenceFailed):
            if self._beside_baseline:
                self._end_if_needed(refs.cannot_run(references.revision.label, error.headline))
            return replace(references, lacking={**references.lacking, error.benchmark: error.headline})
        stopped = isinstance(error, errors.ReferenceStopped)  # it ran before
        known = stopped or isinstance(error, (errors.LaunchError, errors.SameCode))
        if not (self._beside_baseline and known) or (stopped and self.settings.require_baseline):
            return None
        self._pair_with(None, references.variants)
        reason = f"{error.headline}; run the test again" if stopped else error.headline
        why = refs.Unpaired(reason, lacking=not stopped)
        return self._stored_times(references.variants, references.baselines, why)

    def _stored_times(
        self, variants: Sequence[Variant], baselines: Sequence[StoredBaseline], why: refs.Unpaired
    ) -> refs.StoredReferences:
        """Returns the stored baselines as references. Reports state ``why`` no launch measures their commit."""
        if why.lacking:
            self._end_if_needed(why.reason)
        told = tuple(replace(stored, unpaired=why.reason) for stored in baselines)
        return refs.StoredReferences(baselines=told, both_sides=tuple(variants), derive=self._derive)

    def _learn(self, paired: PairedLaunches) -> None:
        """Copies the ranks' imports and the reference's failures to ``paired`` from the test's earlier run, if any."""
        if self.progress.kept.get("paired") is not paired:
            paired.learn(self.progress.kept.get("paired"))
        self.progress.kept["paired"] = paired

    def _end_if_needed(self, reason: str) -> None:
        """Ends the session if ``require_baseline`` is set; ``reason``: why the baseline's commit cannot be measured."""
        if self.settings.require_baseline:
            told = f"{KNOBS['require_baseline'].option}: {self._test}: only gross slowdowns could fail: {reason}"
            pytest.exit(told, returncode=pytest.ExitCode.USAGE_ERROR)

    def _pair_with(self, paired: PairedLaunches | None, variants: Sequence[Variant]) -> None:
        """Makes later launches run this checkout and the commit of the baselines; with None, only this checkout."""
        self._paired, self._beside_baseline = paired, paired is not None
        times = self.launches.times
        self.launches = BenchmarkLaunches(self._session, self.settings, paired, test=self._test, times=times)
        self.launches.start(variants)

    def _calibrated(self, number: int) -> tuple[Measurement, ...]:
        """Compares each candidate with itself, ``number`` times; returns the last measurements."""
        runs: list[tuple[Result, ...]] = []
        for _ in range(number):
            printed = len(self.sections)
            if runs:  # the fixture has begun the first one
                self._begun = None
                self._session.budget.begin_test(self._test)
            runs.append(self._results())
            if len(runs) > 1:
                del self.sections[printed:]  # the ranks of the first run have printed the same
        timed = (each for each in zip(*runs, strict=True) if each[-1].measurement.launches)  # the others only count
        self._session.outputs.calibrated.extend(Calibrated(test=self._test, results=each) for each in timed)
        self.measured = tuple(result.measurement for result in runs[-1])
        self._tell_measured(self.measured)
        return self.measured

    def _with_baselines(self, variants: Sequence[Variant]) -> tuple[list[Variant], tuple[StoredBaseline, ...]]:
        """Returns the variants, each with its baseline's number of steps (if comparable), and the baselines."""
        found = tuple(self._session.archive.find(self._test, variant) for variant in variants)
        steps = [None if base.differs or base.record is None else base.record.plan.steps for base in found]
        return [replace(variant, steps=each) for variant, each in zip(variants, steps, strict=True)], found

    def _list_broken(self, variants: Sequence[Variant], error: errors.DdpperfError) -> None:
        """Reports benchmarks as broken: only the incorrect ones if ``error`` is IncorrectTraining, otherwise all."""
        if isinstance(error, errors.IncorrectTraining):
            reasons = error.wrong
        else:
            guilty, reason = error.benchmark, error.summary
            others = reason if guilty is None else f"not measured, because {guilty[0]} failed"
            reasons = {variant.key: reason if variant.key == guilty else others for variant in variants}
            reasons.update(self._fit.reasons)
        broken_ones = [variant for variant in variants if variant.key in reasons]
        spent = self._spent()
        results = [broken(self._test, each, reasons[each.key], self.counts.get(each.key)) for each in broken_ones]
        fails = Verdict.BROKEN in self.settings.failing
        self._session.add([replace(one, spent=spent, failure=broken_reason(one) if fails else "") for one in results])

    def _spent(self) -> TimeSpent:
        """Returns the seconds of the call in all runs of its test so far, and adds them to the test's report."""
        self.progress.spent = spent = self._spent_before + self.launches.times.spent
        self.sections.append(("ddpperf time", time_text(spent)))
        return spent
