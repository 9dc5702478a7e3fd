"""What a test holds: the verbs of the ``ddpperf`` fixture, and the ranks of ``ddpperf_group``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, get_args

import pytest

from pytest_ddpperf.errors import DdpperfError, RankSkipped, Regression, SettingError
from pytest_ddpperf.judge import Judge, screening
from pytest_ddpperf.launch import LaunchResult
from pytest_ddpperf.measure import Budget, Next, Observer, Progress, Run, Variant, measure
from pytest_ddpperf.records import Found, Measurement, Mode, Plan, RankLaunch, Result, ScalingCurve, Verdict
from pytest_ddpperf.reports.failure import failure_text
from pytest_ddpperf.reports.progress import progress_line
from pytest_ddpperf.session import Session
from pytest_ddpperf.settings import Settings, overlay_words
from pytest_ddpperf.strategies import resolve
from pytest_ddpperf.training.loop import LaunchJob, run_launch
from pytest_ddpperf.training.workload import Workload

T = TypeVar("T")
Subject: TypeAlias = "Workload | Callable[[Any], Any]"
JudgeCall: TypeAlias = "Callable[[tuple[Measurement, ...], float, float], Next]"
OWN_WORDS = ("strategy", "name", "samples_per_step", "tokens_per_step")  # what the verbs take besides settings
CUSTOM = "custom"  # the strategy of a step that brings its own


class RankGroup:
    """Ranks for functional tests: fresh ones for every ``run``."""

    def __init__(self, session: Session, settings: Settings, sections: list[tuple[str, str]]) -> None:
        self._session = session
        self._settings = settings
        self._sections = sections

    @property
    def world_size(self) -> int:
        """Number of ranks: the largest of ``--ddpperf-world-size``."""
        return max(self._session.world_sizes(self._settings))

    def run(self, function: Callable[..., T], *args: Any) -> LaunchResult[T]:
        """Calls ``function(ctx, *args)`` on every rank of a fresh process group.

        Returns:
            What each rank returned: ``result.rank(0)``, ``result.values``.

        Raises:
            RankFailed: a rank raised, exited, was killed or blocked; the guilty one comes first.
            PayloadError: function, arguments or a result cannot be sent.
        """
        __tracebackhide__ = True
        try:
            result = self._session.launcher.run(
                function,
                *args,
                world_size=self.world_size,
                backend=self._settings.backend,
                device=self._settings.device,
                timeout=self._settings.timeout,
            )
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        self._sections.extend(result.sections)
        return result


class Ddpperf:
    """Measures distributed training and judges it against the stored baselines."""

    def __init__(self, session: Session, test: str, settings: Settings, sections: list[tuple[str, str]]) -> None:
        self._session = session
        self._test = test
        self._settings = settings
        self._sections = sections
        self._names: set[tuple[str, int]] = set()

    def check(
        self,
        subject: Subject,
        *,
        strategy: str | None = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> Measurement:
        """Measures a benchmark, compares it with its baseline, and fails the test where the verdict says so.

        Args:
            subject: a Workload, or a function ``build(ctx)`` that gives back one training step: a callable, or a
                callable object with ``samples_per_step``, ``tokens_per_step`` and ``close()`` besides.
            strategy: how a Workload is trained in parallel (default: ``ddp``; ``single`` with one rank).
            name: tells the benchmarks of one test apart (default: the strategy).
            samples_per_step: of one rank, where ``subject`` does not say it.
            tokens_per_step: likewise.
            knobs: any setting of a test, e.g. ``world_size=2, tolerance=0.05``: stronger than marker and options.

        Returns:
            What was measured; ``measurement["step_time"].value`` is in seconds.

        Raises:
            Regression: a verdict that fails the test.
            DdpperfError: it could not be measured.
        """
        __tracebackhide__ = True
        settings = self._overlaid(knobs, "check")
        counts = (samples_per_step, tokens_per_step)
        size = self._size(settings, strategy, knobs)
        variant = self._variant(subject, settings, size, strategy=strategy, name=name, counts=counts)
        return self._judged(settings, [variant], None)[0]

    def measure(
        self,
        subject: Subject,
        *,
        strategy: str | None = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> Measurement:
        """Measures a benchmark as ``check`` does, but compares with nothing, stores nothing and lists nothing."""
        __tracebackhide__ = True
        settings = self._overlaid(knobs, "measure")
        counts = (samples_per_step, tokens_per_step)
        size = self._size(settings, strategy, knobs)
        variant = self._variant(subject, settings, size, strategy=strategy, name=name, counts=counts)
        return self._measured(settings, [variant], lambda *_: Next("stop"))[0]

    def scaling(
        self,
        subject: Subject,
        *,
        world_sizes: Iterable[int] | None = None,
        mode: Mode = "weak",
        strategy: str | None = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> ScalingCurve:
        """Measures a benchmark with several numbers of ranks, in alternating launches, and judges each point.

        Args:
            subject: as of ``check``. In strong mode a Workload's batch is the global one, shared out among the ranks;
                a step factory has to do that itself (``ctx.mode`` tells).
            world_sizes: numbers of ranks, ascending; the first is what the others are held against. Default:
                ``--ddpperf-world-size``; where that is one number, 1 and the powers of two up to it.
            mode: ``weak`` keeps the batch of a rank, ``strong`` the global batch.
            strategy: of the points with several ranks (default: ``ddp``); one rank alone trains as ``single``.
            name: tells the curves of one test apart (default: the mode).
            samples_per_step: as of ``check``.
            tokens_per_step: as of ``check``.
            knobs: as of ``check``.

        Returns:
            The curve: ``curve.efficiency(4)``, ``curve.speedup(4)``.

        Raises:
            Regression: a verdict that fails the test.
            DdpperfError: it could not be measured.
        """
        __tracebackhide__ = True
        if mode not in get_args(Mode):
            raise SettingError(f"ddpperf.scaling(mode={mode!r}): expected one of {', '.join(get_args(Mode))}")
        if world_sizes is not None:
            knobs = {**knobs, "world_size": tuple(world_sizes)}
        settings = self._overlaid(knobs, "scaling")
        sizes = self._curve_sizes(settings) if world_sizes is None else self._session.world_sizes(settings)
        counts = (samples_per_step, tokens_per_step)
        variants = [
            self._variant(
                subject,
                settings,
                n,
                strategy="single" if n == 1 and isinstance(subject, Workload) else strategy,
                name=f"{name or mode} w{n}" if sizes[0] == 1 else f"{name or mode} w{n} over w{sizes[0]}",
                counts=counts,
                mode=mode,
            )
            for n in sizes
        ]
        return ScalingCurve(mode, self._judged(settings, variants, mode))

    def _overlaid(self, knobs: dict[str, Any], verb: str) -> Settings:
        return overlay_words(self._settings, knobs, where=f"ddpperf.{verb}", others=OWN_WORDS)

    def _size(self, settings: Settings, strategy: str | None, knobs: dict[str, Any]) -> int:
        """The largest number of ranks asked for; one for a strategy of one rank, unless the call itself says more."""
        alone = strategy is not None and "world_size" not in knobs and resolve(strategy).single_rank
        return 1 if alone else max(self._session.world_sizes(settings))

    def _curve_sizes(self, settings: Settings) -> tuple[int, ...]:
        sizes = self._session.world_sizes(settings)
        if len(sizes) > 1:
            return sizes
        (largest,) = sizes
        powers = (2**i for i in range(largest.bit_length()))
        return tuple(sorted({*(n for n in powers if n <= largest), largest}))

    def _variant(
        self,
        subject: Subject,
        settings: Settings,
        world_size: int,
        *,
        strategy: str | None,
        name: str | None,
        counts: tuple[float | None, float | None],
        mode: Mode | None = None,
    ) -> Variant:
        strategy = _strategy(subject, strategy, world_size)
        return Variant(
            name=name or strategy,
            subject=subject,
            strategy=strategy,
            mode=mode,
            environment=self._session.environment(settings, world_size),
            samples_per_step=counts[0],
            tokens_per_step=counts[1],
        )

    def _require_names(self, variants: Sequence[Variant]) -> None:
        """Refuse what results and baselines of this test could not tell apart."""
        for variant in variants:
            key = (variant.name, variant.environment.world_size)
            if key in self._names:
                raise SettingError(
                    f"{self._test} has two benchmarks named {variant.name!r}; tell them apart with name=..."
                )
            self._names.add(key)

    def _judged(self, settings: Settings, variants: Sequence[Variant], mode: Mode | None) -> tuple[Measurement, ...]:
        """Measures and judges; the results are listed, then the worst verdict fails the test if it must."""
        __tracebackhide__ = True
        self._require_names(variants)
        try:
            found = [self._session.find(self._test, v.name, v.environment) for v in variants]
            variants = [replace(v, steps=_stored_steps(f)) for v, f in zip(variants, found, strict=True)]
            judge = Judge(self._test, settings, found, mode)
            self._measured(settings, variants, judge)
        except DdpperfError as error:
            self._break(settings, variants, error)
            raise
        self._session.results += judge.results
        failing = [result for result in judge.results if result.verdict in settings.failing]
        if failing and not settings.accepting:
            accept = self._session.accept_command(self._test)
            texts = (failure_text(result, accept=accept, failing=settings.failing) for result in failing)
            raise Regression("\n".join(texts))
        return tuple(result.measurement for result in judge.results)

    def _measured(self, settings: Settings, variants: Sequence[Variant], judge: JudgeCall) -> tuple[Measurement, ...]:
        __tracebackhide__ = True
        budget = Budget(settings.steps, settings.warmup, settings.launches, settings.max_time, screening(settings))
        observer = Observer(judge, lambda progress: self._show(variants, progress))
        try:
            return measure(variants, budget, self._runner(settings), observer)
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        finally:
            self._session.line.clear()

    def _runner(self, settings: Settings) -> Run:
        """Launches a variant; keeps what its ranks printed in its first launch for the test's report."""
        seen: set[str] = set()

        def run(variant: Variant, plan: Plan) -> tuple[tuple[RankLaunch, ...], float]:
            __tracebackhide__ = True
            job = LaunchJob(variant.subject, variant.strategy, plan, variant.samples_per_step, variant.tokens_per_step)
            result = self._session.launcher.run(
                run_launch,
                job,
                world_size=variant.environment.world_size,
                backend=variant.environment.backend,
                device=variant.environment.device,
                timeout=settings.timeout,
                mode=variant.mode,
            )
            label = f"{variant.name} w{variant.environment.world_size}"
            if label not in seen:
                seen.add(label)
                self._sections.extend((f"{label}, {title}", text) for title, text in result.sections)
            return result.values, result.seconds

        return run

    def _show(self, variants: Sequence[Variant], progress: Progress) -> None:
        name = f"{self._test} {variants[0].name}"
        self._session.line.show(progress_line(name, progress.launch, progress.of, progress.elapsed, progress.expected))

    def _break(self, settings: Settings, variants: Sequence[Variant], error: DdpperfError) -> None:
        """List benchmarks that could not be measured; skip the test where the user does not want them to fail it."""
        self._session.results += [broken(self._test, v, str(error).partition("\n")[0]) for v in variants]
        if Verdict.BROKEN not in settings.failing:
            pytest.skip(f"broken: {error}")


def broken(test: str, variant: Variant, reason: str) -> Result:
    """The result of a benchmark that could not be measured."""
    measured = Measurement(variant.name, variant.strategy, variant.mode, Plan(0, 0), variant.environment, (), (reason,))
    return Result(test, measured, (), Verdict.BROKEN, None, "not compared", (reason,))


def _strategy(subject: Subject, strategy: str | None, world_size: int) -> str:
    if isinstance(subject, Workload):
        return resolve(strategy or ("ddp" if world_size > 1 else "single")).name
    if strategy is not None:
        raise SettingError(f"strategy={strategy!r}: strategies are for a Workload; this step brings its own")
    if not callable(subject) or hasattr(subject, "parameters"):
        kind = type(subject).__name__
        raise SettingError(f"a {kind} cannot be measured: expected a Workload or a function build(ctx) -> step")
    return CUSTOM


def _stored_steps(found: Found) -> int | None:
    """The number of steps that a comparable baseline was measured with."""
    return found.record.plan.steps if found.record is not None and not found.differs else None
