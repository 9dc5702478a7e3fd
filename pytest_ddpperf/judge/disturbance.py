"""What else took the machine's cores meanwhile, and how much slower it may have made the steps."""

from __future__ import annotations

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement

ALWAYS = 0.03  # share of the cores' time that the system itself uses, in quiet too
MOST = 0.9  # of the cores: what is lost beyond explains anything
POWER = 2
"""How fast the excuse grows: of ``1 / (1 - lost)``, what lost cores alone would make of a step.

Ranks wait for each other, so a core that one of them loses for a moment holds up all. Two ranks on two cores of which
others took 54 to 70 % took 1.9 to 3.3 times as long for a step (benchmarks/against.py --load 2): that is up to the
power 1.1. The rest is for steps that wait for each other more often.
"""


def excused_by(measurement: Measurement, lost_then: float, worsening: float) -> Finding | None:
    """Why a slowdown beside a stored baseline says nothing: the cores that others took may explain all of it.

    Only what they took beyond what they did when the baseline was made, and a worsening that is larger than that may
    explain has no excuse: a machine that always loses some of its cores still has a gate.

    Args:
        measurement: with the health of its launches; of the CPU, for nothing tells how much of a GPU others took.
        lost_then: the share of the usable cores' time that others took when the baseline was made.
        worsening: of a time, relative: 0.5 for half as long again.

    Returns:
        A finding with the figures; None where there is no excuse.
    """
    lost = min(measurement.lost, MOST)
    usual = min(max(lost_then, ALWAYS), MOST)
    if lost <= usual:
        return None
    explained = ((1 - usual) / (1 - lost)) ** POWER - 1
    if worsening > explained:
        return None
    return Finding("disturbed", {"lost": measurement.lost, "before": lost_then if lost_then > ALWAYS else None})
