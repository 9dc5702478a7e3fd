"""What a test holds: the verbs of the ``ddpperf`` fixture, and the ranks of ``ddpperf_group``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, get_args

import pytest

from pytest_ddpperf.batch_size import PLAN, BatchSize, required_limit, search
from pytest_ddpperf.benchmark import Benchmarks
from pytest_ddpperf.counts import unexpected
from pytest_ddpperf.errors import RankSkipped, SettingError, UnexpectedCount
from pytest_ddpperf.judge import alone, with_efficiency, with_speedup
from pytest_ddpperf.launch import LaunchResult
from pytest_ddpperf.measure import CUSTOM, Next, Variant
from pytest_ddpperf.records import Measurement, Mode, RankLaunch, ScalingCurve, SideBySide, training_text
from pytest_ddpperf.session import Session
from pytest_ddpperf.settings import KNOBS, Settings, overlay_words
from pytest_ddpperf.strategies import Strategy, require_world_size, resolve, row_of
from pytest_ddpperf.training.workload import Workload, located

T = TypeVar("T")
Subject: TypeAlias = "Workload | Callable[[Any], Any]"
GivenStrategy: TypeAlias = "str | Strategy | Callable[..., Any] | None"
OWN_WORDS = ("strategy", "name", "samples_per_step", "tokens_per_step")  # what the verbs take besides settings


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
        self._benchmarks = Benchmarks(session, test, sections)

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The numbers of ranks that the settings ask for, ascending."""
        return self._session.world_sizes(self._settings)

    def check(
        self,
        subject: Subject,
        *,
        strategy: GivenStrategy = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> Measurement:
        """Measures a benchmark, compares it with its baseline, and fails the test where the verdict says so.

        Args:
            subject: a Workload, or a function ``build(ctx)`` that gives back one training step: a callable, or a
                callable object with ``samples_per_step``, ``tokens_per_step`` and ``close()`` besides.
            strategy: how a Workload is trained in parallel (default: ``ddp``; ``single`` with one rank): a name, a name
                with options (``"ddp[bucket_cap_mb=5]"``), a ``Strategy``, or a function of your own
                ``parallelise(module, ctx) -> Parallel``.
            name: tells the benchmarks of one test apart (default: the strategy, and what differs from plain training).
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
        variant = self._variant(subject, settings, size, knobs, strategy=strategy, name=name, counts=counts)
        return self._benchmarks.judged(settings, [variant], alone)[0]

    def measure(
        self,
        subject: Subject,
        *,
        strategy: GivenStrategy = None,
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
        variant = self._variant(subject, settings, size, knobs, strategy=strategy, name=name, counts=counts)
        variants = self._benchmarks.counted(settings, [variant])
        return self._benchmarks.measured(settings, variants, lambda *_: Next("stop"))[0]

    def scaling(
        self,
        subject: Subject,
        *,
        world_sizes: Iterable[int] | None = None,
        mode: Mode = "weak",
        strategy: GivenStrategy = None,
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
                knobs,
                strategy="single" if n == 1 and isinstance(subject, Workload) else strategy,
                name=f"{name or mode} w{n}" if sizes[0] == 1 else f"{name or mode} w{n} over w{sizes[0]}",
                counts=counts,
                mode=mode,
            )
            for n in sizes
        ]
        return ScalingCurve(mode, self._benchmarks.judged(settings, variants, partial(with_efficiency, mode=mode)))

    def compare(
        self,
        subject: Workload,
        *,
        strategies: Iterable[str | Strategy | Callable[..., Any]],
        over: str | Strategy | Callable[..., Any] | None = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> SideBySide:
        """Measures a Workload under several strategies, in alternating launches of one run, and judges each.

        Args:
            subject: a Workload.
            strategies: as ``check`` takes them, two or more.
            over: the one that speedup is held against (default: the first).
            name: tells the comparisons of one test apart: it comes before the names of the strategies.
            samples_per_step: as of ``check``.
            tokens_per_step: as of ``check``.
            knobs: as of ``check``; ``max_time`` is for all strategies together.

        Returns:
            What was measured: ``compared.speedup("bucketed")``, ``compared["bucketed"]["step_time"].value``.

        Raises:
            Regression: a verdict that fails the test.
            DdpperfError: it could not be measured.
        """
        __tracebackhide__ = True
        settings = self._overlaid(knobs, "compare", ("strategies", "over", *OWN_WORDS[1:]))
        if isinstance(strategies, (str, Strategy)) or not isinstance(subject, Workload):
            raise SettingError(
                "ddpperf.compare: expected a Workload and a list of strategies, such as ['naive', 'ddp']"
            )
        chosen = [resolve(strategy) for strategy in strategies]
        base = resolve(over) if over is not None else next(iter(chosen), None)
        if len(set(chosen)) < max(2, len(chosen)) or base not in chosen:
            raise SettingError(
                f"ddpperf.compare(strategies={[str(one) for one in chosen]}, over={str(base)!r}): expected two or more "
                "strategies, each once, and over to be one of them"
            )
        size = max(self._session.world_sizes(settings))
        counts = (samples_per_step, tokens_per_step)
        variants = [
            self._variant(subject, settings, size, knobs, strategy=one, name=None, counts=counts) for one in chosen
        ]
        if name is not None:
            variants = [replace(variant, name=f"{name} {variant.name}") for variant in variants]
        relate = partial(with_speedup, over=variants[chosen.index(base)].name)
        measured = self._benchmarks.judged(settings, variants, relate)
        return SideBySide(str(base), measured, lambda strategy: str(resolve(strategy)))

    def expect(
        self,
        measurement: Measurement | None = None,
        *,
        collectives: Mapping[str, int] | None = None,
        **totals: float,
    ) -> None:
        """Fails the test unless a step does exactly this often what is named; all counts are per optimizer step.

        Args:
            measurement: whose counts (default: the last one of this test).
            collectives: calls by collective, ``{"all_reduce": 3}``; there may be no others.
            totals: any other count: ``flops=...``, ``optimizer_steps=1``, ``synchronisations=0``.

        Raises:
            UnexpectedCount: something was counted differently.
            SettingError: there is no such count, or nothing was counted.
        """
        __tracebackhide__ = True
        measured = measurement or self._benchmarks.last
        if measured is None or measured.counts is None:
            raise SettingError(
                "ddpperf.expect: nothing was counted; call check, compare or measure first, with counted on"
            )
        for metric in totals:
            if metric not in measured.counts.totals:
                known = ", ".join(measured.counts.totals)
                raise SettingError(f"ddpperf.expect({metric}=...): there is no such count; there are {known}")
        lines = unexpected(measured.counts, collectives, totals)
        if lines:
            raise UnexpectedCount("\n".join([*lines, f"  benchmark {measured.name}, {measured.world_size} ranks"]))

    def find_batch_size(
        self,
        workload_of: Callable[[int], Workload],
        *,
        strategy: GivenStrategy = None,
        start: int = 1,
        limit: int | None = None,
        memory_limit: int | str | None = None,
        **knobs: Any,
    ) -> BatchSize:
        """The largest batch of a rank that fits into memory: doubled until one does not, then bisected.

        Every size is tried in a launch of its own, so that a rank that runs out of memory costs nothing.

        Args:
            workload_of: gives the Workload of a batch size.
            strategy: as of ``check``.
            start: the smallest size that is tried.
            limit: the largest one; None for no limit.
            memory_limit: what each rank may use, in bytes or as ``"2GiB"``; None for what the GPU has. Needed on CPU.
            knobs: as of ``check``.

        Returns:
            ``found.size``; ``found.peak`` in bytes; ``found.tried``.

        Raises:
            SettingError: there is no memory limit on CPU, or an argument does not fit.
            WorkloadError: not even the smallest size fits.
            RankFailed: a rank failed for another reason than memory.
        """
        __tracebackhide__ = True
        settings = self._overlaid(knobs, "find_batch_size", ("strategy", "start", "limit", "memory_limit"))
        if not callable(workload_of):
            kind = type(workload_of).__name__
            raise SettingError(f"ddpperf.find_batch_size: expected a function batch_size -> Workload, not a {kind}")
        size = self._size(settings, strategy, knobs)
        most = required_limit(memory_limit, self._session.environment(settings, size).device)

        def probe(batch_size: int) -> Sequence[RankLaunch]:
            __tracebackhide__ = True
            counts = (None, None)
            workload = workload_of(batch_size)
            if not isinstance(workload, Workload):
                kind = type(workload).__name__
                raise SettingError(f"{located(workload_of)} gave a {kind} for batch size {batch_size}, not a Workload")
            variant = self._variant(workload, settings, size, knobs, strategy=strategy, name=None, counts=counts)
            return self._benchmarks.probe(settings, variant, PLAN, most)

        try:
            return search(probe, start=start, limit=limit, memory_limit=most)
        except RankSkipped as skipped:
            pytest.skip(str(skipped))

    def _overlaid(self, knobs: dict[str, Any], verb: str, others: Sequence[str] = OWN_WORDS) -> Settings:
        settings = overlay_words(self._settings, knobs, where=f"ddpperf.{verb}", others=others)
        if settings.clip_steps is not None and settings.clip_grad_norm is None:
            raise SettingError(f"clip_steps={settings.clip_steps}: nothing is clipped; give clip_grad_norm too")
        return settings

    def _size(self, settings: Settings, strategy: GivenStrategy, knobs: dict[str, Any]) -> int:
        """The largest number of ranks asked for; one for a strategy of one rank, unless the call itself says more."""
        alone = strategy is not None and "world_size" not in knobs and row_of(resolve(strategy)).single_rank
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
        knobs: Mapping[str, object],
        *,
        strategy: GivenStrategy,
        name: str | None,
        counts: tuple[float | None, float | None],
        mode: Mode | None = None,
    ) -> Variant:
        for word, count in zip(("samples_per_step", "tokens_per_step"), counts, strict=True):
            _require_count(word, count)
        resolved = _strategy(subject, strategy, world_size, knobs)
        recipe, findings = _recipe(subject, settings, knobs)
        return Variant(
            name=training_text(name or (CUSTOM if resolved is None else str(resolved)), recipe),
            subject=subject,
            strategy=resolved,
            recipe=recipe,
            findings=findings,
            mode=mode,
            environment=self._session.environment(settings, world_size),
            samples_per_step=counts[0],
            tokens_per_step=counts[1],
        )


def _require_count(word: str, count: object) -> None:
    is_count = isinstance(count, (int, float)) and not isinstance(count, bool) and 0 < count < math.inf
    if count is not None and not is_count:
        raise SettingError(f"{word}={count!r}: expected a number above 0")


def _recipe(
    subject: Subject, settings: Settings, knobs: Mapping[str, object]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """What differs from plain training, and a finding for what was set from outside and has no meaning here."""
    recipe = dict(settings.recipe)
    if not isinstance(subject, Workload):
        meant = ", ".join(f"{name}={value}" for name, value in recipe.items())
        return {}, (f"{meant} is for a Workload: this step sees to that itself",) if recipe else ()
    if subject.batch is not None and "loader" in recipe and "loader" not in knobs:
        left_out = recipe.pop("loader")
        return recipe, (f"loader={left_out} has no meaning here: this workload has one batch for all steps",)
    return recipe, ()


def _strategy(
    subject: Subject, strategy: GivenStrategy, world_size: int, knobs: Mapping[str, object]
) -> Strategy | None:
    """The strategy of a Workload; None for a step that brings its own."""
    if isinstance(subject, Workload):
        resolved = resolve(strategy or ("ddp" if world_size > 1 else "single"))
        require_world_size(resolved, world_size)
        return resolved
    if strategy is not None:
        raise SettingError(f"strategy={strategy!r}: strategies are for a Workload; this step brings its own")
    for word in knobs:
        if KNOBS[word].training:
            raise SettingError(f"{word}={knobs[word]!r}: is for a Workload; this step has to see to it itself")
    if not callable(subject) or hasattr(subject, "parameters"):
        kind = type(subject).__name__
        raise SettingError(f"a {kind} cannot be measured: expected a Workload or a function build(ctx) -> step")
    return None
