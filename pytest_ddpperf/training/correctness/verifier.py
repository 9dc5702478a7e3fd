"""Verifies a strategy: each step must have equal results on its ranks and in a single process."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import cloudpickle  # type: ignore[import-untyped]  # it has no annotations
from torch import Tensor

from pytest_ddpperf.strategies.replicas import whole
from pytest_ddpperf.strategies.strategy import RankView
from pytest_ddpperf.training.correctness import deviation, tolerances, training_run
from pytest_ddpperf.training.correctness.consensus import DiffersError, RankConsensus
from pytest_ddpperf.training.correctness.reference import ReferenceStep, SingleProcess, UnverifiableError
from pytest_ddpperf.training.jobs import VerifyJob
from pytest_ddpperf.training.model import build_model
from pytest_ddpperf.training.verification import Discrepancy, Verification

T = TypeVar("T")
_VANISHING = 4  # times the smallest number: gradients below are almost or entirely lost
STEPS = 3  # DDP rebuilds its buckets after the first step
LOSSY_STEPS = 20


def verify_launch(ctx: RankView, job: VerifyJob) -> Verification:
    """Trains on all ranks and in a single process, and compares both, step by step. All ranks call this together."""
    consensus = RankConsensus(ctx)
    discrepancy, unverified, leniency = None, "", None
    try:
        verifier = StrategyVerifier(ctx, job, consensus)
        parallel = verifier.run.trainer.parallel
        leniency = tolerances.leniency(job.settings.precision, parallel)
        verifier.compare_start()
        synchronisations = 1 if job.settings.no_sync else job.settings.accumulation_steps
        exact_steps = min(STEPS, parallel.exact_steps // synchronisations) if parallel.lossy else STEPS
        for step in range(exact_steps):
            verifier.compare_step(step)
        if parallel.lossy:
            verifier.compare_training()
    except DiffersError as differs:
        discrepancy = differs.discrepancy
    except UnverifiableError as reason:
        unverified = str(reason)
    return Verification(
        discrepancy=discrepancy, unverified=unverified, agreements=consensus.agreements, leniency=leniency
    )


class StrategyVerifier:
    """The training on all ranks, and in one process. Only rank 0 begins with right weights, which strategies copy."""

    def __init__(self, ctx: RankView, job: VerifyJob, consensus: RankConsensus) -> None:
        self._consensus = consensus
        self._strategy = job.strategy
        settings = training_run.without_step_counts(job.settings)
        workload = job.workload
        # cloudpickle, because the test's own module may define the batches' classes.
        batches = training_run.own_batches(ctx, workload, STEPS * settings.accumulation_steps, settings.loader)
        shards = consensus.gathered(cloudpickle.dumps(batches))
        data = training_run.MicroBatches([pickle.loads(shard) for shard in shards], settings.accumulation_steps)
        module = build_model(workload)
        self._start = consensus.tensors_from_first(lambda: _whole_by_name(module.named_parameters()))
        self._expected = self._start  # the parameters at this step
        named_buffers = consensus.tensors_from_first(lambda: _whole_by_name(module.named_buffers()))
        self._buffer_names, self._buffers = list(named_buffers), list(named_buffers.values())
        if ctx.rank > 0:
            training_run.disturb(module, ctx.rank)
        self.run = training_run.TrainingRun(
            ctx, workload, job.strategy, settings, module=module, data=data, places=data.places(ctx.rank)
        )
        self._reference: SingleProcess | None = None

        def build() -> None:
            self._reference = SingleProcess(
                ctx,
                workload,
                settings,
                values=(*self._start.values(), *self._buffers),
                data=data,
                param_dtype=job.strategy.options.get("param_dtype"),
            )

        consensus.from_first(build)  # after the strategy's run, which refuses settings on all ranks at once
        self._clips = settings.clip_grad_norm is not None
        precisions = settings.precision, self.run.trainer.parallel.precision
        self._tolerance, self._unit = tolerances.tolerance(*precisions), tolerances.unit(*precisions)
        self._smallest = tolerances.smallest(*precisions)

    def compare_start(self) -> None:
        """Compares the initial parameters and buffers of all ranks with rank 0's."""

        def cause(rank: int, _name: str, _found: Tensor | None) -> str:
            return "this rank did not get the values of rank 0" if rank else ""

        deviations = deviation.deviations_of(self.run.parameters(), self._start)
        self._consensus.compare("start parameters", 0, deviations, self._tolerance, cause)
        deviations = deviation.buffer_deviations(self.run.buffers(), self._buffers, self._buffer_names)
        self._consensus.compare("start buffers", 0, deviations, self._tolerance, cause)

    def compare_step(self, index: int) -> None:
        """Trains one step on the ranks and in a single process on rank 0; compares losses, gradients, parameters.

        Strategies treat buffers (the statistics of a BatchNorm) differently, so each step begins with rank 0's.
        """
        step = index + 1
        loss, gradients = self.run.backward(index, self._buffers, self._consensus.all_agree)
        self._compare_gradients(index, loss, gradients)
        self.run.update(step)
        self._from_reference(lambda reference: reference.update(step, gradients))
        if self._clips:
            self._compare_clipped(step)
        self._compare_parameters(step)
        self._buffers = self._consensus.from_first(self.run.buffers)

    def _compare_gradients(self, index: int, loss: float, gradients: training_run.Gradients) -> None:
        reference: list[ReferenceStep] = []

        def from_reference() -> tuple[float, Mapping[str, float]]:
            reference.append(self._reference_here().backward(index, self._buffers))
            return reference[0].loss, reference[0].sizes

        reference_loss, sizes = self._consensus.from_first(from_reference)
        expected = self._consensus.tensors_from_first(lambda: reference[0].gradients)
        self._consensus.compare_losses(index + 1, loss, reference_loss, self._tolerance)
        deviations = deviation.deviations_of(gradients, expected, sizes)
        if not self._consensus.all_agree(all(each.error <= self._tolerance for each in deviations)):
            # Only now, because it costs several more backward passes.
            noise = self._from_reference(lambda reference: reference.noise(index, self._buffers, self._unit))
            deviations = deviation.apart_from_rounding(deviations, sizes, noise, self._tolerance, self._smallest)
        hint = deviation.unused_cause(self._strategy, expected)
        cause = (lambda *_: hint) if hint else partial(self._gradient_cause, index)
        self._consensus.compare("gradients", index + 1, deviations, self._tolerance, cause)

    def compare_training(self) -> None:
        """Trains on one small batch to check that a lossy strategy, such as PowerSGD, still trains.

        All ranks must have the same parameters after at least one step; after other steps they may differ. The loss
        must fall by at least the fraction ``FALL`` of its fall in a single process.
        """
        losses, reference, alike = [], [], False
        for step in range(1, LOSSY_STEPS + 1):
            loss, _ = self.run.backward(0, self._buffers, self._consensus.all_agree)
            reference.append(self._from_reference(partial(self._train_reference, step)))
            losses.append(self._consensus.mean_loss(step, self._consensus.gathered(loss), self._tolerance))
            self.run.update(step)
            alike = alike or self._alike()
        if not alike:
            raise DiffersError(
                Discrepancy(
                    quantity="own parameters",
                    name="the parameters",
                    error=math.inf,
                    tolerance=tolerances.ALIKE,
                    fault=f"differ between ranks after each of {LOSSY_STEPS} steps",
                )
            )
        if not tolerances.falls(reference):
            raise UnverifiableError(
                f"a lossy strategy is compared by how far the loss falls, but in a single process it falls only by "
                f"{tolerances.fall(reference):.2g} (from {reference[0]:.4g}) in {LOSSY_STEPS} steps on the first "
                "batch: raise the learning rate"
            )
        tolerance = 1 - tolerances.FALL
        fault = (
            f"falls by {tolerances.fall(losses):.3g} in {LOSSY_STEPS} steps, and by {tolerances.fall(reference):.3g} "
            f"in a single process: a lossy strategy must reach {100 * tolerances.FALL:g} % of this fall"
        )
        self._consensus.judge_losses(0, tolerances.missed(losses, reference), tolerance, fault)

    def _train_reference(self, step: int, reference: SingleProcess) -> float:
        found = reference.backward(0, self._buffers)
        reference.update(step, found.gradients)
        return found.loss

    def _alike(self) -> bool:
        first, *others = self._consensus.gathered(
            [deviation.norm(parameter) for parameter in self.run.parameters().values()]
        )
        return all(
            math.isclose(ours, theirs, rel_tol=tolerances.ALIKE)
            for other in others
            for ours, theirs in zip(first, other, strict=True)
        )

    def _from_reference(self, make: Callable[[SingleProcess], T]) -> T:
        """Returns, on all ranks, the result of ``make``, which rank 0 calls with its single process."""
        return self._consensus.from_first(lambda: make(self._reference_here()))

    def _reference_here(self) -> SingleProcess:
        assert self._reference is not None  # noqa: S101  asked for on rank 0 only
        return self._reference

    def _compare_clipped(self, step: int) -> None:
        reference = self._consensus.tensors_from_first(lambda: self._reference_here().training.gradients())  # noqa: PLW0108  rank 0 has it

        def cause(_rank: int, name: str, found: Tensor | None) -> str:
            expected = reference.get(name)
            if found is None or expected is None:
                return ""
            return deviation.likely_cause(found, [[expected]], 0, self._tolerance)

        deviations = deviation.deviations_of(self.run.gradients(), reference)
        self._consensus.compare("clipped gradients", step, deviations, self._tolerance, cause)

    def _compare_parameters(self, step: int) -> None:
        before = self._expected
        reference = self._consensus.tensors_from_first(lambda: self._reference_here().training.parameters())  # noqa: PLW0108  as above

        def cause(_rank: int, name: str, found: Tensor | None) -> str:
            stayed = found is not None and name in before and deviation.distance(found, before[name]) == 0
            return "the optimizer's step did not update it on this rank" if stayed else ""

        deviations = deviation.parameter_deviations(self.run.parameters(), reference, self._start)
        self._consensus.compare("parameters", step, deviations, tolerances.UPDATE, cause)
        self._expected = reference

    def _gradient_cause(self, index: int, rank: int, name: str, found: Tensor | None) -> str:
        if name not in self._start:
            return ""
        try:
            parts = self._reference_here().parts(name, index, self._buffers)
        except UnverifiableError:
            return ""  # that it differs is known anyway
        if found is not None and self._smallest and float(found.abs().max()) < self._smallest:
            largest = max(float(part.abs().max()) for rank_parts in parts for part in rank_parts)
            if 0 < largest < _VANISHING * self._smallest:
                return f"it vanished: its largest number is {largest:.1e}, and fp16 holds none below 6e-08"
        return deviation.likely_cause(found, parts, rank, 3 * self._tolerance)


def _whole_by_name(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in named}
