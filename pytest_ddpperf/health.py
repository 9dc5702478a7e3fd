"""What else went on in a machine during a launch, as far as the system tells. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuHealth:
    """The processor during a launch, from its start to its end; None for what the system does not tell.

    Attributes:
        others: share of the usable cores' time that was used by processes that are not ours.
        steal: share of the usable cores' time that a hypervisor gave to others while there was work to do here.
        throttled: seconds for which the control groups' CPU quota kept somebody in them waiting.
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


@dataclass(frozen=True)
class Health:
    """The machine during a launch."""

    cpu: CpuHealth
