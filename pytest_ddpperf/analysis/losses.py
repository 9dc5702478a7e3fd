"""The reasons why scaling is not ideal: by how much a step is longer than with ideal scaling, by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_ddpperf.records.diagnosis import Bottleneck, Diagnosis

LossKind = Literal["communication", "straggler", "data", "computing", "cores", "unclear"]

_KINDS: Mapping[Bottleneck, LossKind] = {
    "communication": "communication",
    "straggler": "straggler",
    "data": "data",
    "compute": "computing",
    "memory_bandwidth": "computing",
    "overhead": "computing",
    "oversubscribed": "cores",
    "disturbed": "cores",
    "unclear": "unclear",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingLoss:
    """The time that a point of a scaling curve loses compared with ideal scaling.

    Attributes:
        step: seconds of its step.
        ideal: seconds that the step would take with ideal scaling.
        kinds: lost seconds by cause, the largest first; together they are the loss. Below 0 if the point gains.
    """

    step: float
    ideal: float
    kinds: Mapping[LossKind, float]

    @property
    def seconds(self) -> float:
        """Returns the lost seconds of a step, of all causes together."""
        return self.step - self.ideal


def scaling_loss(base: Diagnosis, point: Diagnosis, efficiency: float) -> ScalingLoss:
    """Returns the loss of a point of a curve, from the causes of its step and of the base's step.

    With ideal scaling, each cause takes a fixed share of its time at the base: a half with strong scaling and twice the
    ranks, all of it with weak scaling. The share follows from the efficiency, which is the ideal divided by the
    measured step. Computing loses time if a smaller batch uses cores worse, or if ranks share the memory's bandwidth.
    """
    ideal = efficiency * point.step
    share = ideal / base.step
    kinds: dict[LossKind, float] = {}
    for bottleneck, kind in _KINDS.items():
        here, there = (0.0 if (cause := one.cause(bottleneck)) is None else cause.seconds for one in (point, base))
        kinds[kind] = kinds.get(kind, 0.0) + here - share * there
    largest_first = sorted(kinds.items(), key=lambda item: -item[1])
    return ScalingLoss(step=point.step, ideal=ideal, kinds=dict(largest_first))
