"""What else went on in a machine during a launch, as far as the system tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuHealth:
    """The processor during a launch, from its start to its end; None for what the system does not tell."""

    others: float | None = None  # share of the usable cores' time that processes used which are not ours
    steal: float | None = None  # share of that time that a hypervisor gave to others while there was work here
    throttled: float | None = None  # seconds that the control groups' CPU quota kept somebody waiting, over all cores
    overheated: int | None = None  # how many times a usable core slowed down because it was too hot
    swapped: int | None = None  # bytes that the machine moved between memory and swap
    governor: str | None = None  # what sets the cores' frequency, e.g. performance; several are joined by commas
    frequency: float | None = None  # mean of the usable cores when the launch had ended, in Hz
    power: float | None = None  # mean of all processor packages in timed steps, in W, whoever computes on them


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A GPU in timed steps, from readings a fraction of a second apart; None for what the driver does not tell."""

    device: str  # its PCI id, such as 0000:1b:00.0
    readings: int  # that the figures are of
    utilisation: float | None = None  # mean share of the time in which something ran on it
    sm_clock: float | None = None  # median of the multiprocessors' clock, in Hz
    sm_clock_limit: float | None = None  # the highest that the GPU can have
    memory_clock: float | None = None  # median, in Hz
    memory_clock_limit: float | None = None  # the highest that the GPU can have
    temperature: float | None = None  # the highest, in degrees Celsius
    power: float | None = None  # mean, in W
    throttled: Mapping[str, float] = field(default_factory=dict)  # share of the time, by what held the clocks back
    # Bytes of the GPU's memory by pid, of processes that used it before the launch began and still did when it had
    # ended; None for a number of bytes that is not told.
    others: Mapping[int, int | None] = field(default_factory=dict)
    mig: bool = False  # divided into instances: the figures are of all of them, and others are not known


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The machine during a launch."""

    cpu: CpuHealth  # from the start of the launch to its end
    nodes: Mapping[str, CpuHealth] = field(default_factory=dict)  # the same of other nodes, by name
    gpus: tuple[GpuHealth, ...] = ()  # that ranks compute on
    unread_gpus: tuple[str, ...] = ()  # in words, why not all of them
