"""The ``ddpperf`` fixture: its methods, such as ``check``, measure and judge training in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from pytest_ddpperf.errors import RankSkipped, SettingError, TargetMissed, hidden
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Better, Environment, Measurement, Mode
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.call.benchmark_run import BenchmarkRun
from pytest_ddpperf.run.call.requests import VerbCall, by_size, grows, of_size, require_consistent, several_sizes
from pytest_ddpperf.run.call.time_sheet import TimeSheet
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings, overlay_words
from pytest_ddpperf.strategies.table import resolve, row_of
from pytest_ddpperf.training.subject import Script, Subject, Workload

if TYPE_CHECKING:
    from pytest_ddpperf.judge.expectations import Measured, MetricTarget
    from pytest_ddpperf.planner.predicting import Predictor
    from pytest_ddpperf.records.predictions import Candidate, Prediction, StrategyAdvice, WhatIf
    from pytest_ddpperf.records.verbs import BatchSize, Convergence, ScalingCurve, SideBySide
    from pytest_ddpperf.run.call.judging import JudgedRun
    from pytest_ddpperf.run.call.variants import GivenStrategies, GivenStrategy, GivenVariants

__tracebackhide__ = hidden


class Ddpperf:
    """Measures distributed training and judges it against the stored baselines."""

    def __init__(
        self,
        session: Session,
        test: str,
        settings: Settings,
        sections: list[tuple[str, str]],
        folders: tuple[Path, ...] = (),  # that are searched for a script
    ) -> None:
        self._session, self._test, self._settings = session, test, settings
        self._sections = sections
        self._folders = folders
        self._names: set[tuple[str, int]] = set()
        self._runs: list[BenchmarkRun] = []
        self._last: Measured | None = None  # the result of the last call

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
        reference: Subject | None = None,
        **knobs: Any,
    ) -> Measurement:
        """Measures a benchmark, compares it with its baseline, and fails the test if it became worse.

        Args:
            subject: a Workload, a Script, or a function ``build(ctx)`` that returns one training step: a callable,
                perhaps an object with ``samples``, ``tokens`` (one rank's, in one step) and ``close()``.
            strategy: how a Workload is trained in parallel (default: ``ddp``; ``single`` with one rank): a name, a name
                with options (``"ddp[bucket_cap_mb=5]"``), a ``Strategy``, or a function of your own
                ``parallelise(module, ctx) -> Parallel``.
            name: name of the benchmark within its test (default: strategy and settings of the training).
            samples_per_step: samples of one rank, if ``subject`` does not have them.
            tokens_per_step: tokens of one rank, if ``subject`` does not have them.
            reference: if ``subject`` is no Workload, the same training for a single process on the batches of all
                ranks. It may have any form of ``subject``. The test fails if the results of both differ.
            knobs: any setting of a test, such as ``world_size=2, tolerance=0.05``; they override marker and options.

        Returns:
            The measurement; ``measurement["step_time"].value`` is in seconds.

        Raises:
            Regression: a verdict that fails the test.
            DdpperfError: the benchmark could not be measured.
        """
        from pytest_ddpperf.metrics.scaling import alone

        self._skip_script(subject)
        call = self._call("check", knobs, samples_per_step, tokens_per_step)
        variants = [
            call.variant(subject, environment, strategy=strategy, name=name, reference=reference)
            for environment in self._environments(call, strategy)
        ]
        *_, self._last = self._judged_run(call, variants).judged(variants, alone)
        self._put_on_network(call, subject, strategy, name)
        return self._last

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
        """Measures a benchmark as ``check`` does, but compares and stores nothing; the summary shows it in a line."""
        self._skip_script(subject)
        call = self._call("measure", knobs, samples_per_step, tokens_per_step)
        environments = self._environments(call, strategy)
        variants = [call.variant(subject, environment, strategy=strategy, name=name) for environment in environments]
        run = BenchmarkRun(self._session, self._test, replace(call.settings, verify=False), self._sections)
        self._runs.append(run)
        measured = run.measure(run.prepared(variants), None, compared=False)
        self._last = measured[-1]
        self._session.outputs.measured.setdefault(self._test, []).extend(measured)
        self._session.extensions.measured(self._test, measured, self._session.attempts.get(self._test, 1))
        self._put_on_network(call, subject, strategy, name)
        return measured[-1]

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
        """Measures a benchmark with several numbers of ranks, side by side, and judges each point.

        Args:
            subject: as for ``check``. In strong mode, the plugin divides a Workload's batch among the ranks, but a
                function ``build(ctx)`` must divide its batch itself: then ``ctx.mode`` is ``strong``. A function with
                a parameter ``n``, ``ranks`` or ``world_size`` may return a Workload for this number of ranks, such as a
                larger model for more ranks; then efficiency takes the FLOPs of a rank into account.
            world_sizes: numbers of ranks, ascending; the others are compared with the first. Default:
                ``--ddpperf-world-size``; if that is one number, 1 and the powers of two up to it.
            mode: ``weak`` keeps the batch of a rank, ``strong`` the global batch.
            strategy: strategy of several ranks (default: ``ddp``); one rank trains as ``single``.
            name: name of the curve within its test (default: the mode).
            samples_per_step: as for ``check``.
            tokens_per_step: as for ``check``.
            knobs: as for ``check``.

        Returns:
            The curve: ``curve.efficiency(4)``, ``curve.speedup(4)``.

        Raises:
            Regression: a verdict that fails the test.
            DdpperfError: a point could not be measured.
        """
        from pytest_ddpperf.metrics.scaling import with_efficiency
        from pytest_ddpperf.records.verbs import ScalingCurve

        if mode not in get_args(Mode):
            raise SettingError(f"ddpperf.scaling(mode={mode!r}): expected one of {', '.join(get_args(Mode))}")
        if world_sizes is not None:
            knobs = {**knobs, "world_size": several_sizes(world_sizes)}
        call = self._call("scaling", knobs, samples_per_step, tokens_per_step, counts=grows(subject))
        sizes = self._session.world_sizes(call.settings)
        if world_sizes is None and len(sizes) == 1:
            largest = sizes[0]
            sizes = tuple(sorted({*(2**i for i in range(largest.bit_length())), largest}))
        subjects = by_size(subject, sizes, mode, counted=call.settings.counts != "off")
        variants = [
            call.variant(
                each,
                self._session.environment(call.settings, n),
                strategy="single" if n == 1 and isinstance(each, Workload) else strategy,
                name=f"{name or mode} w{n}" if sizes[0] == 1 else f"{name or mode} w{n} over w{sizes[0]}",
                mode=mode,
            )
            for n, each in subjects.items()
        ]
        derive = partial(with_efficiency, mode=mode, base_size=sizes[0], grows=grows(subject))
        self._last = ScalingCurve(mode=mode, points=self._judged_run(call, variants).judged(variants, derive))
        return self._last

    def compare(
        self,
        subject: Subject | Mapping[str, Subject],
        *,
        strategies: GivenStrategies = None,
        variants: GivenVariants = None,
        strategy: GivenStrategy = None,
        over: GivenStrategy = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> SideBySide:
        """Measures several variants of the same work, side by side, and judges each.

        Args:
            subject: a Workload; or several subjects of ``check`` by name, such as ``{"old": build, "new": other}``.
            strategies: two or more strategies of a Workload, as for ``check``; a dictionary gives them names.
            variants: settings of each variant by name: ``{"fp32": {}, "bf16": {"precision": "bf16"}}``. A variant may
                have any setting of training, ``strategy``, ``env`` (variables of its ranks, ``{"NCCL_ALGO": "Ring"}``),
                ``world_size``, ``backend`` and ``device``. Its speedup is gated: if the speedup becomes smaller, the
                test fails.
            strategy: strategy of several subjects, and of variants without one (default: as for ``check``).
            over: the name or strategy that the speedup of the others is relative to (default: the first).
            name: name of the comparison within its test; it precedes the names of the variants.
            samples_per_step: as for ``check``.
            tokens_per_step: as for ``check``.
            knobs: as for ``check``; ``max_time`` is for all variants together.

        Returns:
            The variants: ``compared.speedup("bucketed")``, ``compared["bucketed"]["step_time"].value``. The speedup is
            of samples per second if both variants have samples, else of steps.

        Raises:
            Regression: a verdict that fails the test.
            DdpperfError: a variant could not be measured.
        """
        from pytest_ddpperf.metrics.scaling import with_speedup
        from pytest_ddpperf.records.verbs import SideBySide
        from pytest_ddpperf.run.call.variants import several

        call = self._call("compare", knobs, samples_per_step, tokens_per_step)
        found = several(subject, strategies, over, strategy, call.strategies, variants)
        before = "" if name is None else f"{name} "
        prepared = []
        for key, variant in found.by_name.items():
            own = call.for_variant(variant, key)
            environment = self._environment(own, None)
            prepared.append(own.variant(variant.subject, environment, strategy=variant.strategy, name=f"{before}{key}"))
        names = tuple(found.by_name)
        derive = partial(with_speedup, over=prepared[names.index(found.over)].name, gated=variants is not None)
        measured = self._judged_run(call, prepared).judged(prepared, derive)
        fitting = [key for key, measurement in zip(names, measured, strict=True) if not measurement.unfit]
        over_key = found.over if found.over in fitting else fitting[0]
        self._last = SideBySide(over=over_key, names=names, measurements=measured, canonical=found.canonical)
        return self._last

    def converge(
        self,
        subject: Workload,
        *,
        strategies: GivenStrategies,
        steps: int,
        every: int | None = None,
        metric: str | None = None,
        better: Better = "higher",
        launches: int = 4,
        tolerance: float | str = 0.02,
        **knobs: Any,
    ) -> Convergence:
        """Trains by several strategies, from the same weights on the same batches, and compares them with the first.

        The test fails if a strategy's last loss or metric is significantly worse than the first strategy's by more than
        ``tolerance``, or if two strategies that average gradients exactly differ by more than rounding explains.

        Args:
            subject: a Workload, whose ranks have different batches; with ``evaluate`` it has metrics.
            strategies: as for ``compare``.
            steps: number of optimizer steps of each training.
            every: number of steps after which losses and metrics are recorded (default: a tenth of ``steps``).
            metric: the metric to compare, besides the loss (default: the first of ``evaluate``).
            better: ``higher`` or ``lower``, for the metric.
            launches: three or more; each trains by all strategies, with different weights and batches.
            tolerance: a share of the first strategy's value.
            knobs: any setting of a test that changes the training or the group: ``precision``, ``world_size``.

        Returns:
            The results ``found``: ``found.curves["ddp"]`` has values by launch, ``found.final("ddp")`` the last mean.

        Raises:
            QualityLost: a strategy's result is worse or differs, as described above, and ``fail_on`` has ``regressed``.
            DdpperfError: a strategy could not be trained.
        """
        from pytest_ddpperf.run.call.convergence import converged, job_of, require_quality
        from pytest_ddpperf.run.call.variants import several

        knobs |= {"steps": steps, "tolerance": tolerance}
        call = self._call("converge", knobs)
        variants = several(subject, strategies or (), None, more=call.strategies, verb="converge").by_name
        environment = self._environment(call, None)
        prepared = {
            name: call.variant(subject, environment, strategy=variant.strategy, name=name)
            for name, variant in variants.items()
        }
        resolved = [variant.resolved for variant in prepared.values() if variant.resolved is not None]
        job = job_of(subject, resolved, call.settings, every=every, launches=launches, metric=metric, better=better)
        run = BenchmarkRun(self._session, self._test, call.settings, self._sections)
        found = run.progress.kept.get("convergence") or converged(run, self._test, prepared, job, better, launches)
        run.progress.kept["convergence"] = found
        self._session.outputs.convergences.append(found)
        require_quality(found, call.settings.failing)
        return found

    def predict(
        self,
        subject: Subject,
        *,
        strategy: GivenStrategy = None,
        name: str | None = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> Prediction:
        """Predicts the time of a step with any number of ranks, on a measured or named network; gives no verdict.

        One process of this machine runs the step of one rank, with collectives that take no time. The prediction
        adds the time of each collective on the network.

        Args:
            subject: a Workload, or a function ``build(ctx)``.
            strategy: as for ``check``.
            name: as for ``check``.
            samples_per_step: as for ``check``.
            tokens_per_step: as for ``check``.
            knobs: any setting of a test: ``world_size=64``, ``precision="bf16"``, ``network="nvlink-infiniband400"``
                (default: the fit of ``ddpperf network``), ``ranks_per_node=8``, ``accelerator="h100"``.

        Returns:
            The prediction: ``seconds`` of a step with ``low`` and ``high``, ``exposed`` seconds of communication,
            ``efficiency`` of weak scaling.

        Raises:
            SettingError: the network is unknown, or was not measured for such collectives.
            DdpperfError: the step could not be run.
        """
        from pytest_ddpperf.run.call.variants import NamedVariant

        call = self._call("predict", knobs, samples_per_step, tokens_per_step)
        return self._predictor.predict(call, NamedVariant(subject=subject, strategy=strategy), name)

    def what_if(
        self,
        subject: Subject | Mapping[str, Subject],
        *,
        variants: GivenVariants = None,
        strategy: GivenStrategy = None,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        **knobs: Any,
    ) -> WhatIf:
        """Predicts the gain of changes in training; ``compare(variants=...)`` measures it.

        Args:
            subject: as for ``predict``; or, without ``variants``, a dictionary of Workloads or functions by name.
            variants: settings by name, as for ``compare``; each may also have a ``network``. The others are compared
                with the first: ``{"now": {}, "large buckets": {"strategy": "ddp[bucket_cap_mb=100]"}}``.
            strategy: strategy of variants without one.
            samples_per_step: as for ``check``.
            tokens_per_step: as for ``check``.
            knobs: as for ``predict``.

        Returns:
            The predictions, here ``found``. ``found["large buckets"]`` is a variant's prediction. The variant shortens
            the time of a sample by the fraction ``found.gain("large buckets")``, with ``low`` and ``high``.

        Raises:
            SettingError: as for ``predict``, or variants that cannot be compared.
            DdpperfError: a step could not be run.
        """
        call = self._call("what_if", knobs, samples_per_step, tokens_per_step)
        return self._predictor.what_if(call, subject, variants, strategy)

    def advise(
        self,
        subject: Workload | Callable[[int], Workload],
        *,
        memory: int | str | None = None,
        strategies: Iterable[GivenStrategy] | None = None,
        precisions: Iterable[str] | None = None,
        batch_sizes: Iterable[int] | None = None,
        measure: bool = False,
        **knobs: Any,
    ) -> StrategyAdvice:
        """Recommends strategy, precision and batch size for training: simulates and predicts each combination.

        Args:
            subject: a Workload; or a function ``batch_size -> Workload``, tried with each of ``batch_sizes``.
            memory: bytes of a rank, such as ``"80GB"`` (default: the accelerator's, else no limit).
            strategies: as for ``compare`` (default: DDP, ZeRO 1, FSDP with and without resharding after forward).
            precisions: some of ``fp32``, ``bf16``, ``fp16`` (default: fp32 and bf16).
            batch_sizes: samples of a rank, if ``subject`` is a function.
            measure: whether the three fastest also run on ranks of this machine.
            knobs: as for ``predict``; with an ``accelerator``, a model may need more memory than this machine has.

        Returns:
            The advice: ``best`` is the candidate that fits and has the least predicted time for a sample, with its
            ``strategy``, ``settings`` and ``memory`` in bytes; ``candidates`` has all.

        Raises:
            SettingError: as for ``predict``.
            DdpperfError: a step could not be run.
        """
        from pytest_ddpperf.planner.advising import advised

        call = self._call("advise", knobs)

        def step_time(workload: Workload, candidate: Candidate) -> float:
            words = {**knobs, **candidate.settings}
            return self.measure(workload, strategy=candidate.strategy, **words)["step_time"].value

        tried: dict[str, Any] = {"strategies": strategies, "precisions": precisions, "batch_sizes": batch_sizes}
        found = advised(self._predictor, call, subject, **tried, memory=memory, measure=step_time if measure else None)
        listed = self._session.outputs.advice
        listed[:] = [each for each in listed if each.test != found.test] + [found]
        return found

    def expect(
        self,
        measured: Measured | None = None,
        *,
        collectives: Mapping[str, float] | None = None,
        **wanted: float | str | Mapping[Any, float | str],
    ) -> None:
        """Fails the test unless counts equal the given numbers, and metrics reach the given targets.

        Args:
            measured: the result of a call (default: of this test's last call).
            collectives: calls of each rank by collective, in an optimizer step: ``{"all_reduce": 3}``; no others may
                occur.
            wanted: any other count, which every step of every rank must have exactly: ``optimizer_steps=1``; or the
                target of a metric: ``throughput=900``, ``peak_allocated="40GiB"``. A curve may have targets by number
                of ranks, ``efficiency={4: 0.85}``, and a comparison by name, ``speedup={"bf16": 1.5}``.

        A target is met or missed if the whole 95 % interval lies on one side of it. Otherwise it is inconclusive, which
        the summary says, and which fails with ``--ddpperf-fail-on=+inconclusive``.

        Raises:
            UnexpectedCount: a count differs from the expected number, or between steps.
            TargetMissed: a target was missed.
            SettingError: there is no such count or metric, a value is no number, or nothing was measured.
        """
        from pytest_ddpperf.judge.expectations import require_counts, targets
        from pytest_ddpperf.records.counts import COUNTS

        found = self._last if measured is None else measured
        counts = {name: number for name, number in wanted.items() if name in COUNTS}
        metrics = {name: number for name, number in wanted.items() if name not in counts}
        if metrics and found is None:
            raise SettingError("ddpperf.expect: nothing was measured; first call check, compare, scaling or measure")
        if collectives is not None or counts or not metrics:
            last = next((run.measured for run in reversed(self._runs) if run.measured), ())
            require_counts(last if measured is None else _each(measured), collectives, counts)
        if found is not None and metrics:
            self._meet(targets(found, metrics))

    def _meet(self, wanted: Sequence[MetricTarget]) -> None:
        """Reports targets' outcomes. Missed targets fail the test, and inconclusive targets if ``fail_on`` says so."""
        for target in wanted:
            unmet = self._session.archive.never_met(self._test, target.measurement, target.series, target.wanted)
            self._session.outputs.remark(self._test, target.measurement.key, target.finding, *unmet)
        open_fails = Verdict.INCONCLUSIVE in self._settings.fail_on
        failed = [each for each in wanted if each.outcome == "missed" or (open_fails and each.outcome == "open")]
        if failed:
            from pytest_ddpperf.reports.findings import finding_text

            raise TargetMissed("\n".join(finding_text(each.finding) for each in failed))

    def find_batch_size(
        self,
        workload_of: Callable[[int], Workload],
        *,
        strategy: GivenStrategy = None,
        start: int = 1,
        limit: int | None = None,
        **knobs: Any,
    ) -> BatchSize:
        """Finds the largest batch of a rank that fits into memory: doubles it until it does not fit, then bisects.

        Every size has a separate launch, so that a lack of memory does not disturb the next sizes.

        Args:
            workload_of: function that returns the Workload of a batch size.
            strategy: as for ``check``.
            start: the smallest size to try.
            limit: the largest size to try; None for no limit.
            knobs: as for ``check``. ``memory_limit`` is the memory that each rank may use, and required on a CPU.
                Settings of timing, such as ``warmup``, have no effect: each size trains for three steps, or with fp16
                until a step does not overflow.

        Returns:
            ``found.size``; ``found.peak`` in bytes; ``found.tried``.

        Raises:
            SettingError: there is no memory limit on a CPU, or an argument is not valid.
            WorkloadError: not even the smallest size fits.
            RankFailed: a rank failed for another reason than memory.
        """
        from pytest_ddpperf.baselines.fingerprint import environment_key
        from pytest_ddpperf.records.verbs import Search
        from pytest_ddpperf.run.call.memory_fit import PLAN, search

        call = self._call("find_batch_size", knobs)
        if not callable(workload_of):
            kind = type(workload_of).__name__
            raise SettingError(f"ddpperf.find_batch_size: expected a function batch_size -> Workload, not a {kind}")
        environment = self._environment(call, strategy)
        most = call.settings.memory_limit
        run = BenchmarkRun(self._session, self._test, call.settings, self._sections)
        if "search" in run.progress.kept:
            self._session.outputs.searches.append(run.progress.kept["search"])
            return self._session.outputs.searches[-1]
        tried: list[Variant] = []

        def probe(batch_size: int) -> Sequence[RankLaunch]:
            workload = of_size(workload_of, batch_size, "batch size")
            tried.append(call.variant(workload, environment, strategy=strategy))
            return run.probe(tried[-1], PLAN, most)

        try:
            found = search(probe, device=environment.device, start=start, limit=limit, memory_limit=most)
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        run.progress.kept["search"] = Search(
            test=self._test,
            training=tried[0].name,
            world_size=environment.world_size,
            environment_key=environment_key(environment),
            limit=limit,
            memory_limit=most,
            size=found.size,
            peak=found.peak,
            tried=found.tried,
        )
        self._session.outputs.searches.append(run.progress.kept["search"])
        return found

    def _call(
        self,
        verb: str,
        knobs: dict[str, Any],
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        *,
        counts: bool = False,
    ) -> VerbCall:
        session = self._session
        if session.settings.simulate is not None and verb not in {"check", "measure"}:
            pytest.skip(f"ddpperf.{verb} was skipped: ddpperf simulate runs only ddpperf.check and ddpperf.measure")
        own = signature(getattr(self, verb)).parameters.values()
        others = [each.name for each in own if each.kind is each.KEYWORD_ONLY]
        given = overlay_words(self._settings, knobs, where=f"ddpperf.{verb}", suggestions=others)
        settings = session.forced(given, counts=counts)
        require_consistent(settings)
        return VerbCall(
            settings=settings,
            knobs=knobs,
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
            strategies=session.extensions.strategies,
            metrics=session.extensions.metrics,
            folders=self._folders,
        )

    def _skip_script(self, subject: Subject) -> None:
        if self._session.settings.simulate is not None and isinstance(subject, Script):
            pytest.skip(f"{subject.name}: ddpperf simulate runs no Script, which creates its own process group")

    def _environment(self, call: VerbCall, strategy: GivenStrategy) -> Environment:
        """Returns the environment for the largest world size, or for one rank if ``strategy`` is for one rank only."""
        lone = (
            strategy is not None
            and "world_size" not in call.knobs
            and row_of(resolve(strategy, call.strategies)).single_rank
        )
        size = 1 if lone else max(self._session.world_sizes(call.settings))
        return self._session.environment(call.settings, size)

    def _environments(self, call: VerbCall, strategy: GivenStrategy) -> list[Environment]:
        """Returns the environment of each world size, ascending, if ranks are simulated; else only of the largest."""
        largest = self._environment(call, strategy)
        if not largest.simulated or largest.world_size == 1:
            return [largest]
        return [self._session.environment(call.settings, size) for size in self._session.world_sizes(call.settings)]

    def _put_on_network(self, call: VerbCall, subject: Subject, strategy: GivenStrategy, name: str | None) -> None:
        """Predicts and reports a simulated step's time on the network that the setting ``network`` names, if any."""
        if self._session.settings.simulate is None or call.settings.network is None:
            return
        from pytest_ddpperf.run.call.variants import NamedVariant

        for size in self._session.world_sizes(call.settings):
            self._predictor.predict(call, NamedVariant(subject=subject, strategy=strategy), name, size)

    @cached_property
    def _predictor(self) -> Predictor:
        from pytest_ddpperf.planner.predicting import Predictor

        return Predictor(self._session, self._test, self._sections)

    def _judged_run(self, call: VerbCall, variants: Sequence[Variant]) -> JudgedRun:
        """Returns the run that judges a call's variants; raises SettingError if two benchmarks have the same name."""
        from pytest_ddpperf.run.call.judging import JudgedRun

        for benchmark in variants:  # results and baselines of this test could not distinguish them
            if benchmark.key in self._names:
                twice = f"{self._test} has two benchmarks named {benchmark.name!r}"
                raise SettingError(f"{twice}; give each another name=...")
            self._names.add(benchmark.key)
        paired = self._session.sides.paired(self._sections)
        run = JudgedRun(self._session, self._test, call.settings, self._sections, paired, times=TimeSheet(call.begun))
        self._runs.append(run)
        return run


def _each(measured: Measured) -> Sequence[Measurement]:
    """Returns the measurements in the result of a call, except benchmarks that do not fit into memory."""
    if isinstance(measured, Measurement):
        return (measured,)
    several: Sequence[Measurement] = getattr(measured, "points", ()) or getattr(measured, "measurements", ())
    return tuple(each for each in several if not each.unfit)
