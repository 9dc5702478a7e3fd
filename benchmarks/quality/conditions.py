"""What is measured: steps of known lengths, in groups of two sizes, unchanged and made slower in known ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

UNCHANGED = "unchanged"
FIRST = "first launch +20%"


@dataclass(frozen=True)
class Length:
    """A training step: a perceptron of ``depth`` square layers under DDP, plain SGD.

    Attributes:
        name: about how long it lasts with two ranks on the machine that the sizes were chosen on.
        steps: timed ones of a launch: about a second's worth, as the plugin has it beside a stored baseline.
    """

    name: str
    width: int
    depth: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Condition:
    """How a step is changed.

    Attributes:
        name: in tables and in the file.
        work: small matrix products added to a step, as a share of the step's own length.
        every: which steps get them: 1 for all, 10 for one in ten.
        rank: the only rank that gets them; None for all.
        communication: further all-reduces, as a share of the step's own length.
        launches: of one round.
        alarm: whether it is slower, so that finding it is right.
    """

    name: str
    work: float = 0.0
    every: int = 1
    rank: int | None = None
    communication: float = 0.0
    launches: int = 1
    alarm: bool = True


@dataclass(frozen=True)
class Injection:
    """What a rank adds to its steps: ``products`` in one step of ``every``, an all-reduce of ``elements``."""

    products: int = 0
    every: int = 1
    elements: int = 0


@dataclass(frozen=True)
class Calibration:
    """What one cell's own step and the parts of an injection take, in seconds; measured once, then fixed.

    Attributes:
        step: a typical step.
        product: one small matrix product.
        reduces: an all-reduce, by its number of elements.
    """

    step: float
    product: float
    reduces: Mapping[int, float]


LENGTHS = {
    length.name: length
    for length in (
        Length("4ms", width=192, depth=4, batch=160, steps=180),
        Length("12ms", width=256, depth=4, batch=400, steps=90),
        Length("60ms", width=512, depth=5, batch=510, steps=20),
        Length("78ms", width=512, depth=6, batch=560, steps=15),
    )
}
OF_CAMPAIGNS = ("4ms", "12ms", "78ms")  # lengths that are measured unless others are asked for
CONDITIONS = {
    condition.name: condition
    for condition in (
        # Baselines for all others, and one another's A/A: so three of them run alone in a round.
        Condition(UNCHANGED, launches=3, alarm=False),
        Condition("+3%", work=0.03),
        Condition("+5%", work=0.05),
        Condition("+10%", work=0.10),
        Condition("1 step in 10", work=0.50, every=10),
        Condition("rank 1 +5%", work=0.05, rank=1),
        Condition("comm +5%", communication=0.05),
        Condition(FIRST, work=0.20, alarm=False),
    )
}


def injection(condition: Condition, calibration: Calibration) -> Injection:
    """What the ranks of this condition add to their steps."""
    return Injection(
        products=round(condition.work * calibration.step / calibration.product),
        every=condition.every,
        elements=0
        if not condition.communication
        else elements_for(condition.communication * calibration.step, calibration.reduces),
    )


def elements_for(seconds: float, reduces: Mapping[int, float]) -> int:
    """The number of elements whose all-reduce comes closest to ``seconds``, by the logarithm of their ratio."""
    return min(reduces, key=lambda elements: abs(math.log(reduces[elements] / seconds)))
