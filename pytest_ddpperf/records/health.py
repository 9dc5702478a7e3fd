"""Other activity on a machine during a launch, and limits of the machine, as far as the system reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuHealth:
    """The processor from the start of a launch to its end; a field is None if the system does not report it."""

    others: float | None = None  # share of the usable cores' time that other processes used
    steal: float | None = None  # share of that time in which a hypervisor kept cores from this machine's work
    throttled: float | None = None  # seconds of waiting because of the control groups' CPU quota, over all cores
    overheated: int | None = None  # how many times a usable core slowed down because it was too hot
    swapped: int | None = None  # bytes that the machine moved between memory and swap
    governor: str | None = None  # sets the cores' frequency, e.g. performance; several are joined by commas
    frequency: float | None = None  # mean of the usable cores when the launch had ended, in Hz
    power: float | None = None  # mean of all processor packages in timed steps, in W, including other processes' work


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A GPU during timed steps, read several times a second; a field is None if the driver does not report it."""

    device: str  # its PCI id, such as 0000:1b:00.0
    readings: int  # number of readings
    utilisation: float | None = None  # mean share of the time in which something ran on it
    sm_clock: float | None = None  # median of the multiprocessors' clock, in Hz
    sm_clock_limit: float | None = None  # the GPU's highest such clock, in Hz
    memory_clock: float | None = None  # median, in Hz
    memory_clock_limit: float | None = None  # the GPU's highest such clock, in Hz
    temperature: float | None = None  # highest, in degrees Celsius
    power: float | None = None  # mean, in W
    throttled: Mapping[str, float] = field(default_factory=dict)  # share of the time, by reason for reduced clocks
    # Bytes of the GPU's memory by pid, for processes that used it both before the launch began and after it ended;
    # None if the number of bytes is unknown.
    others: Mapping[int, int | None] = field(default_factory=dict)
    mig: bool = False  # divided into instances: the figures cover all of them, and other processes are unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of processors and GPUs during a launch."""

    cpu: CpuHealth  # from the start of the launch to its end
    nodes: Mapping[str, CpuHealth] = field(default_factory=dict)  # the same for other nodes, by name
    gpus: tuple[GpuHealth, ...] = ()  # the GPUs that ranks compute on
    unread_gpus: tuple[str, ...] = ()  # why other GPUs of the ranks were not read, as text
