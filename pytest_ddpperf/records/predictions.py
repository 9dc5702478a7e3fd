"""Predictions of steps, and advice on how to train: tests hold them, and reports show them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import stdev
from typing import Literal

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.timeline import Timeline
from pytest_ddpperf.units import format_count, format_percent, format_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """A step on a network, in seconds.

    Attributes:
        seconds: the whole step.
        computing: what it would take if each transfer took no time.
        communication: of all transfers, hidden ones too.
    """

    seconds: float
    computing: float
    communication: float

    @property
    def exposed(self) -> float:
        """Seconds by which transfers make the step longer."""
        return self.seconds - self.computing

    @property
    def efficiency(self) -> float:
        """The share of the step in which it computes: the efficiency of weak scaling beside one rank."""
        return self.computing / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Prediction(Replayed):
    """What a step is predicted to take: the most likely one; all times in seconds.

    Attributes:
        name: of the training.
        world_size: ranks.
        network: its name.
        accelerator: that computing is modelled for; empty if it was timed on this machine.
        timeline: what it was made of.
        corners: the steps of all ends of both bands, in the same order for each prediction of the same kind.
        scatter: the relative standard error of its computing.
        errors: standard errors that the band reaches to either side of what was timed.
        samples: of a step of all ranks; None if unknown.
        lost: the share of the cores' time that other processes and a hypervisor took while its computing was timed.
    """

    name: str
    world_size: int
    network: str
    accelerator: str
    corners: tuple[Replayed, ...] = field(repr=False)
    timeline: Timeline = field(repr=False)
    scatter: float
    errors: float
    samples: float | None = None
    lost: float = 0.0

    def __repr__(self) -> str:
        """Name, ranks and network, and the step with its band."""
        value, low, high = format_values((self.seconds, self.low, self.high), "s")
        where = f"{format_count(self.world_size, 'rank')} on {self.network}"
        share = format_percent(self.exposed / self.seconds)
        return f"<Prediction {self.name}: {where}, a step of {value} ({low} to {high}), {share} of it exposed>"

    @property
    def low(self) -> float:
        """A step at best."""
        return min(corner.seconds for corner in self.corners) * max(0.0, 1 - self.reach)

    @property
    def high(self) -> float:
        """A step at worst."""
        return max(corner.seconds for corner in self.corners) * (1 + self.reach)

    @property
    def reach(self) -> float:
        """Returns how far the computing may be from what was timed, relative, with 95 % confidence."""
        return self.errors * self.scatter

    @property
    def efficiency_low(self) -> float:
        """The efficiency at worst."""
        return min(corner.efficiency for corner in self.corners)

    @property
    def efficiency_high(self) -> float:
        """The efficiency at best."""
        return max(corner.efficiency for corner in self.corners)

    def _pairs(self, base: Prediction) -> list[tuple[Replayed, Replayed]]:
        """The ends that may be true together: networks of two kinds err each by itself."""
        if self.network == base.network:
            return list(zip(self.corners, base.corners, strict=True))
        ends = range(len(self.corners))
        return [(self.corners[i], base.corners[j]) for i in ends for j in ends if i // 2 == j // 2]

    def gain_over(self, base: Prediction) -> Gain:
        """Returns how much less time a sample takes than in another prediction; of a step, where samples are not known.

        Times that are modelled err the same way in both, so their ends are held against each other. Only what was timed
        apart adds its scatter: that of quotients by launch, where both were timed in turns.
        """
        scatter = self._apart(base)
        known = self.samples is not None and base.samples is not None
        share = base.samples / self.samples if known else 1.0  # type: ignore[operator]  # known
        pairs: list[tuple[Replayed, Replayed]] = [(self, base), *self._pairs(base)]
        value, *ends = (own.seconds / other.seconds * share for own, other in pairs)
        return Gain(value=1 - value, low=1 - max(ends) * (1 + scatter), high=1 - min(ends) * (1 - min(1.0, scatter)))

    def _apart(self, base: Prediction) -> float:
        """Returns how far the quotient of computing may be from what was timed, relative, with 95 % confidence."""
        if self.timeline is base.timeline:
            return 0.0
        pairs = list(zip(self.timeline.launches, base.timeline.launches, strict=False))
        if len(self.timeline.launches) != len(base.timeline.launches) or not all(map(all, pairs)) or not pairs:
            return math.hypot(self.reach, base.reach)
        return self.errors * stdev(math.log(own / other) for own, other in pairs) / math.sqrt(len(pairs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The share of a sample's time that a change is predicted to save, with its band; below 0 if it costs."""

    value: float  # most likely
    low: float  # at worst
    high: float  # at best

    @property
    def verdict(self) -> Literal["faster", "slower", "unclear"]:
        """Returns what the whole band says."""
        if self.low > 0:
            return "faster"
        return "slower" if self.high < 0 else "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """Ways to train, each with its prediction; the gains of the others are over the first.

    ``found["more ranks"]`` is the prediction of a way, ``found.gain("more ranks")`` what it saves.
    """

    predictions: Mapping[str, Prediction]

    def __getitem__(self, name: str) -> Prediction:
        """The prediction of a way; KeyError with the names of all where there is no such way."""
        __tracebackhide__ = True
        if name not in self.predictions:
            raise KeyError(f"no way {name!r}; there are {', '.join(self.predictions)}")
        return self.predictions[name]

    @property
    def over(self) -> str:
        """The name of the way that gains are over."""
        return next(iter(self.predictions))

    def gain(self, name: str) -> Gain:
        """Returns what a way saves of a sample's time of the first one; SettingError if there is no such way."""
        __tracebackhide__ = True
        if name not in self.predictions:
            raise SettingError(f"gain({name!r}): there is no such way; give one of {', '.join(self.predictions)}")
        return self[name].gain_over(self[self.over])

    @property
    def fastest(self) -> str:
        """The name of the way that takes the least time for a sample; for a step, where samples are not known."""
        return max(self.predictions, key=lambda name: self.gain(name).value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """A prediction of a test; ``gain`` over the first way of its call, None for the first itself."""

    test: str
    prediction: Prediction
    gain: Gain | None = None

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """Returns what tells it from other predictions."""
        found = self.prediction
        return self.test, found.name, found.world_size, found.network, found.accelerator


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
