"""How far a strategy's numbers may lie from those of a single process. Pure.

Each rank's own gradients are the same on both sides, on a CPU to the last bit, so what is left to honest strategies is
how they round their mean: by the roundoff of the type that it is taken in, 6e-8 in fp32, 5e-4 in fp16, 4e-3 in bf16. A
mistake is off by a share of the data; the weights of the micro-batches see to it that on some rank this is a sixth or
more, whatever the data are. Tolerances lie between, with room for GPU kernels that add up in another order every time.

The largest errors of gradients measured on CPUs (every strategy of the table, in fp32, bf16 and fp16, 1 to 4
micro-batches, 2 and 3 ranks, a language model and convolutions) were 1.1e-7 where they travel in fp32, 5.8e-4 in fp16
and 5.8e-3 in bf16; losses and parameters were equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_RELATIVE: Mapping[str, float] = {"fp32": 1e-3, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}

UPDATE = 1e-3
"""Of parameters, relative to how far training has moved them: both sides update from the same gradients."""

ALIKE = 1e-6
"""Of the parameters' norms, between ranks that are said to have the same ones."""

FALL = 0.2
"""Share of a single process's fall of the loss that a lossy strategy has to reach.

Rank-1 PowerSGD reaches 0.4 on convolutions: it has to gather up what it lost in its first steps.
"""

_LAST = 3  # steps whose mean loss is the last one
_NOTICEABLE = 0.01  # a fall by less than this share of the first loss says nothing


def tolerance(*precisions: str) -> float:
    """The relative error that gradients and losses may have, by the precisions they went through."""
    return max(_RELATIVE[precision] for precision in precisions)


def floor(*precisions: str) -> float:
    """Share of the norm of all gradients that a gradient's error is at least relative to, by the same precisions.

    Some gradients are nothing but rounding (that of a bias in front of a BatchNorm, where it changes nothing): relative
    to themselves they are never right.
    """
    return 0.01 if set(precisions) == {"fp32"} else 0.1


def fall(losses: Sequence[float]) -> float:
    """How far losses fell, from the first to the mean of the last three."""
    return losses[0] - math.fsum(losses[-_LAST:]) / len(losses[-_LAST:])


def missed(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Share of a single process's fall of the loss that losses did not reach; 0 where they fell at least as far.

    Where it fell by less than a hundredth, or rose, there is nothing to be missed.
    """
    expected = fall(reference)
    return 0.0 if expected < _NOTICEABLE * abs(reference[0]) else max(0.0, 1 - fall(losses) / expected)
