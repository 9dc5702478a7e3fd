"""The steps that take far longer than the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LongSteps:
    """The steps of some launches that take more than twice as long as the median step of their launch.

    Attributes:
        number: of long steps.
        steps: of all steps.
        factor: how many times the median step a long one takes, on average; 0 if there is none.
        share: the part of the time of all steps that the long ones take.
        period: the number of steps from one to the next; None if it differs, or fewer than three tell it.
        phase: the phase in which they take most of what they take more than the median step; None if no diagnosed step
            was long, or no phase has half of that.
    """

    number: int
    steps: int
    factor: float
    share: float
    period: int | None
    phase: str | None = None
