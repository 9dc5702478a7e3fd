"""What else went on in a machine during a launch, as far as the system tells. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuHealth:
    """The processor during a launch, from its start to its end; None for what the system does not tell.

    Attributes:
        others: share of the usable cores' time that was used by processes that are not ours.
        steal: share of the usable cores' time that a hypervisor gave to others while there was work to do here.
        throttled: seconds for which the control groups' CPU quota kept somebody in them waiting, added up over cores.
        overheated: how many times a usable core slowed down because it was too hot.
        swapped: bytes that the machine moved between memory and swap.
        governor: what sets the cores' frequency, e.g. ``performance``; several are joined by commas.
        frequency: of the usable cores when the launch had ended, in Hz; the mean.
    """

    others: float | None = None
    steal: float | None = None
    throttled: float | None = None
    overheated: int | None = None
    swapped: int | None = None
    governor: str | None = None
    frequency: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A GPU during a launch, from readings a fraction of a second apart; None for what the driver does not tell.

    Attributes:
        device: NVIDIA's id of it, ``GPU-`` and a uuid.
        readings: how many the figures are of: those in which the GPU was busy; where it never was, all of them.
        utilisation: share of the time in which something ran on it; the mean.
        sm_clock: of the multiprocessors, in Hz; the median. ``memory_clock`` likewise.
        sm_clock_limit: the highest that the GPU can have, in Hz. ``memory_clock_limit`` likewise.
        temperature: the highest, in degrees Celsius.
        power: in W; the mean.
        throttled: share of the readings by what held the clocks back.
        others: bytes of the GPU's memory by pid, for processes that used it before the launch began and still did when
            it had ended; None for a number of bytes that is not told.
    """

    device: str
    readings: int
    utilisation: float | None = None
    sm_clock: float | None = None
    sm_clock_limit: float | None = None
    memory_clock: float | None = None
    memory_clock_limit: float | None = None
    temperature: float | None = None
    power: float | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The machine during a launch; ``gpus`` are all that the driver shows, none where they were not looked at."""

    cpu: CpuHealth
    gpus: tuple[GpuHealth, ...] = ()
