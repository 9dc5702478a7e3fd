"""How training is set up: what is noted of wrappers, checkpoints and optimizers, with lines."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.instruments.counting.setup import _of_ddp
from pytest_ddpperf.instruments.counting.sites import making_noted
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.sites import CHECKPOINT, SETTINGS, CallSite
from tests.counted import count_step

CPU = Countable(device=torch.device("cpu"))
Again = Callable[[nn.Module, Tensor], Any]
PLAIN: Again = lambda block, x: block(x)  # noqa: E731 - in one line
DEEP: Again = lambda block, x: checkpoint(block, x, use_reentrant=False)  # noqa: E731
REENTRANT: Again = lambda block, x: checkpoint(block, x, use_reentrant=True)  # noqa: E731


class Model(nn.Module):
    """Three blocks, which ``again`` calls."""

    def __init__(self, again: Again = PLAIN, *, wrapped: bool = False) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3))
        self.blocks = nn.ModuleList(map(checkpoint_wrapper, blocks) if wrapped else blocks)
        self._again = again

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self._again(block, x)
        return x


Optimizing = Callable[[Any], torch.optim.Optimizer]
SGD: Optimizing = partial(torch.optim.SGD, lr=0.1)


def counted(model: nn.Module | None = None, optimizing: Optimizing = SGD, **of_backward: Any) -> Counts:
    """Counts of a step with them, whose optimizer is made in its first line."""
    model, x = model or Model(), torch.ones(256, 16, requires_grad=True)
    with making_noted():
        optimizer = optimizing(model.parameters())

    def step() -> None:
        model(x).sum().backward(**of_backward)
        optimizer.step()
        optimizer.zero_grad()

    return count_step(step, CPU, steps=0)


def settings(counts: Counts) -> dict[str, tuple[float, str]]:
    """Their numbers and the texts of their lines, by name."""
    return {site.part: (site.value, text_of(site)) for site in counts.sites[SETTINGS]}


def text_of(site: CallSite) -> str:
    return linecache.getline(__file__, site.line).strip()


def test_optimizers_have_the_settings_that_differ_from_the_defaults() -> None:
    made = "optimizer = optimizing(model.parameters())"
    assert settings(counted()) == {"optimizer SGD": (1.0, made)}
    found = settings(counted(optimizing=partial(torch.optim.AdamW, lr=0.1, amsgrad=True, betas=(0.9, 0.999))))
    assert found == {"optimizer AdamW": (1.0, made), "optimizer AdamW: amsgrad=True": (1.0, made)}


@pytest.mark.parametrize("again", [DEEP, REENTRANT])
def test_each_checkpoint_of_forward_has_the_line_that_called_it(again: Again) -> None:
    number, text = settings(counted(Model(again)))[CHECKPOINT]
    assert number == 3.0
    assert "checkpoint(block, x, use_reentrant=" in text
    assert CHECKPOINT not in settings(counted(Model()))


def test_a_wrapped_module_has_the_line_that_wrapped_it() -> None:
    with making_noted():
        model = Model(wrapped=True)
    number, text = settings(counted(model))[CHECKPOINT]
    assert number == 3.0
    assert text.startswith("self.blocks = nn.ModuleList(map(checkpoint_wrapper")


def test_a_graph_that_backward_keeps_has_the_line_of_backward() -> None:
    number, text = settings(counted(retain_graph=True))["backward: retain_graph=True"]
    assert (number, text) == (1.0, "model(x).sum().backward(**of_backward)")


def test_bytes_of_the_peak_have_the_lines_that_made_them() -> None:
    """What was there before the step, such as its inputs, has none."""
    counts = counted()
    (site,) = (site for site in counts.sites["peak_tensor_bytes"] if site.part == "activations")
    assert text_of(site) == linecache.getline(__file__, PLAIN.__code__.co_firstlineno).strip()
    activations = counts.details["peak_tensor_bytes"]["activations"]
    assert 3 * 256 * 16 * 4 <= site.value <= activations


def test_the_size_of_buckets_is_what_the_script_gave() -> None:
    wrapped = SimpleNamespace(bucket_bytes_cap=int(0.05 * 2**20), _comm_hooks=(), mixed_precision=None)
    assert _of_ddp(wrapped) == {"bucket_cap_mb": "0.05"}
