"""What does a narrower number format gain here? A CPU without units for it may well lose."""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import SMALL, language_model

BATCH = 2  # steps of bf16 take ten times as long as those of fp32, on a CPU without units for it

pytestmark = pytest.mark.ddpperf(launches=3, warmup=3)


def test_precision(ddpperf: Ddpperf) -> None:
    ways = {"fp32": {}, "bf16": {"precision": "bf16"}}
    ddpperf.compare(language_model(SMALL, BATCH), strategy="ddp", ways=ways)


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["tf32", "fp16"])  # fp16 crawls on CPUs
def test_other_precisions(ddpperf: Ddpperf, precision: str) -> None:
    ddpperf.check(language_model(SMALL, BATCH), strategy="ddp", precision=precision)


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["bucketed", "zero1", "fsdp1", "fsdp2"])
def test_precision_of_strategies(ddpperf: Ddpperf, strategy: str, precision: str) -> None:
    ddpperf.check(language_model(SMALL, BATCH), strategy=strategy, precision=precision)
