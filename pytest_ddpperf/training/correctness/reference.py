"""The single process that a strategy is compared with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Option, Parallel, RankView, Strategy
from pytest_ddpperf.training import model, timing
from pytest_ddpperf.training.correctness import training_run
from pytest_ddpperf.training.correctness.deviation import distance, norm
from pytest_ddpperf.training.subject import Workload

_NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_DRAWS = 3  # of moved parameters: the effect of a single draw may be small by chance
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class UnverifiableError(Exception):
    """The error if a single process cannot train as the ranks do; the message gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceStep:
    """The expected loss and gradients of a step: means over the ranks."""

    loss: float
    gradients: training_run.Gradients
    sizes: Mapping[str, float]  # by name, of the norms of the ranks' own gradients; each has its share of rounding


class SingleProcess:
    """One process that trains on the micro-batches of all ranks, as the reference of a strategy.

    The process computes, bit for bit, the gradients that each rank has before averaging, and takes their mean. It uses
    neither torch.compile nor activation checkpointing. If the strategy casts parameters, so does this process.
    """

    def __init__(
        self,
        ctx: RankView,
        workload: Workload,
        settings: Settings,
        *,
        values: Iterable[Tensor],
        data: training_run.MicroBatches,
        param_dtype: Option | None = None,
    ) -> None:
        self._ctx, self._data = RankContext(0, 1, 0, 1, ctx.device, ctx.backend, None), data
        self._settings = replace(settings, no_sync=True, compile="no", activation_checkpointing=False)
        self._narrow = str(param_dtype) if param_dtype in _NARROW else None
        self._strategy = Strategy("single") if self._narrow is None else Strategy(computing_in, dtype=self._narrow)
        # Without state, for gradients that are only looked at.
        self._untrained = replace(
            workload, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0), scheduler=None
        )
        self._tried = False
        with _fitting():
            self._module = model.build_model(workload)
            training_run.fill(training_run.state(self._module), values)
            self._ranks = [self._run(data.places(rank), self._settings) for rank in range(len(data.shards))]
            # The gradients for the update are already unscaled.
            unscaled = replace(self._settings, precision="fp32") if settings.precision == "fp16" else self._settings
            self.training = self._run(data.places(0), unscaled, workload)

    def backward(self, step: int, buffers: training_run.Buffers) -> ReferenceStep:
        """Computes loss and gradients of a step, averaged over the ranks.

        Raises UnverifiableError if the model communicates between ranks, does not fit on one device, or cannot be cast,
        and WorkloadError if the loss or a gradient is not finite.
        """
        # A model that communicates does so in its first forward pass, and not every model tolerates such a mode.
        first, self._tried = not self._tried, True
        guard = _CollectivesRefused() if first else nullcontext()  # type: ignore[no-untyped-call]  # torch's is not annotated
        own = self._watched if first and self._untrained.batch is not None else self._own
        try:
            with _fitting(), guard:
                losses, gradients = zip(*(own(run, step, buffers) for run in self._ranks), strict=True)
        except RuntimeError as error:
            if self._narrow is None:
                raise
            # FSDP1 spares BatchNorms, for example, which refuse a running mean of another type.
            reason = str(error).partition("\n")[0]
            raise UnverifiableError(
                f"the single process fails with all parameters cast to {self._narrow}: {reason}"
            ) from error
        loss = math.fsum(losses) / len(losses)
        expected = {name: _mean([own[name] for own in gradients]) for name in gradients[0]}
        when = f"at step {step + 1} of a single process on the ranks' first batches"
        timing.loss_value(loss, when)
        for name, gradient in expected.items():
            if gradient is not None and not gradient.isfinite().all():
                raise WorkloadError(f"the gradient of {name} is not finite {when}: check the loss and the data")
        known = {name: [own[name] for own in gradients if own[name] is not None] for name in expected}
        sizes = {name: math.fsum(map(norm, found)) / len(gradients) for name, found in known.items()}
        return ReferenceStep(loss=loss, gradients=expected, sizes=sizes)

    def noise(self, step: int, buffers: training_run.Buffers, unit: float) -> dict[str, float]:
        """Returns, by name, the norm of the change of each gradient of a step if rounding errors change the parameters.

        Parameters change at random by up to ``unit`` times their value. A gradient that consists only of rounding
        errors changes by about its own norm; a small but meaningful gradient hardly changes.
        """
        parameters = [parameter for parameter in self._module.parameters() if _moves(parameter)]
        squares: dict[str, list[float]] = {}
        with _fitting():
            own = [self._own(run, step, buffers)[1] for run in self._ranks]
            kept = [parameter.detach().clone() for parameter in parameters]
            for draw in range(_DRAWS):
                move(parameters, unit, draw)
                for run, still in zip(self._ranks, own, strict=True):
                    for name, gradient in self._own(run, step, buffers)[1].items():
                        before = still[name]
                        apart = 0.0 if gradient is None or before is None else distance(gradient, before)
                        squares.setdefault(name, []).append(apart**2)
                training_run.fill(parameters, kept)
        return {name: math.sqrt(math.fsum(found) / len(found)) for name, found in squares.items()}

    def update(self, step: int, gradients: training_run.Gradients) -> None:
        """Steps the single process's optimizer with the given gradients, usually the ranks' averaged gradients."""
        for name, parameter in self._module.named_parameters():
            gradient = gradients.get(name)
            if gradient is not None and parameter.grad is not None and parameter.grad.is_sparse:
                gradient = gradient.to_sparse(parameter.grad.sparse_dim())  # SparseAdam takes no dense gradient
            parameter.grad = None if gradient is None else gradient.to(parameter)
        with _fitting():
            self.training.update(step)  # its own gradients may be mere rounding, from which Adam would make a full step

    def parts(self, name: str, step: int, buffers: training_run.Buffers) -> list[list[Tensor]]:
        """Returns the gradients of one parameter in a step, separately for each micro-batch: [rank][micro-batch]."""
        settings = replace(self._settings, accumulation_steps=1)

        def part(place: training_run.MicroBatchIndex) -> Tensor:
            found = self._run([place], settings).backward(step, buffers)[1][name]
            return torch.zeros_like(self._module.get_parameter(name), device="cpu") if found is None else found

        ranks = range(len(self._data.shards))
        with _fitting():
            return [[part(place) for place in self._data.places(rank)] for rank in ranks]

    def _run(
        self, places: Sequence[training_run.MicroBatchIndex], settings: Settings, workload: Workload | None = None
    ) -> training_run.TrainingRun:
        return training_run.TrainingRun(
            self._ctx,
            workload or self._untrained,
            self._strategy,
            settings,
            module=self._module,
            data=self._data,
            places=places,
        )

    def _watched(
        self, run: training_run.TrainingRun, step: int, buffers: training_run.Buffers
    ) -> tuple[float, training_run.Gradients]:
        given = self._data.copies(run.places, step, self._ctx.device)
        before = list(map(training_run.copied, given))
        found = self._own(run, step, buffers, given)
        taken, ways = training_run.changes(before, given)
        if taken:
            raise training_run.refusal(self._untrained, taken, taken=True)
        if ways:
            once = list(map(training_run.copied, given))
            # What a second step leaves alone may stay: padding may be masked in place.
            with contextlib.suppress(Exception):  # what is left of the batch may be of no use
                self._own(run, step, buffers, given)
                _, ways = training_run.changes(once, given)
        if ways:
            raise training_run.refusal(self._untrained, ways, taken=False)
        return found

    def _own(
        self,
        run: training_run.TrainingRun,
        step: int,
        buffers: training_run.Buffers,
        given: Sequence[training_run.Pair] | None = None,
    ) -> tuple[float, training_run.Gradients]:
        found = run.backward(step, buffers, given=given)
        if self._settings.precision == "fp16":
            run.skip()
        return found


def computing_in(module: nn.Module, _ctx: RankView, *, dtype: str) -> Parallel:
    """Returns the module for one process, with parameters and inputs cast to ``dtype`` in the forward pass."""
    return Parallel(_CastModule(module, _NARROW[dtype]))


class _CastModule(nn.Module):
    """A module that runs another one with inputs and parameters cast to a dtype; gradients keep the original dtype."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self._dtype = dtype

    def forward(self, inputs: Any) -> Any:
        cast = {name: self._narrowed(parameter) for name, parameter in self.module.named_parameters()}
        return torch.func.functional_call(self.module, cast, tree_map(self._narrowed, (inputs,)))

    def _narrowed(self, value: Any) -> Any:
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class _CollectivesRefused(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is not annotated
    """A context that makes collectives raise an error, because the other ranks would never answer."""

    supports_higher_order_operators = True
    ignore_compile_internals = is_infra_mode = classmethod(lambda _cls: True)  # as of ``OperatorCounter``

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if getattr(func, "namespace", "") in _COLLECTIVES:
            raise UnverifiableError("the model or its loss communicates between ranks")
        return func(*args, **(kwargs or {}))


@contextmanager
def _fitting() -> Iterator[None]:
    """Turns a lack of device memory into an UnverifiableError, because the comparison is then impossible."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UnverifiableError("the whole model does not fit into the memory of one device") from error


def _moves(parameter: Tensor) -> bool:
    return (parameter.is_floating_point() and parameter.itemsize > 1) or parameter.is_complex()


def move(parameters: Iterable[Tensor], unit: float, draw: int) -> None:
    """Changes each element of the parameters at random by up to ``unit`` times its value; ``draw`` is the seed."""
    for parameter in filter(_moves, parameters):
        still, generator = parameter.detach(), torch.Generator().manual_seed(draw)
        shifts = torch.rand(still.shape, generator=generator) * 2 - 1
        training_run.fill([parameter], [torch.addcmul(still, still, (unit * shifts).to(still))])


def _mean(gradients: Sequence[Tensor | None]) -> Tensor | None:
    there = [gradient for gradient in gradients if gradient is not None]
    if not there:
        return None
    wide = torch.complex128 if there[0].is_complex() else torch.float64
    total = torch.zeros(there[0].shape, dtype=wide)
    for gradient in there:
        total += gradient
    return (total / len(gradients)).to(there[0].dtype)
