"""One call of a verb that judges: verified, measured, compared with a reference, listed, and failed if it has to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from pytest_ddpperf.errors import DdpperfError, IncorrectTraining, ReferenceFailed, Regression
from pytest_ddpperf.judge.benchmark import broken
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.judge.judge import Judge, References, StoredReferences
from pytest_ddpperf.judge.sequential import Next
from pytest_ddpperf.metrics.relating import DeriveSeries, gated_if_paired
from pytest_ddpperf.records.measurement import Environment, Measurement, Spread
from pytest_ddpperf.records.results import Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failure_text
from pytest_ddpperf.run.benchmark import BenchmarkRun
from pytest_ddpperf.run.calibrate import calibrated, repeated
from pytest_ddpperf.run.paired import PairedReferences, paired_results
from pytest_ddpperf.run.probe import Probe, focused
from pytest_ddpperf.run.variant import Variant


class JudgedRun(BenchmarkRun):
    """A call of a verb whose benchmarks are judged."""

    def judged(self, variants: Sequence[Variant], derive: DeriveSeries) -> tuple[Measurement, ...]:
        """Verifies, measures and judges; the results are listed, then the worst verdict fails the test if it must."""
        __tracebackhide__ = True
        if self._paired is not None:
            derive = gated_if_paired(derive)
        if self._session.probe is not None:
            derive = partial(_focused, derive, self._session.probe)
        try:
            self.passes.start(variants)
            if self._settings.calibrate is not None:
                return self._calibrated(variants, derive, self._settings.calibrate)
            results = self._results(variants, derive)
        except IncorrectTraining as error:
            wrong = [variant for variant in variants if variant.key in error.wrong]
            self._session.add([broken(self._test, v, error.wrong[v.key]) for v in wrong])
            self._skip_unless_failing(error)
            raise
        except DdpperfError as error:
            self._list_broken(variants, error)
            if len(variants) > 1 and error.benchmark is not None:
                error.extend(before=f"{error.benchmark[0]}: ")  # each has a rank 0
            self._skip_unless_failing(error)
            raise
        measured = tuple(result.measurement for result in results)
        self._session.extensions.measured(self._test, measured)
        self._session.add(results)
        self._fail_if_due(results)
        return measured

    def _results(self, variants: Sequence[Variant], derive: DeriveSeries) -> tuple[Result, ...]:
        """The results of the candidates, beside their stored baselines or the other revision."""
        __tracebackhide__ = True
        if self._paired is None:
            found = tuple(self._session.archive.find(self._test, variant) for variant in variants)
            return self._judgement(_following(variants, found), StoredReferences(found), derive)

        def attempt(both: Sequence[Variant], references: PairedReferences) -> tuple[Result, ...] | ReferenceFailed:
            __tracebackhide__ = True
            try:
                return self._judgement(both, references, derive)
            except ReferenceFailed as error:
                return error

        results = paired_results(self._paired.revision, variants, derive, attempt)
        return tuple(map(self._paired.with_imports, results))

    def _judgement(
        self, variants: Sequence[Variant], references: References, derive: DeriveSeries
    ) -> tuple[Result, ...]:
        """The results of variants that are counted, measured and judged."""
        __tracebackhide__ = True
        judge = Judge(
            self._test,
            self._settings,
            references,
            derive,
            self._session.tests,
            # A probe of a bisection asks on which side of its tolerance a commit is.
            margin=EQUIVALENCE_MARGIN if self._session.probe is None else 1.0,
            scatter=None if references.paired else self._scatter(variants[0].environment),
        )
        self.measure(self.passes.prepared(variants), judge, compared=references.timed)
        return judge.results

    def _calibrated(self, variants: Sequence[Variant], derive: DeriveSeries, number: int) -> tuple[Measurement, ...]:
        """Measures the variants so many times and holds them against themselves; gives all launches together."""
        __tracebackhide__ = True

        def run(variants: Sequence[Variant], turn: int) -> tuple[Measurement, ...]:
            __tracebackhide__ = True
            printed = len(self._sections)
            measured = self.measure(variants, lambda *_: Next("stop"), f", run {turn} of {number}")
            if turn > 1:
                del self._sections[printed:]  # what the ranks of the first run have printed, once more
            return measured

        found = [self._session.archive.find(self._test, variant) for variant in variants]
        variants = self.passes.prepared(_following(variants, found))
        if self._settings.counted_only:
            return self.measure(variants, lambda *_: Next("stop"))  # counts have no noise
        runs = repeated(variants, number, run)
        self._session.calibrated += calibrated(self._test, self._settings, runs, derive, self._session.provenance())
        self.measured = derive(runs.together)
        self._session.extensions.measured(self._test, self.measured)
        return self.measured

    def _scatter(self, environment: Environment) -> Spread | None:
        """By how much launches that run alone scatter here, as far as anything tells."""
        return self._session.archive.scatter(environment, self._session.results)

    def _fail_if_due(self, results: Sequence[Result]) -> None:
        """Fail the test for the verdicts that have to."""
        __tracebackhide__ = True
        failing = [result for result in results if result.verdict in self._settings.failing]
        if failing and not self._settings.accepting:
            accept = self._session.accept_command(self._test)
            texts = (failure_text(result, accept=accept, failing=self._settings.failing) for result in failing)
            raise Regression("\n\n".join(texts))

    def _list_broken(self, variants: Sequence[Variant], error: DdpperfError) -> None:
        guilty, reason = error.benchmark, str(error).partition("\n")[0]
        others = reason if guilty is None else f"not measured, for {guilty[0]} failed"
        self._session.add([broken(self._test, v, reason if v.key == guilty else others) for v in variants])

    def _skip_unless_failing(self, error: DdpperfError) -> None:
        if Verdict.BROKEN not in self._settings.failing:
            pytest.skip(str(error) if isinstance(error, IncorrectTraining) else f"broken: {error}")


def _focused(derive: DeriveSeries, probe: Probe, measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    return focused(derive(measured), probe)


def _following(variants: Sequence[Variant], found: Sequence[StoredBaseline]) -> list[Variant]:
    """The variants, each with as many steps as its baseline."""
    return [replace(variant, steps=_stored_steps(stored)) for variant, stored in zip(variants, found, strict=True)]


def _stored_steps(stored: StoredBaseline) -> int | None:
    """The number of steps that a comparable baseline was measured with."""
    return stored.record.plan.steps if stored.record is not None and not stored.differs else None
