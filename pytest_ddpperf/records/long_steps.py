"""The steps that take far longer than the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LongSteps:
    """The steps of some launches that take more than twice as long as the median step of their launch.

    Attributes:
        number: number of long steps.
        steps: number of all steps.
        factor: how many times the median step a long one takes, on average; 0 if there is none.
        share: the part of the time of all steps that the long ones take.
        period: steps from one long step to the next; None if these distances differ, or if there are fewer than two.
        phase: the phase with most of the extra time of long steps over the median step; None if no diagnosed step was
            long, or no phase has half of that time.
    """

    number: int
    steps: int
    factor: float
    share: float
    period: int | None
    phase: str | None = None
