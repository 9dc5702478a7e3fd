"""Does the language model train as fast as its baseline? A test fails if the step became slower."""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import LARGER, SMALL, language_model


@pytest.mark.ddpperf(launches=3, warmup=3)
@pytest.mark.parametrize("strategy", ["naive", "ddp"])
def test_small(ddpperf: Ddpperf, strategy: str) -> None:
    ddpperf.check(language_model(SMALL, batch_size=8), strategy=strategy)


@pytest.mark.ddpperf(launches=2, warmup=3)
def test_larger(ddpperf: Ddpperf) -> None:
    ddpperf.check(language_model(LARGER, batch_size=2), strategy="ddp")
