"""The precision of a step: autocast, TF32 and the scaler of fp16 gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pytest_ddpperf.errors import RankSkipped

if TYPE_CHECKING:
    from pytest_ddpperf.strategies.parallel import Parallel

AMPERE = 8  # major compute capability with TF32 and bf16
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Sets the process up for a precision; the result makes the context of each forward pass and its loss.

    ``fp32`` rules out TF32, which torch otherwise allows in convolutions. A device without the precision raises
    RankSkipped.
    """
    _require(precision, device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    dtype = _AUTOCAST.get(precision)
    if dtype is None:
        return nullcontext
    return partial(torch.autocast, device.type, dtype=dtype)


def scaler_for(precision: str, device: torch.device, parallel: Parallel) -> torch.amp.GradScaler | None:
    """The scaler that keeps small fp16 gradients from vanishing; None for other precisions."""
    if precision != "fp16":
        return None
    return parallel.make_scaler() if parallel.make_scaler is not None else torch.amp.GradScaler(device.type)


def _require(precision: str, device: torch.device) -> None:
    if precision == "tf32" and device.type != "cuda":
        raise RankSkipped("precision tf32 is a mode of NVIDIA GPUs; this rank computes on the CPU")
    if precision in {"tf32", "bf16"} and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < AMPERE:
            raise RankSkipped(
                f"precision {precision} needs a GPU of compute capability {AMPERE}.0 or newer; "
                f"{torch.cuda.get_device_name(device)} has {major}.{minor}"
            )
