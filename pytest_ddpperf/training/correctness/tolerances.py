"""How far a strategy's numbers may lie from those of a single process. Pure.

Each rank's own gradients are the same on both sides, on a CPU to the last bit, so what is left to honest strategies is
how they round their mean: by the roundoff of the type that it is taken in, 6e-8 in fp32, 5e-4 in fp16, 4e-3 in bf16. A
mistake is off by a share of the data; the weights of the micro-batches see to it that on some rank this is a sixth or
more, whatever the data are. Tolerances lie between, with room for GPU kernels that add up in another order every time.

Errors are relative to the mean norm of the ranks' own gradients of the same parameter: each is rounded as it is, also
where they all but cancel. No other parameter matters, or parts of a model with small gradients would go unwatched.

The largest errors of gradients measured on CPUs with 2 ranks (a language model, convolutions with and without
BatchNorms, residual blocks scaled by 1e-6; 1 and 2 micro-batches) were 0 in fp32 and under autocast to bf16, 5e-5
under autocast to fp16, 5e-4 where gradients travel in fp16 and 4e-3 where they travel in bf16. Losses and parameters
were equal. Moving parameters by a unit in the last place moves the gradients that mean something by 5e-7 of themselves
in fp32, 0.05 in fp16 and 0.2 in bf16 at most, and those that are nothing but rounding by 1.3 or more in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_ddpperf.strategies.parallel import Parallel
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
    """Returns the relative error that gradients and losses may have, by the precisions that they went through."""
    return max(_RELATIVE[precision] for precision in precisions)


def unit(*precisions: str) -> float:
    """Returns a unit in the last place of 1, of the least precise of these precisions."""
    return max(_UNIT[precision] for precision in precisions)


def smallest(*precisions: str) -> float:
    """The smallest number that these precisions hold: smaller gradients vanish or are rounded to a few values."""
    return 2.0**-24 if "fp16" in precisions else 0.0


def excused(noise: float, size: float) -> float:
    """The largest difference of a gradient that rounding excuses, if its arithmetic differs from a single process's.

    A gradient that rounding moves by half of itself is nothing but rounding (that of a bias in front of a BatchNorm, or
    of attention's keys, where it changes nothing) and may be anything of that size. Of all others an eighth at most is
    excused, which is less than a mistake makes. ``noise`` is how far rounding moved the ranks' own gradients, ``size``
    their mean norm.
    """
    return 4 * noise if noise >= size / 2 else min(2 * noise, size / 8)


def leniency(precision: str, parallel: Parallel) -> Leniency | None:
    """Returns why a strategy is held to less than others at the benchmark's precision; None if it is not."""
    if parallel.lossy:
        return Leniency(precision=None, exact_steps=parallel.exact_steps)
    return Leniency(precision=parallel.precision) if tolerance(parallel.precision) > tolerance(precision) else None


def fall(losses: Sequence[float]) -> float:
    """Returns how far losses fell, from the first to the mean of the last three."""
    return losses[0] - math.fsum(losses[-_LAST:]) / len(losses[-_LAST:])


def falls(losses: Sequence[float]) -> bool:
    """Returns whether losses fall by at least a hundredth of the first, enough to tell training from none."""
    return fall(losses) >= _NOTICEABLE * abs(losses[0]) and fall(losses) > 0


def missed(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Returns the share of a single process's fall of the loss that losses missed; 0 if they fell at least as far."""
    return max(0.0, 1 - fall(losses) / fall(reference))
