"""Precision: what is computed in which type, and what a device cannot do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import RankSkipped
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.trainer import Trainer, prepare_precision, scaler_for
from tests.factories import TORCH
from tests.training.workloads import linear_workload

CPU = torch.device("cpu")
HAS_NEW_SWITCHES = TORCH >= (2, 9)


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


def switches() -> Any:
    """``torch.backends``, by a name that does not have its modules sent to the ranks: pickle refuses them."""
    return import_module("torch.backends")


def read_back() -> dict[str, object]:
    """What torch says of TF32, by its new switches and by the old ones, which raise where the two disagree."""
    new = (switches().cuda.matmul, switches().cudnn.conv, switches().cudnn.rnn) if HAS_NEW_SWITCHES else ()
    return {
        "new": [switch.fp32_precision for switch in new],
        "old": (switches().cuda.matmul.allow_tf32, switches().cudnn.allow_tf32, torch.get_float32_matmul_precision()),
    }


def trained_beside(ctx: RankContext, precision: str, by_user: Sequence[Callable[[], None]]) -> dict[str, object]:
    """What holds for steps of a workload whose optimizer comes with this rank's settings, as alone on a GPU."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        by_user[ctx.rank]()
        return torch.optim.SGD(parameters, lr=0.1)

    on_gpu = replace(ctx, device=torch.device("cuda", 0), rank=0, world_size=1)
    with (
        patch.object(nn.Module, "to", lambda module, _device: module),
        patch.object(torch.cuda, "get_device_capability", lambda _device: (9, 0)),
    ):
        workload = replace(linear_workload(), optimizer=optimizer)
        Trainer(on_gpu, workload, resolve("single"), Settings(precision=precision))
    return read_back()


def by_old_switches() -> None:
    switches().cuda.matmul.allow_tf32 = switches().cudnn.allow_tf32 = True


SETTINGS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "products of matrices": lambda: torch.set_float32_matmul_precision("high"),
    "bfloat16 on the CPU": lambda: torch.set_float32_matmul_precision("medium"),
    "the old switches": by_old_switches,
}
if HAS_NEW_SWITCHES:
    SETTINGS |= {
        "the new switch of all": lambda: setattr(switches(), "fp32_precision", "tf32"),
        "the new switch of CUDA": lambda: setattr(switches().cudnn, "fp32_precision", "tf32"),
        "the new switch of one": lambda: setattr(switches().cuda.matmul, "fp32_precision", "tf32"),
    }


@pytest.mark.parametrize(
    ("precision", "new", "old"), [("fp32", "ieee", (False, False, "highest")), ("tf32", "tf32", (True, True, "high"))]
)
def test_fp32_rules_out_tf32_whatever_the_workload_has_set(
    launcher: Launcher, precision: str, new: str, old: tuple[bool, bool, str]
) -> None:
    given, how = list(SETTINGS.values()), {"world_size": len(SETTINGS), "backend": "gloo", "device": "cpu"}
    ranks = launcher.run(trained_beside, precision, given, **how).values  # type: ignore[arg-type]
    for by_user, rank in zip(SETTINGS, ranks, strict=True):
        assert rank == {"new": [new] * 3 if HAS_NEW_SWITCHES else [], "old": old}, by_user


def test_only_fp16_is_scaled_and_by_the_strategys_own_scaler_if_it_has_one() -> None:
    plain = Parallel(nn.Linear(1, 1))
    assert scaler_for("bf16", CPU, plain) is None
    assert isinstance(scaler_for("fp16", CPU, plain), torch.amp.GradScaler)
    own = torch.amp.GradScaler("cpu")
    assert scaler_for("fp16", CPU, Parallel(nn.Linear(1, 1), make_scaler=lambda: own)) is own
