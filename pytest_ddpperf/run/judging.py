"""One call of a verb that judges: verified, measured, compared with a reference, listed, and failed if it has to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pytest_ddpperf.against.paired_launches import PairedLaunches
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.errors import DdpperfError, IncorrectTraining, ReferenceFailed, Regression, extended
from pytest_ddpperf.judge.benchmark import beside_unfit, broken, settled, unfit
from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN, UNSPENT
from pytest_ddpperf.judge.judge import Judge, References, StoredReferences, accepted_worsening
from pytest_ddpperf.judge.sequential import Next
from pytest_ddpperf.metrics.scaling import DeriveSeries, gated_if_paired
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Measurement, Spread
from pytest_ddpperf.records.results import PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failures_text
from pytest_ddpperf.reports.time_spent import time_text
from pytest_ddpperf.run.benchmark import BenchmarkRun
from pytest_ddpperf.run.calibrate import calibrated, repeated
from pytest_ddpperf.run.fitting import fitting_results, under_limit_of
from pytest_ddpperf.run.probe import focused
from pytest_ddpperf.run.references import Lacking, PairedReferences, environment_beside, with_environments
from pytest_ddpperf.run.settling import same_files, side_of_baselines, stopped_by, times_of, why_unsettled
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings


class JudgedRun(BenchmarkRun):
    """A call of a verb whose benchmarks are judged."""

    _unfitting: dict[tuple[str, int], str]  # why candidates do not fit, by benchmark

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
            if self.part.silent:  # the last run tells
                self.part.kept.need = None
                self.part.end_silently(self.launches.times.spent, self._paired)
                raise
            self._list_broken(variants, error)
            which = error.benchmark[0] if len(variants) > 1 and error.benchmark is not None else ""
            told = extended(error, before=f"{which}: ") if which else error  # each benchmark has a rank 0
            if Verdict.BROKEN not in self.settings.failing:
                pytest.skip(str(told) if isinstance(told, IncorrectTraining) else f"broken: {told}")
            raise told from error.__cause__
        if self.part.silent:
            self.part.end_silently(self.launches.times.spent, self._paired)
            return tuple(result.measurement for result in results)
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
            self._session.traces.append(f"{self._test} is not profiled: {error.headline}")
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
        if self._paired is None:
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
        if self._paired is not None:
            if self.part.before is not None:
                self._paired.learn(self.part.before.paired)
            return self._paired_results(self._paired, tuple(variants), derive)
        following, found = self._with_baselines(variants)
        return self._stored_results(following, StoredReferences(found), derive)

    def _stored_results(
        self, variants: Sequence[Variant], references: StoredReferences, derive: DeriveSeries
    ) -> tuple[Result, ...]:
        """The results beside stored baselines; the times that these leave open are settled beside their commit."""
        __tracebackhide__ = True
        side = side_of_baselines(self._test, references.baselines, self.settings, self._session)
        learned = partial(self._session.archive.scatter, variants[0].environment, self._session.results)
        scatter = self.part.scatter(learned)
        variants = self.prepared(variants)
        judge = self._judge(references, derive, scatter, settles=isinstance(side, RevisionSide))
        self.measure(variants, judge, compared=references.timed, first=judge.first_look)
        stored = judge.results
        if self.part.silent:
            return stored
        if judge.settling and isinstance(side, RevisionSide):
            beside = self._beside_commit(side, variants, references.baselines, derive, judge)
            if not isinstance(beside, Finding):
                pairs = zip(stored, references.baselines, beside, strict=True)
                return tuple(settled(*pair) if times_of(pair[1]) else pair[0] for pair in pairs)
            side, rest = beside, self._rest(stored[0].seconds)
            judge = self._judge(references, derive, scatter, settings=rest.settings, after=judge)
            rest.launches.start(variants)
            rest.measure(variants, judge, compared=references.timed)
            self.measured = rest.measured
        return tuple(
            replace(result, findings=(*result.findings, *why_unsettled(result, side))) for result in judge.results
        )

    def _rest(self, spent: float, paired: PairedLaunches | None = None, **settings: Any) -> JudgedRun:
        """A call for the rest of the time; half of a time that is not dealt out is left in any case."""
        left = self.part.rest(self.settings.max_time, spent)
        settings = {"max_time": left, "profile": False, **settings}
        changed = replace(self.settings, **settings)
        times = self.launches.times
        run = JudgedRun(self._session, self._test, changed, self.sections, paired, times=times, part=self.part)
        run.rest = True
        return run

    def _beside_commit(
        self,
        side: RevisionSide,
        variants: Sequence[Variant],
        baselines: Sequence[StoredBaseline],
        derive: DeriveSeries,
        after: Judge,
    ) -> tuple[Result, ...] | Finding:
        """The results beside the commit of the baselines, or why there are none."""
        __tracebackhide__ = True
        paired = PairedLaunches(side, self.sections, strict=True)
        run = self._rest(after.results[0].seconds, paired, tolerance=accepted_worsening(self.settings))
        # Both sides have as many steps as fit now: those of the baseline's launches may take long today.
        free = tuple(replace(variant, steps=None) for variant in variants)
        untimed = {each.key: "" for each, stored in zip(free, baselines, strict=True) if times_of(stored) is None}
        derive = gated_if_paired(derive)
        references = PairedReferences(revision=side.revision, variants=free, derive=derive, lacking=untimed)
        judge = self._judge(references, derive, settings=run.settings, after=after)
        for launchers in side.every:
            launchers.follow(self._session.launchers)
        try:
            run.launches.start(free)
            run.measure(references.both_sides, judge, f", beside {side.revision.label}")
        except DdpperfError as error:  # what was measured beside the stored baseline stands
            return stopped_by(error)
        if paired.same_files:
            return same_files()
        self.measured = run.measured
        return tuple(map(paired.with_imports, judge.results))

    def _paired_results(
        self, paired: PairedLaunches, variants: tuple[Variant, ...], derive: DeriveSeries
    ) -> tuple[Result, ...]:
        """The results beside the reference, measured again without each benchmark that the reference cannot run."""
        __tracebackhide__ = True
        references = PairedReferences(
            revision=paired.revision,
            variants=variants,
            derive=derive,
            lacking={},
            environment=partial(environment_beside, self._session),
        )
        results = self._paired_judgement(references)
        while isinstance(results, Lacking):
            references = replace(references, lacking={**references.lacking, results.benchmark: results.reason})
            results = self._paired_judgement(references)
        return tuple(with_environments(paired.with_imports(result)) for result in results)

    def _paired_judgement(self, references: PairedReferences) -> tuple[Result, ...] | Lacking:
        """The results beside the reference, or the first benchmark that it cannot run, in whichever launch."""
        __tracebackhide__ = True
        try:
            return self._judgement(references.both_sides, references, references.derive)
        except ReferenceFailed as error:
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

    def _judge(
        self,
        references: References,
        derive: DeriveSeries,
        scatter: Spread | None = None,
        *,
        settings: Settings | None = None,
        settles: bool = False,
        after: Judge | None = None,
    ) -> Judge:
        """A judge of the benchmarks that are compared with these references, ``after`` one of other launches."""
        session = self._session
        return Judge(
            self._test,
            self.settings if settings is None else settings,
            references,
            derive,
            session.tests,
            # A probe of a bisection asks on which side of its tolerance a commit is.
            margin=EQUIVALENCE_MARGIN if session.probe is None else 1.0,
            scatter=scatter,
            settles=settles,
            spent=0.0 if after is None else after.results[0].seconds,
            proofs=UNSPENT if after is None else after.proofs.on_others,
        )

    def _calibrated(self, variants: Sequence[Variant], derive: DeriveSeries, number: int) -> tuple[Measurement, ...]:
        """Measures the variants ``number`` times and compares them with themselves; gives all launches together."""
        __tracebackhide__ = True

        def run(variants: Sequence[Variant], turn: int) -> tuple[Measurement, ...]:
            __tracebackhide__ = True
            printed = len(self.sections)
            measured = self.measure(variants, lambda *_: Next("stop"), f", run {turn} of {number}")
            if turn > 1:
                del self.sections[printed:]  # the ranks of the first run have printed the same
            return measured

        variants = self.prepared(self._with_baselines(variants)[0])
        if self.settings.counted_only:
            return self.measure(variants, lambda *_: Next("stop"))  # counts have no noise
        runs = repeated(variants, number, run)
        self._session.calibrated += calibrated(self._test, self.settings, runs, derive, self._session.provenance())
        self.measured = derive(runs.together)
        self._session.extensions.measured(self._test, self.measured, self._session.attempts.get(self._test, 1))
        return self.measured

    def _with_baselines(self, variants: Sequence[Variant]) -> tuple[list[Variant], tuple[StoredBaseline, ...]]:
        """The variants, each with as many steps as its baseline if that is comparable, and the baselines."""
        found = tuple(self._session.archive.find(self._test, variant) for variant in variants)
        comparable = [None if base.differs else base.record for base in found]
        stored = self.settings.save is not None or self.settings.calibrate is not None
        return [
            replace(
                variant,
                steps=None if base is None else base.plan.steps,
                controlled=self.settings.control and (stored or (base is not None and base.controlled)),
            )
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
