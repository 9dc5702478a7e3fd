"""The likely cause of a wrong gradient: common mistakes, tried one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.correctness.deviation import distance, norm

_NAMED = 3  # unused parameters that a message names
_ALIKE = 0.99  # cosine above which two gradients differ by a factor only
_PERCENT = 0.05  # factors closer to 1 are given in percent


def likely_cause(found: Tensor | None, parts: Sequence[Sequence[Tensor]], rank: int, tolerance: float) -> str:
    """Names the mistake that explains a parameter's gradient on a rank; empty if none does.

    ``parts`` holds for each rank the gradients of its micro-batches' losses, whose mean over all is the reference.
    ``tolerance`` is how near an explanation must come, relative to what it expects.
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
    """Explains gradients that DDP never sends because it waits for others; empty if that is not the cause.

    ``gradients`` are those of a single process; None for parameters that took no part in the loss.
    """
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
    """Yields wrong gradients with their causes; of causes with the same gradient the likelier first."""
    ranks, micro_batches = len(shares), len(shares[0])
    own = [_sum(share) for share in shares]
    right = _mean(own)
    if ranks > 1:
        yield own[rank], "it is this rank's own gradient: it was not synchronised"
        yield ranks * right, f"about {ranks} times too large: summed over the ranks instead of averaged"
        yield right / ranks, f"about {ranks} times too small: divided by the number of ranks twice"
        yield own[rank] / ranks, "it is this rank's own gradient, divided by the number of ranks: it was not summed"
        for other in range(ranks):
            yield own[other], f"it is rank {other}'s own gradient: it was copied instead of averaged"
    if micro_batches > 1:
        yield from _accumulation_mistakes(shares, rank, right)


def _accumulation_mistakes(
    shares: Sequence[Sequence[Tensor]], rank: int, right: Tensor
) -> Iterator[tuple[Tensor, str]]:
    count = len(shares[0])
    first, last = (_mean([share[i] for share in shares]) for i in (0, -1))
    own = shares[rank]
    yield last, "it is that of the last micro-batch only: those before it were lost"
    yield first, "it is that of the first micro-batch only: synchronised before accumulation was done"
    yield count * last, "it is that of the last micro-batch only, as if there had been no others"
    yield count * first, "it is that of the first micro-batch only, as if there had been no others"
    yield (
        first + _sum(own[1:]),
        "only the first micro-batch's gradient was synchronised, before accumulation was done; the rest is this rank's",
    )
    yield (
        _sum(own[:-1]) + last,
        "only the last micro-batch's gradient was synchronised, before it was added to this rank's other ones",
    )
    yield count * right, f"about {count} times too large: summed over the micro-batches instead of averaged"
    yield right / count, f"about {count} times too small: divided by the number of micro-batches twice"


def _factor(gradient: Tensor, right: Tensor) -> str:
    """Says by what factor a gradient is too large or too small, if nothing else is wrong with it."""
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
