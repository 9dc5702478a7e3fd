"""What only a GPU shows. Most runs on the CPU as well, marked slow, so that a GPU meets no test that never ran."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for benchmarks: it is no part of what is installed

from benchmarks.gpu_pieces.piece import Place


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)], scope="module"
)
def place(request: pytest.FixtureRequest) -> Place:
    """One GPU with NCCL, or the CPU with gloo."""
    return Place(dry=request.param == "cpu")


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu(devices=2))]
)
def wide_place(request: pytest.FixtureRequest) -> Place:
    """Two GPUs with NCCL, or the CPU with gloo."""
    return Place(gpus=2, dry=request.param == "cpu")
