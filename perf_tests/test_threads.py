"""How much faster is a rank with more threads? Alternatives may differ in environment variables."""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import SMALL, language_model


@pytest.mark.ddpperf(launches=3, warmup=3, world_size=1, max_time=15)
def test_threads(ddpperf: Ddpperf) -> None:
    variants = {word: {"env": {"OMP_NUM_THREADS": number}} for number, word in enumerate(("one", "two"), 1)}
    ddpperf.compare(language_model(SMALL, batch_size=8), strategy="single", variants=variants)
