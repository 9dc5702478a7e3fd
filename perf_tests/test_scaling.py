"""Does the small language model still gain from more ranks?

Efficiency 1 is perfect. At two ranks, more than 0.5 means in both modes that two ranks get more done than one: in weak
mode each rank keeps its batch, in strong mode the ranks share one. A machine with a core or a GPU for every rank
should be asked for more, e.g. `curve.efficiency(4) > 0.8`.
"""

from __future__ import annotations

from typing import Any

from .language_model import SMALL, language_model

WORLD_SIZES = [1, 2, 4]


def test_weak_scaling(ddpperf: Any) -> None:
    curve = ddpperf.scaling(language_model(SMALL, batch_size=8), world_sizes=WORLD_SIZES, mode="weak")
    assert curve.efficiency(2) > 0.5


def test_strong_scaling(ddpperf: Any) -> None:
    curve = ddpperf.scaling(language_model(SMALL, batch_size=16), world_sizes=WORLD_SIZES, mode="strong")
    assert curve.efficiency(2) > 0.5
