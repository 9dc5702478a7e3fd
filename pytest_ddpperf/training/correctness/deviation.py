"""The deviations of tensors from the reference, by name, and common mistakes that would explain them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.correctness.tolerances import UPDATE, excused

_ROUNDINGS = 4  # units in the last place by which parameters may always differ
_NAMED = 3  # unused parameters that a message names
_ALIKE = 0.99  # cosine above which two gradients differ by a factor only
_PERCENT = 0.05  # factors closer to 1 are given in percent


@dataclass(frozen=True, slots=True)
class Deviation:
    """The error of one tensor compared with the single process."""

    name: str
    error: float  # norm of the difference, relative to another norm; infinite if there is a fault
    fault: str = ""  # what is wrong, if it is not a matter of size
    found: Tensor | None = None
    apart: float = 0.0  # norm of the difference


def deviations_of(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], sizes: Mapping[str, float] | None = None
) -> list[Deviation]:
    """Returns each tensor's error relative to ``sizes`` or else to the expected norm; a tensor None counts as zeros."""
    deviations = [
        _deviation(name, found, target, (0.0 if target is None else norm(target)) if sizes is None else sizes[name])
        for name, target in expected.items()
    ]
    strangers = [Deviation(name, math.inf, "is no parameter of the model") for name in found if name not in expected]
    return deviations + strangers


def parameter_deviations(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor], start: Mapping[str, Tensor]
) -> list[Deviation]:
    """Returns the errors of parameters, relative to how far training has moved them from ``start``."""
    moved = {name: max(distance(target, start[name]), _rounding(target) / UPDATE) for name, target in expected.items()}
    return deviations_of(found, expected, moved)


def buffer_deviations(found: Sequence[Tensor], expected: Sequence[Tensor], names: Sequence[str]) -> list[Deviation]:
    """Returns the errors of buffers, in their order, relative to the norms of the expected buffers."""
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
    """Returns the deviations; if rounding may explain an error of a gradient, the error is scaled below ``tolerance``.

    ``sizes`` has each gradient's norm by tensor name; ``noise`` has the norm of the change that rounding causes in each
    gradient. ``smallest`` is the least number above 0 that the gradients' dtype can hold.
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
    """Returns the Euclidean norm of all elements."""
    return float(torch.linalg.vector_norm(_wide(tensor)))


def distance(found: Tensor, expected: Tensor) -> float:
    """Returns the norm of the difference of two tensors; equal infinities count as equal, and so do two NaNs."""
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


def likely_cause(found: Tensor | None, parts: Sequence[Sequence[Tensor]], rank: int, tolerance: float) -> str:
    """Names the common mistake that explains ``found``, a wrong gradient on a rank; empty if none explains it.

    ``parts[rank]`` has the right gradients of the rank's micro-batches. ``tolerance`` is the relative error within
    which a mistake's gradient must match ``found``.
    """
    if found is None or not found.any():
        return "no gradient arrived here"
    gradient = _real(found)
    shares = [[_real(part) / len(micro) for part in micro] for micro in parts]
    tried = [
        (distance(gradient, guess) / norm(guess), words) for guess, words in _mistakes(shares, rank) if guess.any()
    ]
    error, words = min(tried, key=lambda guess: guess[0], default=(tolerance + 1, ""))
    return words if error <= tolerance else _factor(gradient, _mean([_sum(share) for share in shares]))


def unused_cause(strategy: Strategy, gradients: Mapping[str, Tensor | None]) -> str:
    """Returns a text that names parameters without a gradient, if DDP would wait for these; else an empty text."""
    unused = [name for name, gradient in gradients.items() if gradient is None]
    told = strategy.options.get("find_unused_parameters") or strategy.options.get("static_graph")
    if strategy.function is not None or strategy.name not in {"ddp", "zero1"} or told or not unused:
        return ""
    names = ", ".join(unused[:_NAMED]) + (" and others" if len(unused) > _NAMED else "")
    return (
        f"{names} took no part in the loss, and DDP waits for all gradients: "
        f"use {strategy.name}[find_unused_parameters=true], or freeze what is not used"
    )


def _mistakes(shares: Sequence[Sequence[Tensor]], rank: int) -> Iterator[tuple[Tensor, str]]:
    """Yields the gradient that each common mistake gives, and the mistake in words, likelier mistakes first."""
    ranks, micro_batches = len(shares), len(shares[0])
    own = [_sum(share) for share in shares]
    right = _mean(own)
    if ranks > 1:
        yield own[rank], "the rank kept its own gradient, which was not synchronised"
        yield ranks * right, f"about {ranks} times too large: summed over the ranks instead of averaged"
        yield right / ranks, f"about {ranks} times too small: divided by the number of ranks twice"
        yield own[rank] / ranks, "the rank divided its own gradient by the number of ranks, but ranks were not summed"
        for other in range(ranks):
            yield own[other], f"the gradient of rank {other} alone, copied instead of averaged"
    if micro_batches == 1:
        return
    first, last = (_mean([share[i] for share in shares]) for i in (0, -1))
    yield last, "the gradient is only the last micro-batch's, because earlier micro-batches' gradients were lost"
    yield first, "the gradient is only the first micro-batch's, because ranks synchronised before accumulation ended"
    yield micro_batches * last, "the gradient is the last micro-batch's, as if the step had no other micro-batches"
    yield micro_batches * first, "the gradient is the first micro-batch's, as if the step had no other micro-batches"
    yield (
        first + _sum(shares[rank][1:]),
        "only the first micro-batch's gradient was synchronised; the other micro-batches' are this rank's own",
    )
    yield (
        _sum(shares[rank][:-1]) + last,
        "only the last micro-batch's gradient was synchronised; the other micro-batches' are this rank's own",
    )
    yield (
        micro_batches * right,
        f"about {micro_batches} times too large: summed over the micro-batches instead of averaged",
    )
    yield right / micro_batches, f"about {micro_batches} times too small: divided by the number of micro-batches twice"


def _factor(gradient: Tensor, right: Tensor) -> str:
    """Returns text such as ``about 2 times too large``, if a gradient is wrong only by a factor; else empty."""
    size, expected = norm(gradient), norm(right)
    along = float(torch.sum(gradient * right))
    if not along >= _ALIKE * size * expected > 0:
        return ""
    ratio = size / expected
    if abs(ratio - 1) < _PERCENT:
        return f"about {100 * abs(ratio - 1):.2g} % too {'large' if ratio > 1 else 'small'}"
    return f"about {ratio:.3g} times too large" if ratio > 1 else f"about {1 / ratio:.3g} times too small"


def _real(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(dim=0)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return _sum(tensors) / len(tensors)
