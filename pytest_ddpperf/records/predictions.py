"""Timelines and predictions of steps, and advice on training, for tests and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import stdev
from typing import Literal

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.units import format_count, format_percent, format_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective of a step."""

    name: str  # all_reduce, all_gather
    nbytes: int  # bytes of the whole buffer, as nccl-tests counts them
    ranks: int  # number of ranks that take part
    stride: int = 1  # distance between the numbers of neighbouring ranks in its group


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A point of a step at which a transfer starts, or at which the rank waits for a transfer to end."""

    computed: float  # seconds of computing since the previous moment
    transfer: int  # index of the transfer in ``Timeline.transfers``
    waits: bool  # whether the step waits for the transfer to end


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The computing and the transfers of one rank, in one step or in the ``steps`` after which the work repeats."""

    transfers: tuple[Transfer, ...]  # its collectives, in the order in which they start
    moments: tuple[Moment, ...]  # the points that interrupt computing, in order
    rest: float  # seconds of computing after the last moment
    scatter: float = 0.0  # the relative standard error of the computing
    # Seconds of computing in each launch, if the timeline is their mean; empty for one launch.
    launches: tuple[float, ...] = ()
    steps: int = 1  # number of steps in the timeline
    samples: float | None = None  # of the rank in a step; None if unknown

    @property
    def computing(self) -> float:
        """The seconds of computing in the timeline."""
        return sum(moment.computed for moment in self.moments) + self.rest


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The predicted times of a step on a network, in seconds."""

    seconds: float  # the whole step
    computing: float  # the step if no transfer took any time
    communication: float  # of all transfers, including hidden ones

    @property
    def exposed(self) -> float:
        """The seconds by which transfers make the step longer."""
        return self.seconds - self.computing

    @property
    def efficiency(self) -> float:
        """The fraction of the step that is computing; this equals the efficiency of weak scaling from one rank."""
        return self.computing / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Prediction(Replayed):
    """A predicted step with its error band, from ``low`` to ``high``; all times in seconds."""

    name: str  # of the training
    world_size: int  # number of ranks
    network: str  # its name
    accelerator: str  # whose computing is modelled; empty if computing was timed on this machine
    # Four extreme cases: the least and the most computing, each with the least and the most transfer time.
    corners: tuple[Replayed, ...]
    timeline: Timeline  # that the prediction replays
    scatter: float  # the relative standard error of the timed computing
    errors: float  # how many standard errors of the timed computing the band covers on either side
    samples: float | None = None  # of all ranks in a step; None if unknown
    lost: float = 0.0  # the share of the cores' time that others took while computing was timed

    def __repr__(self) -> str:
        value, low, high = format_values((self.seconds, self.low, self.high), "s")
        where = f"{format_count(self.world_size, 'rank')} on {self.network}"
        share = format_percent(self.exposed / self.seconds)
        return f"<Prediction {self.name}: {where}, a step of {value} ({low} to {high}), {share} of it exposed>"

    @property
    def low(self) -> float:
        """The lower end of the error band of the step, in seconds."""
        return min(corner.seconds for corner in self.corners) * max(0.0, 1 - self.reach)

    @property
    def high(self) -> float:
        """The upper end of the error band of the step, in seconds."""
        return max(corner.seconds for corner in self.corners) * (1 + self.reach)

    @property
    def reach(self) -> float:
        """Returns the half width of the 95 % interval of the computing time, as a fraction of this time."""
        return self.errors * self.scatter

    @property
    def efficiency_low(self) -> float:
        """The lowest efficiency of the four extreme cases of computing time and transfer time (``corners``)."""
        return min(corner.efficiency for corner in self.corners)

    @property
    def efficiency_high(self) -> float:
        """The highest efficiency of the four extreme cases of computing time and transfer time (``corners``)."""
        return max(corner.efficiency for corner in self.corners)

    def _pairs(self, base: Prediction) -> list[tuple[Replayed, Replayed]]:
        """Returns pairs of extreme cases (``corners``) of this prediction and ``base`` whose errors can occur together.

        Transfers on one network have the same error in both predictions, but independent errors on two networks.
        """
        if self.network == base.network:
            return list(zip(self.corners, base.corners, strict=True))
        ends = range(len(self.corners))
        return [(self.corners[i], base.corners[j]) for i in ends for j in ends if i // 2 == j // 2]

    def gain_over(self, base: Prediction) -> Gain:
        """Returns the share of ``base``'s time per sample that this training saves; per step if samples are unknown.

        Modelled times have the same errors in both predictions, so only extreme cases (``corners``) that can occur
        together are compared. The band also covers the scatter of measured computing times.
        """
        scatter = self._quotient_error(base)
        known = self.samples is not None and base.samples is not None
        share = base.samples / self.samples if known else 1.0  # type: ignore[operator]  # known
        pairs: list[tuple[Replayed, Replayed]] = [(self, base), *self._pairs(base)]
        value, *ends = (own.seconds / other.seconds * share for own, other in pairs)
        return Gain(value=1 - value, low=1 - max(ends) * (1 + scatter), high=1 - min(ends) * (1 - min(1.0, scatter)))

    def _quotient_error(self, base: Prediction) -> float:
        """Returns the relative error of the quotient of both predictions' computing times, with 95 % confidence."""
        if self.timeline is base.timeline:
            return 0.0
        pairs = list(zip(self.timeline.launches, base.timeline.launches, strict=False))
        if len(self.timeline.launches) != len(base.timeline.launches) or not all(map(all, pairs)) or not pairs:
            return math.hypot(self.reach, base.reach)
        return self.errors * stdev(math.log(own / other) for own, other in pairs) / math.sqrt(len(pairs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """The share of the time per sample that a change is predicted to save, with an error band; negative if slower."""

    value: float  # most likely
    low: float  # at worst
    high: float  # at best

    @property
    def verdict(self) -> Literal["faster", "slower", "unclear"]:
        """Returns ``faster`` or ``slower`` if the whole band agrees, else ``unclear``."""
        if self.low > 0:
            return "faster"
        return "slower" if self.high < 0 else "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """Predictions of several trainings by name; gains are relative to the first training.

    With ``found = ddpperf.what_if(...)``, ``found["more ranks"]`` is a prediction, and ``found.gain("more ranks")``
    says how much of the first training's time the training "more ranks" saves.
    """

    predictions: Mapping[str, Prediction]

    def __getitem__(self, name: str) -> Prediction:
        """Returns the prediction with this name; raises KeyError with all names if there is none."""
        __tracebackhide__ = True
        if name not in self.predictions:
            raise KeyError(f"no prediction is named {name!r}; give one of {', '.join(self.predictions)}")
        return self.predictions[name]

    @property
    def over(self) -> str:
        """The name of the first training, to which gains are relative."""
        return next(iter(self.predictions))

    def gain(self, name: str) -> Gain:
        """Returns the share of the first training's time per sample that the training ``name`` saves."""
        __tracebackhide__ = True
        if name not in self.predictions:
            raise SettingError(f"gain({name!r}): there is no such name; give one of {', '.join(self.predictions)}")
        return self[name].gain_over(self[self.over])

    @property
    def fastest(self) -> str:
        """The name of the training with the least time per sample, or per step if samples are unknown."""
        return max(self.predictions, key=lambda name: self.gain(name).value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """A prediction in a test; ``gain`` compares it with the call's first prediction, and is None for the first."""

    test: str
    prediction: Prediction
    gain: Gain | None = None

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """Returns the fields that distinguish this prediction from others."""
        found = self.prediction
        return self.test, found.name, found.world_size, found.network, found.accelerator


Standing = Literal["best", "maybe as good", "slower", "not timed", "does not fit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A strategy with settings that ``ddpperf.advise`` considers; ``ddpperf.check`` takes them as arguments."""

    name: str  # strategy and settings in one line
    strategy: str
    settings: Mapping[str, object] = field(default_factory=dict)  # that differ from the call's
    batch_size: int | None = None  # samples of a rank's batch; None if the workload has one size
    memory: float | None = None  # the most bytes of a rank's tensors in a step; None if it could not be simulated
    fits: bool = True  # whether these bytes fit into the available memory
    reason: str = ""  # why it does not fit, or could not be simulated or timed; empty if there is a prediction
    prediction: Prediction | None = None  # of a step; None if it does not fit, or could not be timed
    measured: float | None = None  # seconds of a step on ranks of this machine; None if no ranks ran it
    standing: Standing = "not timed"  # by predicted time per sample; "maybe as good" if its band overlaps the best


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyAdvice:
    """Advice on how to train: all candidates, the fastest prediction first, candidates without a prediction last."""

    test: str  # pytest node id; empty outside of a test
    candidates: tuple[Candidate, ...]
    world_size: int  # number of ranks
    memory: float | None  # bytes that a rank may use; None for no limit

    @property
    def best(self) -> Candidate | None:
        """The fitting candidate with the least predicted time for a sample; None if no candidate has a prediction."""
        return next((candidate for candidate in self.candidates if candidate.standing == "best"), None)
