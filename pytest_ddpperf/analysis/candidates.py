"""Ways to train a model on so many ranks: which fit into memory, and which is predicted to be fastest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_ddpperf.analysis.predictions import Prediction

ROOM = 0.9
"""The share of a memory that tensors may take: the rest is for the allocator, the context and NCCL's buffers."""

Standing = Literal["best", "maybe as good", "slower", "not timed", "does not fit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A way to train.

    Attributes:
        name: strategy and settings in one line.
        strategy: as ``ddpperf.check`` takes it.
        settings: as ``ddpperf.check`` takes them, where they are not the defaults.
        batch_size: samples of a rank's batch; None if the workload has one size.
        memory: bytes of tensors that a rank takes at most in a step; None if it could not be simulated.
        fits: whether they fit into the memory that there is.
        reason: why it does not fit, or could not be simulated or timed; empty if there is a prediction.
        prediction: of its step; None if it does not fit, or could not be timed.
        measured: seconds of a step, where ranks of this machine ran it; None if none did.
        standing: among all candidates, by the predicted time for a sample; "maybe as good" by the bands of both.
    """

    name: str
    strategy: str
    settings: Mapping[str, object] = field(default_factory=dict)
    batch_size: int | None = None
    memory: float | None = None
    fits: bool = True
    reason: str = ""
    prediction: Prediction | None = None
    measured: float | None = None
    standing: Standing = "not timed"


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyAdvice:
    """Candidates, those with a prediction first, the fastest of them first.

    Attributes:
        test: pytest node id; empty outside of a test.
        candidates: all of them.
        world_size: ranks.
        memory: bytes that a rank may take; None for no limit.
    """

    test: str
    candidates: tuple[Candidate, ...]
    world_size: int
    memory: float | None

    @property
    def best(self) -> Candidate | None:
        """The one that fits with the least predicted time for a sample; None if none has a prediction."""
        return next((candidate for candidate in self.candidates if candidate.standing == "best"), None)


def ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Candidates in the order of advice, each with its standing."""

    def place(candidate: Candidate) -> tuple[bool, float]:
        prediction = candidate.prediction
        if prediction is None:
            return True, candidate.memory or 0.0
        return False, prediction.seconds / (prediction.samples or 1.0)  # for a sample, or else for a step

    ordered = sorted(candidates, key=place)
    return tuple(replace(candidate, standing=_standing(candidate, ordered[0])) for candidate in ordered)


def _standing(candidate: Candidate, first: Candidate) -> Standing:
    if candidate.prediction is None or first.prediction is None:
        return "not timed" if candidate.fits else "does not fit"
    if candidate is first:
        return "best"
    return "maybe as good" if candidate.prediction.gain_over(first.prediction).high >= 0 else "slower"
