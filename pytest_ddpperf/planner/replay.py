"""The time of a step on a network, from its timeline: transfers run one after another, and computing awaits some."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.analysis.inputs import require_number
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.predictions import Replayed
from pytest_ddpperf.records.timeline import Timeline


def replayed(timeline: Timeline, costs: Sequence[float], *, computing: float = 1.0, taken: float = 0.0) -> Replayed:
    """Computes the times of a step, in which a transfer starts once it is called and the transfer before it has ended.

    All ranks are assumed to be equal. Transfers take the seconds in ``costs``, and times of computing are multiplied by
    ``computing``. ``taken`` is the fraction of computing that stops during a transfer: 1 if the computing core has to
    send, 0 if sending does not slow computing.
    """
    if len(costs) != len(timeline.transfers):
        raise SettingError(f"costs has {len(costs)} numbers for {len(timeline.transfers)} transfers; give one for each")
    now = sent = 0.0  # the present time of computing, and the end of the last transfer that was started
    ends = [0.0] * len(costs)
    for moment in timeline.moments:
        now = _computed(now, moment.computed * computing, sent, taken)
        if moment.waits:
            now = max(now, ends[moment.transfer])
        else:
            sent = ends[moment.transfer] = max(now, sent) + require_number("costs", costs[moment.transfer])
    now = _computed(now, timeline.rest * computing, sent, taken)
    steps = timeline.steps
    return Replayed(
        seconds=max(now, sent) / steps,
        computing=timeline.computing * computing / steps,
        communication=sum(costs) / steps,
    )


def _computed(now: float, work: float, sent: float, taken: float) -> float:
    """Returns the end of ``work`` seconds of computing that begins at ``now``; transfers run until ``sent``."""
    beside = max(0.0, sent - now)
    done = beside * (1 - taken)
    return now + work / (1 - taken) if work <= done and taken < 1 else now + beside + work - done
