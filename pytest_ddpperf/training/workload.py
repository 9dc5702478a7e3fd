"""The training job that a test measures, as factories. Importable without torch."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.host import from_here

if TYPE_CHECKING:
    import torch
    from torch import nn


_ARGUMENTS = {
    "model": (),
    "batch": (),
    "loader": ("rank", "world_size"),
    "loss": ("outputs", "targets"),
    "forward": ("model", "batch"),
    "optimizer": ("parameters",),
    "scheduler": ("optimizer",),
    "evaluate": ("model", "device"),
    "blocks": ("model",),
}
_FORMS = {name: f"{name}=lambda{' ' if names else ''}{', '.join(names)}: ..." for name, names in _ARGUMENTS.items()}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training job as factories: every rank of every launch builds its own job, from the same seeds.

    A step zeroes the gradients, computes ``outputs = model(inputs)`` and ``loss(outputs, targets)``, runs backward,
    synchronises the gradients and calls ``optimizer.step()``. The data come from either ``batch`` or ``loader``.
    ``forward`` takes the place of ``loss`` if batches are no pairs or the model has several inputs.

    Attributes:
        model: returns the module, which is then moved to the rank's device.
        batch: returns ``(inputs, targets)`` for one rank, called once; every step uses the result. Both may be nested
            structures of tensors; they are moved to the rank's device.
        loader: ``loader(rank, world_size)`` returns an iterable of such batches (a DataLoader), which begins again when
            it is exhausted. Waiting for a batch and moving it to the device are part of the step.
        loss: returns a scalar from ``(outputs, targets)``.
        forward: returns the loss, a scalar, from ``(model, batch)``. A batch may then be anything, such as a dict:
            ``forward=lambda model, batch: model(**batch).loss``.
        optimizer: returns the optimizer for the given parameters.
        scheduler: returns a scheduler of torch for that optimizer; its ``step()`` follows each optimizer step. None to
            keep the learning rate.
        evaluate: ``evaluate(model, device)`` returns the model's quality, for ``converge``: a number, or numbers by
            name, ``{"accuracy": 0.9}``. Every rank calls it, in evaluation mode without gradients, and the mean over
            ranks counts.
        samples_per_step: how many samples one rank's step trains on. In strong mode a workload describes the whole
            group's step instead: batches are global, and every rank takes an equal slice.
        tokens_per_step: how many tokens one rank's step trains on; None if there are none.
        blocks: returns the modules that FSDP shards one by one; None to find them by repetition.

    Raises:
        WorkloadError: a field has a wrong value; the message names the field and the cure.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[], Any] | None = None
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    forward: Callable[[nn.Module, Any], torch.Tensor] | None = None
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
    samples_per_step: float
    tokens_per_step: float | None = None
    loader: Callable[[int, int], Iterable[Any]] | None = None
    blocks: Callable[[nn.Module], Iterable[nn.Module]] | None = None
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    evaluate: Callable[[nn.Module, torch.device], float | Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if (self.batch is None) == (self.loader is None):
            raise WorkloadError(
                f"Workload has {'neither batch nor' if self.batch is None else 'both batch and'} loader: give one, "
                "either batch() for the same data in every step, or loader(rank, world_size) for an iterable of batches"
            )
        if (self.loss is None) == (self.forward is None):
            raise WorkloadError(
                f"Workload has {'neither loss nor' if self.loss is None else 'both loss and'} forward: give one, "
                "either loss(outputs, targets), or forward(model, batch), which returns the loss"
            )
        for name in _ARGUMENTS:
            value = getattr(self, name)
            required = name in {"model", "optimizer"}
            if not callable(value) and (required or value is not None):
                raise WorkloadError(f"Workload({name}=...) is {_short(value)}, not a function: give {_FORMS[name]}")
        _require_count("samples_per_step", self.samples_per_step)
        if self.tokens_per_step is not None:
            _require_count("tokens_per_step", self.tokens_per_step)
        self._refuse_modules()
        for name, form in _FORMS.items():
            value = getattr(self, name)
            problem = None if value is None else unfit(value, *_ARGUMENTS[name])
            if problem is not None:
                raise WorkloadError(f"Workload({name}=...): {problem}; give {form}")

    def _refuse_modules(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        if isinstance(self.model, torch.nn.Module):
            raise WorkloadError(
                f"Workload(model=...) is a {type(self.model).__name__} module: give a function that builds it, "
                "so that every rank has its own (model=lambda: ...)"
            )
        if isinstance(self.loss, type) and issubclass(self.loss, torch.nn.Module):
            name = self.loss.__name__
            raise WorkloadError(f"Workload(loss=...) is the class {name}: give an instance, loss={name}()")


def _require_count(name: str, value: object) -> None:
    is_count = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not is_count:
        raise WorkloadError(f"Workload({name}={_short(value)}): give a finite number above 0")


def _short(value: object, limit: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def unfit(function: Callable[..., object], *names: str, **options: object) -> str | None:
    """Returns a sentence if a function cannot be called with these arguments; None if it can, or if that is unknown.

    ``names`` name the positional arguments; ``options`` are the keyword arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some functions in C have no signature
    try:
        signature.bind(*names, **options)
    except TypeError as error:
        if hasattr(function, "__wrapped__") and _takes(function, *names, **options):
            return None  # a decorator gives the rest
        call = ", ".join([*names, *(f"{name}={value!r}" for name, value in options.items())])
        plain = [found.replace(annotation=found.empty) for found in signature.parameters.values()]
        takes = signature.replace(parameters=plain, return_annotation=signature.empty)
        return f"{located(function)} takes {takes} and is called as {_name(function)}({call}): {error}"
    return None


def _takes(function: Callable[..., object], *names: str, **options: object) -> bool:
    """Returns whether these arguments fit a function's signature, or the signature of its outermost decorator."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*names, **options)
    except TypeError:
        return False
    return True


def require_same_names(workload: Workload, names: Iterable[str], others: Iterable[str], where: str) -> None:
    """Raises a WorkloadError if two results of the workload's ``evaluate`` have different names of metrics."""
    odd = sorted({*names} ^ {*others})
    if odd:
        assert workload.evaluate is not None  # noqa: S101  the loss alone has one name
        raise WorkloadError(
            f"{located(workload.evaluate)}: evaluate(model, device) must return the same names on every rank and in "
            f"every call, but these names differ {where}: {', '.join(odd)}"
        )


def located(function: Callable[..., object]) -> str:
    """Returns a function's name with file and line, for messages: ``build (perf_tests/test_x.py:12)``."""
    name = _name(function)
    code = getattr(inspect.unwrap(_without_partial(function)), "__code__", None)
    if code is None:
        return name
    return f"{name} ({from_here(code.co_filename)}:{code.co_firstlineno})"


def _name(function: Callable[..., object]) -> str:
    function = _without_partial(function)
    return getattr(function, "__name__", type(function).__name__)


def _without_partial(function: Callable[..., object]) -> Callable[..., object]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
