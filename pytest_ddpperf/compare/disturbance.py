"""What else took the machine's cores meanwhile, and how much slower it may have made the steps."""

from __future__ import annotations

from statistics import median

from pytest_ddpperf.health import CpuHealth
from pytest_ddpperf.records import Launch, Measurement
from pytest_ddpperf.units import format_percent

ALWAYS = 0.03  # share of the cores' time that the system itself uses, in quiet too
MOST = 0.9  # of the cores: what is lost beyond explains anything
POWER = 2
"""How fast the excuse grows: of ``1 / (1 - lost)``, what lost cores alone would make of a step.

Ranks wait for each other, so a core that one of them loses for a moment holds up all. Two ranks on two cores of which
others took 54 to 70 % took 1.9 to 3.3 times as long for a step (benchmarks/against.py --load 2): that is up to the
power 1.1. The rest is for steps that wait for each other more often.
"""


def excused_by(measurement: Measurement, worsening: float) -> str | None:
    """Why a slowdown beside a stored baseline says nothing: the cores that others took may explain all of it.

    A worsening that is larger than what they may explain has no excuse: a machine that always loses some per cent still
    has a gate.

    Args:
        measurement: with the health of its launches; of the CPU, for nothing tells how much of a GPU others took.
        worsening: of a time, relative: 0.5 for half as long again.

    Returns:
        A sentence with the figures; None where there is no excuse.
    """
    if measurement.environment.device != "cpu":
        return None
    shares = [share for share in map(_lost, measurement.launches) if share is not None]
    if not shares:
        return None
    lost = median(shares)
    explained = (1 / (1 - min(lost, MOST))) ** POWER - 1
    if lost <= 0 or worsening > explained:
        return None
    return (
        f"disturbed: other processes or the hypervisor took {format_percent(lost + ALWAYS)} of the cores, which may "
        f"explain up to {format_percent(explained)}; run it again on a quiet machine, or see --ddpperf-against"
    )


def _lost(launch: Launch) -> float | None:
    """The share of the usable cores' time that was lost to others in a launch, beyond what always is."""
    if launch.health is None:
        return None
    return max(0.0, _shares(launch.health.cpu) - ALWAYS)


def _shares(cpu: CpuHealth) -> float:
    return (cpu.others or 0.0) + (cpu.steal or 0.0)
