"""Copies of what a module holds, on the CPU, to be compared with those of another."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The gradients by name; None for a parameter without one."""
    return {
        name: None if parameter.grad is None else _copy(parameter.grad) for name, parameter in module.named_parameters()
    }


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters by name."""
    return {name: _copy(parameter) for name, parameter in module.named_parameters()}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.device("cpu"), copy=True)
