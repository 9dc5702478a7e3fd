"""Measures a hand-written training loop, and a model of Hugging Face Transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf import Ddpperf, RankContext, Workload

from .language_model import SMALL, LanguageModel, next_byte_loss

pytestmark = pytest.mark.ddpperf(launches=3, warmup=3)

BATCH = 8
VOCABULARY = 256
SEQUENCE = 64


class HandWrittenStep:
    """One step of a training loop, like the `training_step` of a trainer."""

    samples = BATCH
    tokens = BATCH * SMALL.sequence

    def __init__(self, ctx: RankContext) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(LanguageModel(SMALL).to(ctx.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.random = torch.Generator().manual_seed(ctx.rank)
        self.device = ctx.device

    def __call__(self) -> Tensor:
        """Train on new random bytes, and return the loss."""
        text = torch.randint(VOCABULARY, (BATCH, SMALL.sequence + 1), generator=self.random).to(self.device)
        loss = next_byte_loss(self.model(text[:, :-1]), text[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        return loss.detach()


def test_hand_written_loop(ddpperf: Ddpperf) -> None:
    ddpperf.check(HandWrittenStep)


def test_transformers(ddpperf: Ddpperf) -> None:
    pytest.importorskip("transformers", reason="the model comes from it: pip install '.[examples]'")
    workload = Workload(
        model=gpt2,
        batch=tokens,
        loss=lambda outputs, _targets: outputs.loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        samples_per_step=BATCH,
        tokens_per_step=BATCH * SEQUENCE,
    )
    ddpperf.check(workload, strategy="ddp")


def gpt2() -> nn.Module:
    """Return a small GPT-2 with random weights, without a download."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=64, n_layer=2, n_head=4)
    return Keywords(GPT2LMHeadModel(config))


class Keywords(nn.Module):
    """Passes a mapping to a model as keyword arguments."""

    def __init__(self, model: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        """Return the output of the model."""
        return self.model(**inputs)


def tokens() -> tuple[dict[str, Tensor], Tensor]:
    """Return random tokens as inputs and labels; the model shifts the labels."""
    ids = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
    return {"input_ids": ids, "labels": ids}, ids
