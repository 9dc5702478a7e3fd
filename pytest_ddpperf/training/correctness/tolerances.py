"""Tolerances for comparing a strategy with a single process. Pure functions.

On a CPU, a rank's gradients before averaging equal the single process's to the last bit. So the gradients of a correct
strategy differ only by the rounding of the mean: 6e-8 in fp32, 5e-4 in fp16, 4e-3 in bf16. A mistake changes the
gradient of some rank by a sixth or more, because the losses of micro-batches have different weights. Tolerances lie
between both, with a margin for GPU kernels that add up in another order every time.

Errors are relative to the mean norm of the ranks' gradients of one parameter before averaging. Rounding affects each of
these gradients, even if their sum nearly cancels. A norm over all parameters would hide errors of small gradients.

The largest errors were measured on CPUs with 2 ranks and 1 or 2 micro-batches (a language model, convolutions with and
without BatchNorms, residual blocks scaled by 1e-6). Gradients had no error in fp32 and under autocast to bf16, and an
error of 5e-5 under autocast to fp16. Gradients that are sent in fp16 had an error of 5e-4, and in bf16 of 4e-3.

Parameters were also changed by a unit in the last place. This changes a meaningful gradient by at most 5e-7 of its norm
in fp32, 0.05 in fp16 and 0.2 in bf16. A gradient that is only rounding changes by 1.3 of its norm or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_ddpperf.strategies.strategy import Parallel
from pytest_ddpperf.training.verification import Leniency

_RELATIVE: Mapping[str, float] = {"fp32": 1e-3, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
_UNIT: Mapping[str, float] = {"fp32": 2.0**-23, "tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7}

UPDATE = 1e-3  # of parameters, relative to how far training has moved them: both sides take the same gradients
ALIKE = 1e-6  # of the norms of the parameters of ranks that are said to have the same parameters

# The share of a single process's fall of the loss that a lossy strategy has to reach. Rank-1 PowerSGD reaches 0.4 on
# convolutions, because it has to make up for what it lost in its first steps.
FALL = 0.2

_LAST = 3  # steps: their mean loss counts as the last loss
_NOTICEABLE = 0.01  # share of the first loss: a smaller fall shows no training


def tolerance(*precisions: str) -> float:
    """Returns the relative error that gradients and losses may have if they are computed in these precisions."""
    return max(_RELATIVE[precision] for precision in precisions)


def unit(*precisions: str) -> float:
    """Returns the distance from 1 to the next number in the least precise of these precisions."""
    return max(_UNIT[precision] for precision in precisions)


def smallest(*precisions: str) -> float:
    """Returns the smallest number above 0 in fp16 if one of the precisions is fp16, else 0."""
    return 2.0**-24 if "fp16" in precisions else 0.0


def excused(noise: float, size: float) -> float:
    """Returns the largest error of a gradient that rounding may explain.

    ``size`` is the mean norm of the ranks' gradients before averaging, and ``noise`` is the norm of their change by
    rounding. If ``noise`` is at least half of ``size``, the gradient consists of rounding errors, as for a bias in
    front of a BatchNorm. For other gradients, the result is at most an eighth of ``size``, because mistakes cause more.
    """
    return 4 * noise if noise >= size / 2 else min(2 * noise, size / 8)


def leniency(precision: str, parallel: Parallel) -> Leniency | None:
    """Returns the reason for a larger tolerance, if the strategy is lossy or less precise than ``precision``."""
    if parallel.lossy:
        return Leniency(precision=None, exact_steps=parallel.exact_steps)
    return Leniency(precision=parallel.precision) if tolerance(parallel.precision) > tolerance(precision) else None


def fall(losses: Sequence[float]) -> float:
    """Returns by how much the loss fell: the first loss minus the mean of the last three."""
    return losses[0] - math.fsum(losses[-_LAST:]) / len(losses[-_LAST:])


def falls(losses: Sequence[float]) -> bool:
    """Returns whether the loss fell by at least 1 % of the first loss, which shows that training works."""
    return fall(losses) >= _NOTICEABLE * abs(losses[0]) and fall(losses) > 0


def missed(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Returns how much of the reference's fall in loss the training misses, as a fraction; at least 0."""
    return max(0.0, 1 - fall(losses) / fall(reference))
