"""Does the small language model still gain from more ranks?

Efficiency 1 is perfect. In weak mode each rank keeps its batch, in strong mode the ranks share one. The floor here is
one that a busy shared machine keeps; a machine with a core or a GPU for every rank should be asked for more, e.g.
`curve.efficiency(4) > 0.8`. The baseline guards against a smaller loss than that.
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
