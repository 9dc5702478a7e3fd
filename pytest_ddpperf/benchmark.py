"""One benchmark of a test, from its variants to its verdict: verified, measured, judged, listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

import pytest

from pytest_ddpperf.communication import CommunicationProfile
from pytest_ddpperf.counts import Counts, merged
from pytest_ddpperf.errors import DdpperfError, IncorrectTraining, RankSkipped, Regression, SettingError
from pytest_ddpperf.instruments.health.watch import watch_health
from pytest_ddpperf.judge import Judge, Partners, Relate, screening
from pytest_ddpperf.launch import LaunchResult
from pytest_ddpperf.loader_settings import loader_settings
from pytest_ddpperf.measure import Budget, Next, Observer, Progress, Run, Variant, counted_only, measure
from pytest_ddpperf.metrics import profile
from pytest_ddpperf.other_side import Imports, OtherSide, side_by_side
from pytest_ddpperf.records import Measurement, Plan, RankLaunch
from pytest_ddpperf.reports.failure import failure_text
from pytest_ddpperf.reports.progress import progress_line
from pytest_ddpperf.results import Found, Result
from pytest_ddpperf.session import Session
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies import modules_of
from pytest_ddpperf.training.correctness import Discrepancy, Verification, VerifyJob, discrepancy_text, verify_launch
from pytest_ddpperf.training.counting import count_launch
from pytest_ddpperf.training.limit import probe_launch
from pytest_ddpperf.training.loop import LaunchJob, run_launch
from pytest_ddpperf.training.profiling import profile_launch
from pytest_ddpperf.units import format_count
from pytest_ddpperf.verdict import Verdict

T = TypeVar("T")
JudgeCall: TypeAlias = "Callable[[tuple[Measurement, ...], float, float], Next]"


class Benchmarks:
    """Runs the benchmarks of one test.

    Attributes:
        last: the measurement that was made last.

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
        self._imports: Imports | None = None  # while this side and another one are measured side by side
        self.last: Measurement | None = None

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
        try:
            variants = self._verified(settings, variants)
            other = self._session.other
            if other is None:
                found = [self._find(v) for v in variants]
                variants = [replace(v, steps=_stored_steps(f)) for v, f in zip(variants, found, strict=True)]
                results = self._results(settings, variants, found, relate)
            else:
                results = self._side_by_side(settings, variants, relate, other)
        except IncorrectTraining as error:
            self._skip_unless_failing(settings, error)
            raise
        except DdpperfError as error:
            self._list_broken(variants, error)
            self._skip_unless_failing(settings, error)
            raise
        self._session.results += results
        failing = [result for result in results if result.verdict in settings.failing]
        if failing and not settings.accepting:
            accept = self._session.accept_command(self._test)
            texts = (failure_text(result, accept=accept, failing=settings.failing) for result in failing)
            raise Regression("\n".join(texts))
        return tuple(result.measurement for result in results)

    def _results(
        self, settings: Settings, variants: Sequence[Variant], found: Sequence[Found] | Partners, relate: Relate
    ) -> tuple[Result, ...]:
        __tracebackhide__ = True
        judge = Judge(self._test, settings, found, relate)
        self.measured(settings, self.counted(settings, variants), judge)
        return judge.results

    def _side_by_side(
        self, settings: Settings, variants: Sequence[Variant], relate: Relate, other: OtherSide
    ) -> tuple[Result, ...]:
        __tracebackhide__ = True
        self._imports = Imports(other, self._sections)
        try:
            results = side_by_side(
                other.revision, variants, relate, lambda both, found: self._results(settings, both, found, relate)
            )
            return tuple(map(self._imports.told, results))
        finally:
            self._imports = None

    def measured(self, settings: Settings, variants: Sequence[Variant], judge: JudgeCall) -> tuple[Measurement, ...]:
        """Measures the variants side by side until the judge is content."""
        __tracebackhide__ = True
        if settings.counted_only:
            measurements = tuple(map(counted_only, variants))
            judge(measurements, 0.0, 0.0)
            self.last = _last(variants, measurements)
            return measurements
        variants = self._profiled(settings, variants)
        budget = Budget(settings.steps, settings.warmup, settings.launches, settings.max_time, screening(settings))
        observer = Observer(
            judge,
            lambda progress: self._show(variants, progress),
            watch=lambda: watch_health(self._session.launcher.pid, gpus=variants[0].environment.device == "cuda"),
        )
        try:
            measurements = measure(variants, budget, self._runner(settings), observer)
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        finally:
            self._session.line.clear()
        self.last = _last(variants, measurements)
        return measurements

    def probe(self, settings: Settings, variant: Variant, plan: Plan, memory_limit: int | None) -> Sequence[RankLaunch]:
        """What the ranks of one launch report that may use so many bytes each; None for what the device has.

        Raises:
            RankFailed: a rank failed; ``out_of_memory`` tells whether for want of memory.
        """
        __tracebackhide__ = True
        job = self._job(replace(settings, communication=False), variant, plan)  # it keeps a copy of what is trained
        return self._launch(settings, variant, probe_launch, job, memory_limit).values

    def _verified(self, settings: Settings, variants: Sequence[Variant]) -> list[Variant]:
        """The variants, each held against a single process where that can be done.

        Raises:
            IncorrectTraining: some differ; they are listed as broken, and all of them are named.
        """
        __tracebackhide__ = True
        verified, wrong = [], []
        try:
            for variant in variants:
                found = self._verification(settings, variant)
                if found.discrepancy is not None:
                    wrong.append(IncorrectTraining(_incorrect(variant, found.discrepancy)))
                    self._list_broken([variant], wrong[-1])
                notes = [
                    *([f"not held against a single process: {found.unverified}"] if found.unverified else []),
                    *([f"against a single process: {found.leniency}"] if found.leniency else []),
                ]
                verified.append(replace(variant, findings=(*variant.findings, *notes)))
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        finally:
            self._session.line.clear()
        if wrong:
            raise IncorrectTraining("\n".join(map(str, wrong)))
        return verified

    def counted(self, settings: Settings, variants: Sequence[Variant]) -> list[Variant]:
        """The variants with what one of their steps does, counted in a launch of their own, where that is wanted."""
        __tracebackhide__ = True
        if not (settings.counted or settings.counted_only):
            return list(variants)
        try:
            return [replace(variant, counts=self._counts(settings, variant)) for variant in variants]
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        finally:
            self._session.line.clear()

    def _counts(self, settings: Settings, variant: Variant) -> Counts:
        __tracebackhide__ = True
        self._session.line.show(f"{self._test} {variant.name}: counting")
        job = self._job(settings, variant, Plan(settings.warmup, 1))
        return merged(self._launch(settings, variant, count_launch, job).values)

    def _profiled(self, settings: Settings, variants: Sequence[Variant]) -> list[Variant]:
        """The variants with their communication as the profiler sees it, in a launch of its own, where wanted."""
        __tracebackhide__ = True
        if not settings.profile:
            return list(variants)
        try:
            return [replace(variant, profile=self._profile(settings, variant)) for variant in variants]
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        finally:
            self._session.line.clear()

    def _profile(self, settings: Settings, variant: Variant) -> CommunicationProfile:
        __tracebackhide__ = True
        self._session.line.show(f"{self._test} {variant.name}: under the profiler")
        job = self._job(settings, variant, Plan(settings.warmup, 1))
        return profile.merged(self._launch(settings, variant, profile_launch, job).values)

    def _verification(self, settings: Settings, variant: Variant) -> Verification:
        __tracebackhide__ = True
        if not settings.verify or variant.strategy is None:
            return Verification()
        self._session.line.show(f"{self._test} {variant.name}: comparing with a single process")
        job = VerifyJob(variant.subject, variant.strategy, settings)
        return self._launch(settings, variant, verify_launch, job).rank(0)

    def _runner(self, settings: Settings) -> Run:
        """Launches a variant; keeps what its ranks printed in its first launch for the test's report.

        What the first launch picked holds for all later ones, of other variants too: what is compared loads alike.
        """
        launched: Counter[str] = Counter()
        picked: dict[int, tuple[str, str]] = {}

        def run(variant: Variant, plan: Plan, *, diagnosed: bool) -> tuple[tuple[RankLaunch, ...], float]:
            __tracebackhide__ = True
            label = f"{variant.name} w{variant.environment.world_size}" + ", other revision" * variant.other
            size = variant.environment.world_size
            loader = loader_settings(picked[size][0]) if size in picked else settings.loader
            job = self._job(replace(settings, loader=loader), variant, plan)
            result = self._launch(
                settings, variant, run_launch, replace(job, seed=launched[label], diagnosed=diagnosed)
            )
            launched[label] += 1
            if launched[label] == 1:
                self._sections.extend((f"{label}, {title}", text) for title, text in result.sections)
            first, *others = result.values
            if first.picked is not None:
                picked[size] = first.picked
            return (replace(first, picked=picked.get(size)), *others), result.seconds

        return run

    def _job(self, settings: Settings, variant: Variant, plan: Plan) -> LaunchJob:
        counts = (variant.samples_per_step, variant.tokens_per_step)
        return LaunchJob(variant.subject, variant.strategy, settings, plan, *counts)

    def _launch(
        self, settings: Settings, variant: Variant, function: Callable[..., T], *args: object
    ) -> LaunchResult[T]:
        """Calls ``function(ctx, *args)`` on fresh ranks of the variant's group."""
        __tracebackhide__ = True
        run = self._session.launcher.run
        if self._imports is not None:
            run = partial(self._imports.run, run, variant)
        return run(
            function,
            *args,
            world_size=variant.environment.world_size,
            backend=variant.environment.backend,
            device=variant.environment.device,
            timeout=settings.timeout,
            mode=variant.mode,
            preload=modules_of(variant.strategy),
        )

    def _find(self, variant: Variant) -> Found:
        return self._session.find(self._test, variant.name, variant.environment, variant.strategy_text, variant.recipe)

    def _show(self, variants: Sequence[Variant], progress: Progress) -> None:
        name = f"{self._test} {variants[0].name}"
        self._session.line.show(progress_line(name, progress.launch, progress.of, progress.elapsed, progress.expected))

    def _list_broken(self, variants: Sequence[Variant], error: DdpperfError) -> None:
        self._session.results += [broken(self._test, v, _reason(error)) for v in variants]

    def _skip_unless_failing(self, settings: Settings, error: DdpperfError) -> None:
        if Verdict.BROKEN not in settings.failing:
            pytest.skip(str(error) if isinstance(error, IncorrectTraining) else f"broken: {error}")


def _incorrect(variant: Variant, found: Discrepancy) -> str:
    env = variant.environment
    group = f"{format_count(env.world_size, 'rank')}, {env.backend}"
    return f"{discrepancy_text(found)}\n  benchmark {variant.name}, {group}"


def _reason(error: DdpperfError) -> str:
    """The error's first line, without the verdict, which the result has itself."""
    return str(error).partition("\n")[0].removeprefix("broken: ")


def broken(test: str, variant: Variant, reason: str) -> Result:
    """The result of a benchmark that could not be measured."""
    measured = Measurement(
        name=variant.name,
        strategy=variant.strategy_text,
        mode=variant.mode,
        plan=Plan(0, 0),
        environment=variant.environment,
        launches=(),
        findings=(reason,),
        recipe=variant.recipe,
    )
    return Result(test, measured, (), Verdict.BROKEN, None, "not compared", (reason,))


def _last(variants: Sequence[Variant], measurements: Sequence[Measurement]) -> Measurement:
    """The last measurement of this side."""
    return [one for variant, one in zip(variants, measurements, strict=True) if not variant.other][-1]


def _stored_steps(found: Found) -> int | None:
    """The number of steps that a comparable baseline was measured with."""
    return found.record.plan.steps if found.record is not None and not found.differs else None
