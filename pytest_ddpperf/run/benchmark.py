"""One benchmark of a test, from its variants to its verdict: prepared, measured, judged, listed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pytest

from pytest_ddpperf.against.paired_launches import PairedLaunches
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.errors import DdpperfError, IncorrectTraining, Regression, SettingError
from pytest_ddpperf.instruments.health.watch import watch_health
from pytest_ddpperf.judge.decision import MARGIN
from pytest_ddpperf.judge.judge import Judge, Partners
from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.metrics.relating import Relate, gated_beside
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.records.results import Found, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failure_text
from pytest_ddpperf.reports.progress import progress_line
from pytest_ddpperf.run.calibrate import calibrated, repeated
from pytest_ddpperf.run.paired import side_by_side
from pytest_ddpperf.run.passes import Passes
from pytest_ddpperf.run.probe import Probe, focused
from pytest_ddpperf.run.rounds import measure
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.run.terms import Observer, Progress
from pytest_ddpperf.run.variant import Variant, counted_only
from pytest_ddpperf.settings import Settings

JudgeCall: TypeAlias = "Callable[[tuple[Measurement, ...], Look], Next]"


class Benchmarks:
    """Runs the benchmarks of one test.

    Attributes:
        last: what the last call measured.
        passes: the launches.

    Args:
        session: launches, finds baselines, keeps results.
        test: pytest node id.
        sections: titles and texts for the test's report.
    """

    def __init__(self, session: Session, test: str, sections: list[tuple[str, str]]) -> None:
        self._session = session
        self._test = test
        self._sections = sections
        self._names: set[tuple[str, int]] = set()
        self.passes = Passes(session, test, sections)
        self.last: tuple[Measurement, ...] = ()

    def _require_names(self, variants: Sequence[Variant]) -> None:
        """Refuse what results and baselines of this test could not tell apart."""
        for variant in variants:
            key = (variant.name, variant.environment.world_size)
            if key in self._names:
                raise SettingError(
                    f"{self._test} has two benchmarks named {variant.name!r}; tell them apart with name=..."
                )
            self._names.add(key)

    def judged(self, settings: Settings, variants: Sequence[Variant], relate: Relate) -> tuple[Measurement, ...]:
        """Verifies, measures and judges; the results are listed, then the worst verdict fails the test if it must.

        Raises:
            Regression: a verdict that fails the test.
            IncorrectTraining: a strategy does not compute what a single process computes.
            DdpperfError: it could not be measured.
        """
        __tracebackhide__ = True
        self._require_names(variants)
        if self._session.other is not None:
            relate = gated_beside(relate)
        if self._session.probe is not None:
            relate = partial(_focused, relate, self._session.probe)
        try:
            self.passes.start(settings, variants)
            other = self._session.other
            if settings.calibrate is not None:
                return self._calibrated(settings, variants, relate, settings.calibrate)
            if other is None:
                found = [self._find(v) for v in variants]
                results = self._results(settings, _following(variants, found), found, relate)
            else:
                results = self._side_by_side(settings, variants, relate, other)
        except IncorrectTraining as error:
            wrong = [variant for variant in variants if variant.key in error.wrong]
            self._session.results += [broken(self._test, v, _reason(error.wrong[v.key])) for v in wrong]
            self._skip_unless_failing(settings, error)
            raise
        except DdpperfError as error:
            self._list_broken(variants, error)
            if len(variants) > 1 and error.benchmark is not None:
                error.args = (f"{error.benchmark[0]}: {error}",)  # each has a rank 0
            self._skip_unless_failing(settings, error)
            raise
        self._session.results += results
        failing = [result for result in results if result.verdict in settings.failing]
        if failing and not settings.accepting:
            accept = self._session.accept_command(self._test)
            texts = (failure_text(result, accept=accept, failing=settings.failing) for result in failing)
            raise Regression("\n\n".join(texts))
        return tuple(result.measurement for result in results)

    def _results(
        self, settings: Settings, variants: Sequence[Variant], found: Sequence[Found] | Partners, relate: Relate
    ) -> tuple[Result, ...]:
        __tracebackhide__ = True
        # A probe of a bisection asks on which side of its tolerance a commit is.
        margin = MARGIN if self._session.probe is None else 1.0
        judge = Judge(
            self._test,
            settings,
            found,
            relate,
            self._session.tests,
            margin=margin,
            scatter=None if callable(found) else self._session.scatter(variants[0].environment),
        )
        compared = callable(found) or any(map(_has_times, found))
        self.measured(settings, self.passes.prepared(settings, variants), judge, compared=compared)
        return judge.results

    def _calibrated(
        self, settings: Settings, variants: Sequence[Variant], relate: Relate, number: int
    ) -> tuple[Measurement, ...]:
        """Measures the variants so many times and holds them against themselves; gives all launches together."""
        __tracebackhide__ = True

        def run(variants: Sequence[Variant], turn: int) -> tuple[Measurement, ...]:
            __tracebackhide__ = True
            printed = len(self._sections)
            measured = self.measured(settings, variants, lambda *_: Next("stop"), f", run {turn} of {number}")
            if turn > 1:
                del self._sections[printed:]  # what the ranks of the first run have printed, once more
            return measured

        variants = self.passes.prepared(settings, _following(variants, [self._find(v) for v in variants]))
        if settings.counted_only:
            return self.measured(settings, variants, lambda *_: Next("stop"))  # counts have no noise
        runs = repeated(variants, number, run)
        self._session.calibrated += calibrated(self._test, settings, runs, relate, self._session.provenance())
        self.last = relate(runs.together)
        return self.last

    def _side_by_side(
        self, settings: Settings, variants: Sequence[Variant], relate: Relate, other: RevisionSide
    ) -> tuple[Result, ...]:
        __tracebackhide__ = True
        self.passes.imports = PairedLaunches(other, self._sections, self._session.own)
        try:
            results = side_by_side(
                other.revision, variants, relate, lambda both, found: self._results(settings, both, found, relate)
            )
            return tuple(map(self.passes.imports.with_imports, results))
        finally:
            self.passes.imports = None

    def measured(
        self,
        settings: Settings,
        variants: Sequence[Variant],
        judge: JudgeCall,
        which: str = "",
        *,
        compared: bool = True,
    ) -> tuple[Measurement, ...]:
        """Measures the variants side by side until the judge is content.

        Args:
            settings: of the test.
            variants: what to measure.
            judge: says how to go on.
            which: tells the progress line more.
            compared: as of ``budget``.
        """
        __tracebackhide__ = True
        if settings.counted_only:
            measurements = tuple(map(counted_only, variants))
            judge(measurements, Look(0.0, 0.0, last=True))
            self.last = _own(variants, measurements)
            return measurements
        variants = self.passes.profiled(settings, variants)
        observer = Observer(
            judge,
            lambda progress: self._show(f"{variants[0].name}{which}", progress),
            watch=lambda: watch_health(self._session.ranks_parents, gpus=variants[0].environment.device == "cuda"),
            settled=self.passes.keep,
        )
        with self.passes.shown():
            self.passes.ready()
            measurements = measure(
                variants, self.passes.budget(settings, compared=compared), self.passes.timed(settings), observer
            )
        self.last = _own(variants, measurements)
        return measurements

    def _find(self, variant: Variant) -> Found:
        return self._session.find(self._test, variant.name, variant.environment, variant.strategy_text, variant.recipe)

    def _show(self, what: str, progress: Progress) -> None:
        name = f"{self._test} {what}"
        self._session.line.show(progress_line(name, progress.launch, progress.of, progress.elapsed, progress.expected))

    def _list_broken(self, variants: Sequence[Variant], error: DdpperfError) -> None:
        guilty, reason = error.benchmark, _reason(str(error))
        others = reason if guilty is None else f"not measured, for {guilty[0]} failed"
        self._session.results += [broken(self._test, v, reason if v.key == guilty else others) for v in variants]

    def _skip_unless_failing(self, settings: Settings, error: DdpperfError) -> None:
        if Verdict.BROKEN not in settings.failing:
            pytest.skip(str(error) if isinstance(error, IncorrectTraining) else f"broken: {error}")


def _reason(text: str) -> str:
    """An error's first line, without the verdict, which the result has itself."""
    return text.partition("\n")[0].removeprefix("broken: ")


def broken(test: str, variant: Variant, reason: str) -> Result:
    """The result of a benchmark that could not be measured."""
    measured = Measurement(
        name=variant.name,
        strategy=variant.strategy_text,
        mode=variant.mode,
        plan=Plan(warmup=0, steps=0),
        environment=variant.environment,
        launches=(),
        findings=(reason,),
        recipe=variant.recipe,
    )
    return Result(
        test=test,
        measurement=measured,
        comparisons=(),
        verdict=Verdict.BROKEN,
        baseline=None,
        origin="not compared",
        findings=(reason,),
    )


def _focused(relate: Relate, probe: Probe, measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    return focused(relate(measured), probe)


def _own(variants: Sequence[Variant], measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The measurements of this side."""
    return tuple(one for variant, one in zip(variants, measurements, strict=True) if not variant.other)


def _following(variants: Sequence[Variant], found: Sequence[Found]) -> list[Variant]:
    """The variants, each with as many steps as its baseline."""
    return [replace(variant, steps=_stored_steps(one)) for variant, one in zip(variants, found, strict=True)]


def _has_times(found: Found) -> bool:
    """Whether there is a baseline whose times this run can be held against."""
    timed = found.record is not None and any(one.scale != "exact" for one in found.record.series)
    return timed and not found.differs


def _stored_steps(found: Found) -> int | None:
    """The number of steps that a comparable baseline was measured with."""
    return found.record.plan.steps if found.record is not None and not found.differs else None
