"""What the pieces train: the language model of the example suite, in sizes that wait for the host and for the GPU."""

from __future__ import annotations

from benchmarks.gpu_pieces.piece import Place
from perf_tests.language_model import SMALL, Size, language_model
from pytest_ddpperf import Workload

HEAVY = Size("heavy", width=1024, heads=16, layers=4, feed_forward=4096, sequence=256)
TINY = Size("tiny", width=32, heads=2, layers=1, feed_forward=64, sequence=16)
WAITS = {"small": "waits for the host", "heavy": "waits for the GPU"}


def workloads(place: Place) -> dict[str, Workload]:
    """The small model, whose kernels are shorter than their launches, and one of 50 million parameters."""
    if place.dry:
        return dict.fromkeys(WAITS, language_model(TINY, batch_size=2))
    return {"small": language_model(SMALL, batch_size=8), "heavy": language_model(HEAVY, batch_size=8)}
