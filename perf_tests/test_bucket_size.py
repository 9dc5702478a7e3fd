"""Which bucket size is fastest? Small buckets start early but cost more calls; large buckets overlap less."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddpperf import Ddpperf, Strategy

from .language_model import LARGER, SMALL, Size, language_model

DEFAULT = [0.25, 25]  # MiB
SWEEP = [0.25, 1, 2, 5, 10, 25, 100]


@pytest.mark.ddpperf(launches=3, warmup=3)
def test_bucket_size(ddpperf: Ddpperf) -> None:
    compare_sizes(ddpperf, SMALL, DEFAULT)


@pytest.mark.sweep
@pytest.mark.ddpperf(max_time=120)
@pytest.mark.parametrize("strategy", ["bucketed", "ddp"])
def test_bucket_sizes(ddpperf: Ddpperf, strategy: str) -> None:
    compare_sizes(ddpperf, LARGER, SWEEP, strategy)


def compare_sizes(ddpperf: Ddpperf, model: Size, sizes: Sequence[float], strategy: str = "ddp") -> None:
    """Compare bucket sizes of a strategy."""
    variants = {f"{size:g} MiB": {"strategy": Strategy(strategy, bucket_cap_mb=size)} for size in sizes}
    ddpperf.compare(language_model(model, batch_size=4), variants=variants)
