"""How much does one synchronisation for several micro-batches save, and how much does a forgotten `no_sync` cost?"""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import SMALL, language_model

pytestmark = pytest.mark.ddpperf(launches=3, warmup=3)
VARIANTS = {
    "one batch": {},
    "four, synchronised each": {"accumulation_steps": 4, "no_sync": False},
    "four": {"accumulation_steps": 4},
}


def test_accumulation(ddpperf: Ddpperf) -> None:
    ddpperf.compare(language_model(SMALL, batch_size=2), strategy="ddp", variants=VARIANTS)


@pytest.mark.sweep
@pytest.mark.parametrize("steps", [2, 8])
@pytest.mark.parametrize("strategy", ["naive", "bucketed", "fsdp1", "fsdp2"])
def test_accumulation_of_strategies(ddpperf: Ddpperf, strategy: str, steps: int) -> None:
    ddpperf.check(language_model(SMALL, batch_size=2), strategy=strategy, accumulation_steps=steps)
