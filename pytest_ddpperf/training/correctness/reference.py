"""The single process that a strategy is held against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.correctness.deviation import distance, norm
from pytest_ddpperf.training.correctness.training_run import Buffers, Gradients, TrainingRun, fill, state
from pytest_ddpperf.training.loop import loss_value
from pytest_ddpperf.training.trainer import build_model

if TYPE_CHECKING:
    from pytest_ddpperf.records.measurement import Mode
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.strategies.strategy import Option
    from pytest_ddpperf.training.correctness.micro_batches import MicroBatches, MicroBatchIndex
    from pytest_ddpperf.training.workload import Workload

_NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_DRAWS = 3  # of moved parameters: one alone may be small by chance
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class UnverifiableError(Exception):
    """A single process cannot do what these ranks do; the text says why."""


@dataclass(frozen=True)
class ReferenceStep:
    """What is right in a step.

    Attributes:
        gradients: the mean of the ranks' own ones.
        sizes: by name, the mean of the norms of the ranks' own gradients, of which each has its share of rounding.
    """

    loss: float
    gradients: Gradients
    sizes: Mapping[str, float]


class SingleProcess:
    """One process that trains on the micro-batches of all ranks.

    It does for one rank after the other what that has to do, and takes the mean of their gradients: this is what data
    parallelism means by definition. Each rank's own gradients are so the same on both sides to the last bit, in every
    precision, and a BatchNorm sees the same samples. The model is neither compiled nor recomputed; where the strategy
    computes with parameters of a narrower type, so does the reference, because what gets lost there is no mistake.

    Args:
        ctx: the rank that it runs on.
        workload: with weighted losses.
        settings: of the strategy's run.
        values: of the parameters and then the buffers that it begins with.
        data: the micro-batches.
        param_dtype: what parameters are cast to for the forward pass, by its short name; None to leave them.

    Raises:
        UnverifiableError: the model does not fit on the device.
    """

    def __init__(
        self,
        ctx: RankView,
        workload: Workload,
        settings: Settings,
        *,
        values: Iterable[Tensor],
        data: MicroBatches,
        param_dtype: Option | None = None,
    ) -> None:
        self._ctx, self._data = _Alone(ctx.device, ctx.backend), data
        self._settings = replace(settings, no_sync=True, compile="no", activation_checkpointing=False)
        self._narrow = str(param_dtype) if param_dtype in _NARROW else None
        self._strategy = Strategy("single") if self._narrow is None else Strategy(computing_in, dtype=self._narrow)
        self._untrained = replace(workload, optimizer=_idle)
        self._tried = False
        with _fitting():
            self._module = build_model(workload)
            fill(state(self._module), values)
            self._ranks = [self._side(data.places([rank]), self._settings) for rank in range(len(data.shards))]
            # The gradients that it is given are scaled by nothing.
            unscaled = replace(self._settings, precision="fp32") if settings.precision == "fp16" else self._settings
            self._training = self._side(data.places([0]), unscaled, workload)

    def backward(self, step: int, buffers: Buffers) -> ReferenceStep:
        """Loss and gradients of a step: the mean over the ranks.

        Raises:
            UnverifiableError: the model communicates between ranks, does not fit on one device, or cannot be cast.
            WorkloadError: the loss or a gradient is no finite number.
        """
        # What communicates does so in the first forward pass already, and not everything likes such modes.
        guard = nullcontext() if self._tried else _Silence()  # type: ignore[no-untyped-call]  # torch's is not annotated
        self._tried = True
        try:
            with _fitting(), guard:
                losses, gradients = zip(*(self._own(side, step, buffers) for side in self._ranks), strict=True)
        except RuntimeError as error:
            if self._narrow is None:
                raise
            # FSDP1 spares each BatchNorm, for example, which would not take its running mean in another type.
            reason = str(error).partition("\n")[0]
            raise UnverifiableError(
                f"a model whose parameters are all cast to {self._narrow} fails: {reason}"
            ) from error
        loss = math.fsum(losses) / len(losses)
        right = {name: _mean([own[name] for own in gradients]) for name in gradients[0]}
        when = f"at step {step + 1} of a single process on the ranks' first batches"
        loss_value(loss, when)
        for name, gradient in right.items():
            if gradient is not None and not gradient.isfinite().all():
                raise WorkloadError(f"the gradient of {name} is not finite {when}: look at the loss and its data")
        return ReferenceStep(loss, right, {name: _mean_norm([own[name] for own in gradients]) for name in right})

    def noise(self, step: int, buffers: Buffers, unit: float) -> dict[str, float]:
        """How far rounding moves the gradients of a step: by the norm, of the mean over the ranks.

        Parameters are moved by up to a unit in the last place, at random, as an arithmetic of that unit does anyway;
        the root mean square of what this does to each rank's gradients is the noise. A gradient
        that is nothing but rounding (of a bias in front of a BatchNorm, or of attention's keys, where it changes
        nothing) moves as far as it is large; one that is only small, in a branch of small scale, hardly moves.

        Raises:
            UnverifiableError: the model does not fit on one device.
        """
        parameters = [parameter for parameter in self._module.parameters() if _moves(parameter)]
        squares: dict[str, list[float]] = {}
        with _fitting():
            own = [self._own(side, step, buffers)[1] for side in self._ranks]
            kept = [parameter.detach().clone() for parameter in parameters]
            for draw in range(_DRAWS):
                fill(parameters, [_moved(parameter, unit, draw) for parameter in kept])
                for side, still in zip(self._ranks, own, strict=True):
                    for name, gradient in self._own(side, step, buffers)[1].items():
                        squares.setdefault(name, []).append(_apart(gradient, still[name]) ** 2)
                fill(parameters, kept)
        return {name: math.sqrt(math.fsum(found) / len(found)) for name, found in squares.items()}

    def update(self, step: int, gradients: Gradients) -> None:
        """Step the optimizer with these gradients, which may be others than its own.

        Where a gradient is nothing but rounding, an optimizer such as Adam still makes a whole step of it. With the
        same gradients on both sides, whoever ends up elsewhere has updated wrongly.

        Raises:
            UnverifiableError: what the optimizer keeps does not fit on one device.
        """
        for name, parameter in self._module.named_parameters():
            gradient = gradients.get(name)
            # SparseAdam takes no dense gradient: rank 0's own is all that is there to be had.
            if parameter.grad is None or not parameter.grad.is_sparse:
                parameter.grad = None if gradient is None else gradient.to(parameter)
        with _fitting():
            self._training.update(step)

    def gradients(self) -> Gradients:
        """The gradients as they are now."""
        return self._training.gradients()

    def parameters(self) -> dict[str, Tensor]:
        """The parameters as they are now."""
        return self._training.parameters()

    def parts(self, name: str, step: int, buffers: Buffers) -> list[list[Tensor]]:
        """For each rank the gradients of one parameter that its micro-batches of a step give, each by itself.

        Raises:
            UnverifiableError: the model does not fit on one device.
        """
        settings = replace(self._settings, accumulation_steps=1)

        def part(place: tuple[int, int]) -> Tensor:
            found = self._side([place], settings).backward(step, buffers)[1][name]
            return torch.zeros(self._module.get_parameter(name).shape) if found is None else found

        ranks = range(len(self._data.shards))
        with _fitting():
            return [[part(place) for place in self._data.places([rank])] for rank in ranks]

    def _side(
        self, places: Sequence[MicroBatchIndex], settings: Settings, workload: Workload | None = None
    ) -> TrainingRun:
        chosen = self._untrained if workload is None else workload
        return TrainingRun(
            self._ctx, chosen, self._strategy, settings, module=self._module, data=self._data, places=places
        )

    def _own(self, side: TrainingRun, step: int, buffers: Buffers) -> tuple[float, Gradients]:
        """One rank's, whose scaler is then ready for the next."""
        found = side.backward(step, buffers)
        if self._settings.precision == "fp16":
            side.skip()
        return found


def computing_in(module: nn.Module, _ctx: RankView, *, dtype: str) -> Parallel:
    """A strategy for one process: parameters and inputs are cast for the forward pass, as FSDP's are."""
    return Parallel(_Cast(module, _NARROW[dtype]))


class _Cast(nn.Module):
    """Calls a module with inputs and parameters of another type; gradients come back in the parameters' own."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self._dtype = dtype

    def forward(self, inputs: Any) -> Any:
        cast = {name: self._narrowed(parameter) for name, parameter in self.module.named_parameters()}
        return torch.func.functional_call(self.module, cast, tree_map(self._narrowed, (inputs,)))

    def _narrowed(self, value: Any) -> Any:
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


@dataclass(frozen=True)
class _Alone:
    """The view of a rank beside which there is no other."""

    device: torch.device
    backend: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    mode: Mode | None = None

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Nobody looks at the phases of this one."""
        del name
        return nullcontext()


class _Silence(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is not annotated
    """Within, nothing can be sent to other ranks: they do not take part, and would never answer."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if getattr(func, "namespace", "") in _COLLECTIVES:
            raise UnverifiableError("the model or its loss communicates between ranks")
        return func(*args, **(kwargs or {}))


@contextmanager
def _fitting() -> Iterator[None]:
    """Where the device's memory does not suffice, there is nothing to compare with."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UnverifiableError("the whole model does not fit on one device") from error


def _idle(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer for gradients that are only looked at: it keeps nothing."""
    return torch.optim.SGD(parameters, lr=0.0)


def _moves(parameter: Tensor) -> bool:
    return (parameter.is_floating_point() and parameter.itemsize > 1) or parameter.is_complex()


def _moved(tensor: Tensor, unit: float, number: int) -> Tensor:
    """A tensor, each element of which has grown or shrunk by up to that share of itself."""
    generator = torch.Generator().manual_seed(number)
    shifts = torch.rand(tensor.shape, generator=generator) * 2 - 1
    return torch.addcmul(tensor, tensor, (unit * shifts).to(tensor))


def _apart(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        return 0.0
    return distance(one, other)


def _mean_norm(gradients: Sequence[Tensor | None]) -> float:
    return math.fsum(norm(gradient) for gradient in gradients if gradient is not None) / len(gradients)


def _mean(gradients: Sequence[Tensor | None]) -> Tensor | None:
    there = [gradient for gradient in gradients if gradient is not None]
    if not there:
        return None
    wide = torch.complex128 if there[0].is_complex() else torch.float64
    total = torch.zeros(there[0].shape, dtype=wide)
    for gradient in there:
        total += gradient
    return (total / len(gradients)).to(there[0].dtype)
