"""The correctness pass on one rank: a few steps with the strategy, held against those of a single process."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import cloudpickle  # type: ignore[import-untyped]  # it has no annotations
import torch
from torch import Tensor, nn

from pytest_ddpperf.training.correctness import tolerances
from pytest_ddpperf.training.correctness.causes import likely_cause
from pytest_ddpperf.training.correctness.deviation import (
    buffer_deviations,
    distance,
    gradient_deviations,
    norm,
    parameter_deviations,
    state_deviations,
)
from pytest_ddpperf.training.correctness.judgement import DiffersError, Judge
from pytest_ddpperf.training.correctness.micro_batches import MicroBatches, own_batches, weighted
from pytest_ddpperf.training.correctness.reference import SingleProcess, UnverifiableError
from pytest_ddpperf.training.correctness.side import Side, countless, fill, state, whole
from pytest_ddpperf.training.correctness.verification import Discrepancy, Verification
from pytest_ddpperf.training.trainer import build_model

if TYPE_CHECKING:
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.correctness.verification import VerifyJob

T = TypeVar("T")
STEPS = 3  # DDP lays its buckets out anew after the first
LOSSY_STEPS = 20
_MEAN = "the mean loss"


def rehearse(ctx: RankView, job: VerifyJob) -> Verification:
    """What ``verify_launch`` promises."""
    judge = Judge(ctx)
    try:
        rehearsal = Rehearsal(ctx, job, judge)
        rehearsal.compare_start()
        if rehearsal.run.trainer.parallel.lossy:
            rehearsal.compare_training()
        else:
            for step in range(STEPS):
                rehearsal.compare_step(step)
    except DiffersError as differs:
        return Verification(discrepancy=differs.discrepancy, agreements=judge.agreements)
    except UnverifiableError as reason:
        return Verification(unverified=str(reason), agreements=judge.agreements)
    return Verification(agreements=judge.agreements)


class Rehearsal:
    """The strategy's run on all ranks, and beside it, on rank 0, the single process.

    Every rank but the first has other parameters and buffers than the strategy is to give it.

    Attributes:
        run: the strategy's, on this rank.

    Args:
        ctx: the rank.
        job: what is to be verified.
        judge: compares.
    """

    def __init__(self, ctx: RankView, job: VerifyJob, judge: Judge) -> None:
        self._judge = judge
        settings = countless(job.settings)
        workload = weighted(job.workload)
        # cloudpickle, because batches may be of classes that the test's own module defines.
        shards = judge.gathered(cloudpickle.dumps(own_batches(ctx, workload, STEPS * settings.accumulation_steps)))
        data = MicroBatches([pickle.loads(shard) for shard in shards], settings.accumulation_steps)
        module = build_model(workload)
        self._frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        self._start = judge.from_first(lambda: {name: whole(tensor) for name, tensor in module.named_parameters()})
        self._right = self._start  # the parameters at this step
        named_buffers = judge.from_first(lambda: {name: whole(tensor) for name, tensor in module.named_buffers()})
        self._buffer_names, self._buffers = list(named_buffers), list(named_buffers.values())
        if ctx.rank > 0:
            _disturb(module, ctx.rank)
        self.run = Side(ctx, workload, job.strategy, settings, module=module, data=data, places=data.places([ctx.rank]))
        # After the strategy's: what that refuses, it refuses on all ranks at once.
        self._alone = (
            SingleProcess(
                ctx,
                workload,
                settings,
                values=(*self._start.values(), *self._buffers),
                data=data,
                param_dtype=job.strategy.options.get("param_dtype"),
            )
            if ctx.rank == 0
            else None
        )
        self._clips = settings.clip_grad_norm is not None
        precisions = settings.precision, self.run.trainer.parallel.precision
        self._tolerance, self._floor = tolerances.tolerance(*precisions), tolerances.floor(*precisions)

    def compare_start(self) -> None:
        """Make sure that all ranks begin with the parameters and buffers of rank 0."""

        def cause(rank: int, _name: str, _found: Tensor | None) -> str:
            return "this rank was not given those of rank 0" if rank else ""

        deviations = state_deviations(self.run.parameters(), self._start)
        self._judge.compare("start parameters", 0, deviations, self._tolerance, cause)
        deviations = buffer_deviations(self.run.buffers(), self._buffers, self._buffer_names)
        self._judge.compare("start buffers", 0, deviations, self._tolerance, cause)

    def compare_step(self, index: int) -> None:
        """Train one step on both sides; make sure that losses, gradients and then parameters are the same.

        What a forward pass writes into buffers (a BatchNorm its statistics) is the strategy's own business: both sides
        begin each step with rank 0's.
        """
        step = index + 1
        loss, gradients = self.run.backward(index, self._buffers, self._judge.all_agree)
        right_loss, right = self._from_reference(lambda alone: alone.backward(index, self._buffers))
        self._compare_losses(step, loss, right_loss)
        deviations = gradient_deviations(gradients, right, self._floor, self._frozen)
        cause = partial(self._gradient_cause, index)
        self._judge.compare("gradients", step, deviations, self._tolerance, cause)
        self.run.update(step)
        if self._alone is not None:
            self._alone.update(step, gradients)
        if self._clips:
            self._compare_clipped(step)
        self._compare_parameters(step)
        self._buffers = self._judge.from_first(self.run.buffers)

    def compare_training(self) -> None:
        """Hold a lossy strategy to what it promises, in training on one small batch.

        Its ranks have the same parameters at least once in a while (post-local SGD averages them then), and its loss
        falls at least a share as far as a single process's.
        """
        losses, right, alike = [], [], False
        for step in range(1, LOSSY_STEPS + 1):
            loss, _ = self.run.backward(0, self._buffers, self._judge.all_agree)
            right.append(self._from_reference(partial(self._train_reference, step)))
            losses.append(self._mean(step, self._judge.gathered(loss)))
            self.run.update(step)
            alike = alike or self._alike()
        if not alike:
            fault = f"are not the same on all ranks after any of {LOSSY_STEPS} steps"
            tolerance = tolerances.ALIKE
            raise DiffersError(Discrepancy("own parameters", "the parameters", None, 0, math.inf, tolerance, fault))
        tolerance = 1 - tolerances.FALL
        missed = tolerances.missed(losses, right)
        self._judge.note("losses", _MEAN, missed, tolerance)
        if missed > tolerance:
            fault = (
                f"falls by {tolerances.fall(losses):.3g} in {LOSSY_STEPS} steps, that of a single process by "
                f"{tolerances.fall(right):.3g}: a lossy strategy has to reach {tolerances.FALL:g} of that"
            )
            raise DiffersError(Discrepancy("losses", _MEAN, None, 0, missed, tolerance, fault))

    def _train_reference(self, step: int, alone: SingleProcess) -> float:
        """The loss of a step that a single process takes on its own."""
        loss, gradients = alone.backward(0, self._buffers)
        alone.update(step, gradients)
        return loss

    def _alike(self) -> bool:
        """Whether all ranks have the same parameters now, as far as their norms tell."""
        first, *others = self._judge.gathered([norm(parameter) for parameter in self.run.parameters().values()])
        return all(
            math.isclose(ours, theirs, rel_tol=tolerances.ALIKE)
            for other in others
            for ours, theirs in zip(first, other, strict=True)
        )

    def _from_reference(self, make: Callable[[SingleProcess], T]) -> T:
        """What rank 0 makes of the single process, for all ranks."""

        def made() -> T:
            assert self._alone is not None  # noqa: S101  rank 0 has it
            return make(self._alone)

        return self._judge.from_first(made)

    def _compare_losses(self, step: int, loss: float, right: float) -> None:
        losses = self._judge.gathered(loss)
        mean = self._mean(step, losses)
        yardstick = max(abs(right), math.fsum(map(abs, losses)) / len(losses))
        error = abs(mean - right) / yardstick if yardstick else 0.0
        self._judge.note("losses", _MEAN, error, self._tolerance)
        if error > self._tolerance:
            fault = f"is {mean:.6g} instead of {right:.6g}, relative error {error:.3g}, tolerance {self._tolerance:g}"
            raise DiffersError(Discrepancy("losses", _MEAN, None, step, error, self._tolerance, fault))

    def _mean(self, step: int, losses: Sequence[float]) -> float:
        """Of one step's on all ranks."""
        for rank, loss in enumerate(losses):
            if not math.isfinite(loss):
                fault = f"is {loss}, where a single process has a finite one"
                raise DiffersError(Discrepancy("losses", "the loss", rank, step, math.inf, self._tolerance, fault))
        return math.fsum(losses) / len(losses)

    def _compare_clipped(self, step: int) -> None:
        right = self._from_reference(SingleProcess.gradients)

        def cause(_rank: int, name: str, found: Tensor | None) -> str:
            expected = right.get(name)
            return "" if found is None or expected is None else likely_cause(found, [[expected]], 0, self._tolerance)

        deviations = gradient_deviations(self.run.gradients(), right, self._floor, self._frozen)
        self._judge.compare("clipped gradients", step, deviations, self._tolerance, cause)

    def _compare_parameters(self, step: int) -> None:
        before = self._right
        right = self._from_reference(SingleProcess.parameters)

        def cause(_rank: int, name: str, found: Tensor | None) -> str:
            stayed = found is not None and name in before and distance(found, before[name]) == 0
            return "the optimizer's step did not reach it here" if stayed else ""

        deviations = parameter_deviations(self.run.parameters(), right, self._start)
        self._judge.compare("parameters", step, deviations, tolerances.UPDATE, cause)
        self._right = right

    def _gradient_cause(self, index: int, rank: int, name: str, found: Tensor | None) -> str:
        if self._alone is None or name in self._frozen or name not in self._start:
            return ""
        parts = self._alone.parts(name, index, self._buffers)
        return likely_cause(found, parts, rank, 3 * self._tolerance)


def _disturb(module: nn.Module, rank: int) -> None:
    """Change every parameter and buffer, whatever it is."""
    with torch.no_grad():
        fill(state(module), [_other(tensor, rank) for tensor in state(module)])


def _other(tensor: Tensor, rank: int) -> Tensor:
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor  # torch does not calculate in float8
    return tensor.logical_not() if tensor.dtype is torch.bool else 2 * tensor + rank
