"""The deviation of tensors from the reference, name by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_ddpperf.training.correctness.tolerances import UPDATE, excused

_ROUNDINGS = 4  # units in the last place by which parameters may always differ


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of one tensor."""

    name: str
    error: float  # norm of the difference, relative to another norm; infinite if there is a fault
    fault: str = ""  # what is wrong, if it is not a matter of size
    found: Tensor | None = None
    apart: float = 0.0  # norm of the difference


def deviations_of(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], sizes: Mapping[str, float] | None = None
) -> list[Deviation]:
    """Compares tensors, relative to the given sizes, or else to themselves; None and zeros are the same."""
    deviations = [
        _deviation(name, found, target, (0.0 if target is None else norm(target)) if sizes is None else sizes[name])
        for name, target in expected.items()
    ]
    strangers = [Deviation(name, math.inf, "is no parameter of the model") for name in found if name not in expected]
    return deviations + strangers


def parameter_deviations(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor], start: Mapping[str, Tensor]
) -> list[Deviation]:
    """Compares parameters, relative to how far training moved them, or to their own rounding if that is more."""
    moved = {name: max(distance(target, start[name]), _rounding(target) / UPDATE) for name, target in expected.items()}
    return deviations_of(found, expected, moved)


def buffer_deviations(found: Sequence[Tensor], expected: Sequence[Tensor], names: Sequence[str]) -> list[Deviation]:
    """Compares buffers by their order, relative to themselves."""
    if len(found) != len(expected):
        return [Deviation("the number of buffers", math.inf, f"is {len(found)} instead of {len(expected)}")]
    return deviations_of(dict(zip(names, found, strict=True)), dict(zip(names, expected, strict=True)))


def apart_from_rounding(
    deviations: Iterable[Deviation],
    sizes: Mapping[str, float],
    noise: Mapping[str, float],
    tolerance: float,
    smallest: float = 0.0,
) -> list[Deviation]:
    """Scales the errors of gradients that rounding explains to below the tolerance.

    ``sizes`` are what errors are relative to, ``noise`` is how far rounding moves the gradients, both by name. Noise
    counts as at least what rounding to multiples of the ``smallest`` number makes, up to a sixteenth of a gradient.
    """

    def judged(found: Deviation) -> Deviation:
        if found.found is None or found.fault or found.error <= tolerance or found.name not in noise:
            return found
        size = sizes[found.name]
        rounding = min(smallest / 2 * math.sqrt(found.found.numel()), size / 16)
        limit = excused(max(noise[found.name], rounding), size)
        return replace(found, error=tolerance * found.apart / limit) if found.apart < limit else found

    return list(map(judged, deviations))


def norm(tensor: Tensor) -> float:
    """The Euclidean norm of all elements."""
    return float(torch.linalg.vector_norm(_wide(tensor)))


def distance(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference; equal infinities, and NaN on both sides, do not differ."""
    first, second = _wide(found), _wide(expected)
    same = (first == second) | (first.isnan() & second.isnan())
    return float(torch.linalg.vector_norm((first - second).masked_fill(same, 0)))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _rounding(tensor: Tensor) -> float:
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return _ROUNDINGS * torch.finfo(tensor.dtype).eps * norm(tensor) if inexact else 0.0


def _deviation(name: str, found: Mapping[str, Tensor | None], target: Tensor | None, size: float) -> Deviation:
    tensor = found.get(name)
    if tensor is None and target is None:
        return Deviation(name, 0.0)
    if name not in found and target is not None and target.any():
        return Deviation(name, math.inf, "is missing")
    if tensor is None:
        assert target is not None  # noqa: S101  one of them is there
        tensor = torch.zeros_like(target)
    elif target is None:
        target = torch.zeros_like(tensor)
    if tensor.shape != target.shape:
        return Deviation(name, math.inf, f"has shape {tuple(tensor.shape)} instead of {tuple(target.shape)}")
    apart = distance(tensor, target)
    if not math.isfinite(apart):
        return Deviation(name, math.inf, "is not finite", tensor)
    return Deviation(name, apart and (apart / size if size else math.inf), "", tensor, apart)
