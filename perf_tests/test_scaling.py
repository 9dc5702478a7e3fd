"""Does the small language model still gain from more ranks?

An efficiency of 1 is perfect. In weak mode each rank has a batch of the same size; in strong mode the ranks share one
batch. The floor here is low, because the machine may be busy and shared. If each rank has a core or a GPU, require
more, such as `curve.efficiency(4) > 0.8`. The baseline detects smaller losses.
"""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import SMALL, language_model

pytestmark = pytest.mark.ddpperf(launches=3, warmup=3, communication=False)

WORLD_SIZES = [1, 2, 4]
FLOOR = 0.25


def test_weak_scaling(ddpperf: Ddpperf) -> None:
    curve = ddpperf.scaling(language_model(SMALL, batch_size=8), world_sizes=WORLD_SIZES, mode="weak")
    assert curve.efficiency(2) > FLOOR


@pytest.mark.sweep
def test_strong_scaling(ddpperf: Ddpperf) -> None:
    curve = ddpperf.scaling(language_model(SMALL, batch_size=16), world_sizes=WORLD_SIZES, mode="strong")
    assert curve.efficiency(2) > FLOOR
