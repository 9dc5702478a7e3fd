"""How long a step will take on a network, with its error: from its timeline, and from what transfers cost there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean, stdev
from typing import Literal

from pytest_ddpperf.analysis.replay import Replayed, replayed
from pytest_ddpperf.analysis.transfers import Band, NetworkModel
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.timeline import Timeline
from pytest_ddpperf.stats.intervals import t_quantile
from pytest_ddpperf.units import format_count, format_percent, format_values

_SPREAD = 2  # standard errors of many steps that a band reaches to either side
_SURE = 0.975  # of a band by launches: the quantile of its upper end


ROOFLINES = Band(1.25, 2.0, 3.5)
"""Of the roofline with the figures of a datasheet: trainings of large language models reach 0.35 to 0.6 of the FLOP/s
that it has (PaLM 0.46, Chowdhery et al. 2022; Megatron-LM 0.3 to 0.52, Narayanan et al. 2021); products alone reach
0.8 at best."""
MEASURED = 0.1
"""The error of computing that was timed here, beside its scatter: ranks that are there disturb each other."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Prediction:
    """What a step is predicted to take; all times in seconds.

    Attributes:
        name: of the training.
        world_size: ranks.
        network: its name.
        accelerator: that computing is modelled for; empty if it was timed on this machine.
        likely: the step that is most likely.
        timeline: what it was made of.
        corners: the steps of all ends of both bands, in the same order for each prediction of the same kind.
        scatter: the relative standard error of its computing.
        samples: of a step of all ranks; None if unknown.
        lost: the share of the cores' time that other processes and a hypervisor took while its computing was timed.
    """

    name: str
    world_size: int
    network: str
    accelerator: str
    likely: Replayed
    corners: tuple[Replayed, ...] = field(repr=False)
    timeline: Timeline = field(repr=False)
    scatter: float
    samples: float | None = None
    lost: float = 0.0

    def __repr__(self) -> str:
        """Name, ranks and network, and the step with its band."""
        value, low, high = format_values((self.seconds, self.low, self.high), "s")
        where = f"{format_count(self.world_size, 'rank')} on {self.network}"
        share = format_percent(self.exposed / self.seconds)
        return f"<Prediction {self.name}: {where}, a step of {value} ({low} to {high}), {share} of it exposed>"

    @property
    def seconds(self) -> float:
        """A step."""
        return self.likely.seconds

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
        return _quantile(len(self.timeline.launches)) * self.scatter

    @property
    def exposed(self) -> float:
        """Communication that nothing hides."""
        return self.likely.exposed

    @property
    def communication(self) -> float:
        """All transfers, hidden ones too."""
        return self.likely.communication

    @property
    def computing(self) -> float:
        """A step without communication."""
        return self.likely.computing

    @property
    def efficiency(self) -> float:
        """Of weak scaling beside one rank: the share of the step in which it computes."""
        return self.likely.efficiency

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
        pairs = [(self.likely, base.likely), *self._pairs(base)]
        value, *ends = (own.seconds / other.seconds * share for own, other in pairs)
        return Gain(value=1 - value, low=1 - max(ends) * (1 + scatter), high=1 - min(ends) * (1 - min(1.0, scatter)))

    def _apart(self, base: Prediction) -> float:
        """Returns how far the quotient of computing may be from what was timed, relative, with 95 % confidence."""
        if self.timeline is base.timeline:
            return 0.0
        pairs = list(zip(self.timeline.launches, base.timeline.launches, strict=False))
        if len(self.timeline.launches) != len(base.timeline.launches) or not all(map(all, pairs)) or not pairs:
            return math.hypot(self.reach, base.reach)
        return _quantile(len(pairs)) * stdev(math.log(own / other) for own, other in pairs) / math.sqrt(len(pairs))


def _quantile(launches: int) -> float:
    """Returns how many standard errors a band reaches to either side, by the launches that tell these (Student's t)."""
    return t_quantile(_SURE, launches - 1) if launches > 1 else _SPREAD


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


def predicted(
    timeline: Timeline,
    network: NetworkModel,
    *,
    name: str,
    world_size: int,
    accelerator: str = "",
    samples: float | None = None,
    lost: float = 0.0,
) -> Prediction:
    """The step of a timeline on a network.

    Raises:
        SettingError: the network knows nothing of a transfer.
    """
    costs = [network.seconds(transfer) for transfer in timeline.transfers]
    computing = ROOFLINES if accelerator else Band(1 - MEASURED, 1.0, 1 + MEASURED)

    def step(work: float, sending: float) -> Replayed:
        return replayed(timeline, [cost * sending for cost in costs], computing=work, taken=network.taken)

    ends = product((computing.low, computing.high), (network.band.low, network.band.high))
    return Prediction(
        name=name,
        world_size=world_size,
        network=network.name,
        accelerator=accelerator,
        likely=step(computing.likely, network.band.likely),
        corners=tuple(step(work, sending) for work, sending in ends),
        scatter=timeline.scatter,
        samples=samples,
        lost=lost,
        timeline=timeline,
    )


def typical(timelines: Sequence[Timeline]) -> Timeline:
    """The mean of the timelines of several launches of the same step, with the scatter of these.

    Raises:
        SettingError: they differ in what they send.
    """
    first = timelines[0]
    if any(_shape(one) != _shape(first) for one in timelines):
        raise SettingError("launches differ in what their steps send; let each launch send the same")
    if len(timelines) == 1:
        return first
    wholes = [one.computing for one in timelines]
    moments = (
        replace(each[0], computed=fmean(moment.computed for moment in each))
        for each in zip(*(one.moments for one in timelines), strict=True)
    )
    return replace(
        first,
        moments=tuple(moments),
        rest=fmean(one.rest for one in timelines),
        scatter=stdev(wholes) / fmean(wholes) / len(wholes) ** 0.5 if fmean(wholes) else 0.0,
        launches=tuple(wholes),
    )


def _shape(timeline: Timeline) -> object:
    return timeline.transfers, [(moment.transfer, moment.waits) for moment in timeline.moments]


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
