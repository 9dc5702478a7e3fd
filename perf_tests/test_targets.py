"""Targets for a machine with fast GPUs. Adapt the figures to your machine; without enough GPUs the tests are skipped.

The figures are usual ones in guides to distributed training. A target fails if the whole 95 % interval of the metric
misses it.
"""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .language_model import LARGER, language_model

SPEEDUPS = {2: 1.8, 4: 3.5, 8: 7.0}  # at least, over one GPU with the same batch size per GPU
AMP = 2.0  # at least, the speedup over fp32
MEMORY = "40GiB"  # at most, on each GPU

pytestmark = pytest.mark.ddpperf(device="cuda")


def gpus() -> int:
    """Return the number of GPUs that the driver reports."""
    pynvml = pytest.importorskip("pynvml", reason="pip install nvidia-ml-py tells the number of GPUs")
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        pytest.skip(f"no GPU: {error}")


@pytest.mark.parametrize("ranks", SPEEDUPS)
def test_speedup(ddpperf: Ddpperf, ranks: int) -> None:
    if gpus() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    ddpperf.scaling(language_model(LARGER, batch_size=32), world_sizes=[1, ranks], mode="weak")
    ddpperf.expect(speedup={ranks: SPEEDUPS[ranks]}, efficiency={ranks: SPEEDUPS[ranks] / ranks})


def test_mixed_precision(ddpperf: Ddpperf) -> None:
    if gpus() < 1:
        pytest.skip("needs a GPU")
    ddpperf.compare(language_model(LARGER, batch_size=32), variants={"fp32": {}, "bf16": {"precision": "bf16"}})
    ddpperf.expect(speedup={"bf16": AMP}, peak_allocated=MEMORY)
