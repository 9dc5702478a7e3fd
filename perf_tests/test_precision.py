"""How much faster is a narrower number format? Some CPUs have no units for bf16, and are slower with it."""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import SMALL, language_model

BATCH = 2  # on a CPU without bf16 units, a bf16 step takes ten times as long as an fp32 step

pytestmark = pytest.mark.ddpperf(launches=3, warmup=3)


def test_precision(ddpperf: Ddpperf) -> None:
    variants = {"fp32": {}, "bf16": {"precision": "bf16"}}
    ddpperf.compare(language_model(SMALL, BATCH), strategy="ddp", variants=variants)


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["tf32", "fp16"])  # fp16 is very slow on CPUs
def test_other_precisions(ddpperf: Ddpperf, precision: str) -> None:
    ddpperf.check(language_model(SMALL, BATCH), strategy="ddp", precision=precision)


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["bucketed", "zero1", "fsdp1", "fsdp2"])
def test_precision_of_strategies(ddpperf: Ddpperf, strategy: str, precision: str) -> None:
    ddpperf.check(language_model(SMALL, BATCH), strategy=strategy, precision=precision)
