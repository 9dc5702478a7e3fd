"""How much of DDP's communication backward hides: buckets are sent one after another, in the order of their launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpperf.analysis.inputs import require_number
from pytest_ddpperf.errors import SettingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Communication during backward, in seconds from the start of backward."""

    backward: float  # when the computation of backward ends
    start: float  # when the first bucket is sent
    finish: float  # when the last one has arrived
    busy: float  # in which a bucket is under way

    @property
    def exposed(self) -> float:
        """Seconds that communication goes on after backward."""
        return max(0.0, self.finish - self.backward)

    @property
    def hidden(self) -> float:
        """Seconds of communication that computation hides."""
        return self.busy - self.exposed

    @property
    def window(self) -> float:
        """Seconds from the first bucket's start to the last one's end, which DDP's own log calls communication."""
        return self.finish - self.start

    @property
    def share(self) -> float | None:
        """The share of busy time that is hidden, from 0 to 1; None if nothing is sent."""
        return min(1.0, max(0.0, self.hidden / self.busy)) if self.busy else None


def overlapped(ready: Sequence[float], costs: Sequence[float], backward: float) -> Overlap:
    """Communication by the recurrence of a queue: a bucket starts when it is ready and the one before it has ended.

    Args:
        ready: seconds from the start of backward until each bucket is ready, in the order of launch.
        costs: seconds of each bucket's all-reduce.
        backward: seconds of the computation of backward.

    Raises:
        SettingError: times that cannot be, or not as many costs as buckets.
    """
    end = require_number("backward", backward)
    if len(ready) != len(costs):
        raise SettingError(f"costs has {len(costs)} times for {len(ready)} buckets; give one for each")
    finish, first = 0.0, None
    for when, cost in zip(ready, costs, strict=True):
        start = max(require_number("ready", when), finish)
        first = start if first is None else first
        finish = start + require_number("costs", cost)
    return Overlap(backward=end, start=first or 0.0, finish=finish, busy=sum(costs))
