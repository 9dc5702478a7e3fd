"""Precision: what is computed in which type, and what a device cannot do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import RankSkipped
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.training.trainer import prepare_precision, scaler_for

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_forward_pass_computes_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    context = prepare_precision(precision, CPU)
    for _ in range(2):  # a context for each forward pass
        with context():
            assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


def test_tf32_is_skipped_where_there_is_no_gpu() -> None:
    with pytest.raises(RankSkipped, match="tf32 is a mode of NVIDIA GPUs"):
        prepare_precision("tf32", CPU)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_an_old_gpu_is_skipped(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla T4")
    with pytest.raises(
        RankSkipped, match=rf"{precision} needs a GPU of compute capability 8.0 or newer; Tesla T4 has 7.5"
    ):
        prepare_precision(precision, torch.device("cuda", 0))


def test_only_fp16_is_scaled_and_by_the_strategys_own_scaler_if_it_has_one() -> None:
    plain = Parallel(nn.Linear(1, 1))
    assert scaler_for("bf16", CPU, plain) is None
    assert isinstance(scaler_for("fp16", CPU, plain), torch.amp.GradScaler)
    own = torch.amp.GradScaler("cpu")
    assert scaler_for("fp16", CPU, Parallel(nn.Linear(1, 1), make_scaler=lambda: own)) is own
