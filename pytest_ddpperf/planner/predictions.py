"""The predicted time of a step on a network, with its error, from its timeline and the costs of its transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from statistics import fmean, stdev

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.replay import replayed
from pytest_ddpperf.planner.transfers import Band, NetworkModel
from pytest_ddpperf.records.predictions import Prediction, Replayed
from pytest_ddpperf.records.timeline import Timeline
from pytest_ddpperf.stats.intervals import t_quantile

_SPREAD = 2  # half the width of the band in standard errors, for a single launch
_SURE = 0.975  # the quantile of Student's t that is half the width of the band, for several launches


ROOFLINES = Band(1.25, 2.0, 3.5)
"""Factors of times by the roofline model with a datasheet's rates: trainings of large language models reach 0.35 to 0.6
of the datasheet's FLOP/s (PaLM 0.46, Chowdhery et al. 2022; Megatron-LM 0.3 to 0.52, Narayanan et al. 2021); products
alone reach 0.8 at best."""
MEASURED = 0.1
"""The relative error of computing timed on this machine, in addition to its scatter: real ranks disturb each other."""


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
    """Returns the prediction of a timeline on a network; SettingError if the network has no cost for a transfer."""
    costs = [network.seconds(transfer) for transfer in timeline.transfers]
    launches = len(timeline.launches)
    computing = ROOFLINES if accelerator else Band(1 - MEASURED, 1.0, 1 + MEASURED)

    def step(work: float, sending: float) -> Replayed:
        return replayed(timeline, [cost * sending for cost in costs], computing=work, taken=network.taken)

    ends = product((computing.low, computing.high), (network.band.low, network.band.high))
    return Prediction(
        **asdict(step(computing.likely, network.band.likely)),
        name=name,
        world_size=world_size,
        network=network.name,
        accelerator=accelerator,
        corners=tuple(step(work, sending) for work, sending in ends),
        scatter=timeline.scatter,
        errors=t_quantile(_SURE, launches - 1) if launches > 1 else _SPREAD,
        samples=samples,
        lost=lost,
        timeline=timeline,
    )


def typical(timelines: Sequence[Timeline]) -> Timeline:
    """Returns the mean timeline of the same step in several launches, with the scatter of computing between launches.

    SettingError if launches send different transfers.
    """
    first = timelines[0]
    if any(_shape(one) != _shape(first) for one in timelines):
        raise SettingError("launches send different collectives; the step must send the same ones in every launch")
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
