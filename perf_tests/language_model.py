"""A language model of bytes; its corpus is the source code of Python's standard library, which each machine has."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from pytest_ddpperf import Workload

from .extra_work import slowed

VOCABULARY = 256  # a token is a byte
CORPUS_BYTES = 1_000_000


@dataclass(frozen=True)
class Size:
    """The size of a model, and the length of its training sequences."""

    name: str
    width: int
    heads: int
    layers: int
    feed_forward: int
    sequence: int


SMALL = Size("small", width=128, heads=4, layers=2, feed_forward=256, sequence=64)
LARGER = Size("larger", width=256, heads=8, layers=4, feed_forward=1024, sequence=128)


def language_model(size: Size, batch_size: int) -> Workload:
    """Return the workload that a test gives to `ddpperf`: factories that each rank calls.

    `batch_size` is the batch size of one rank, or of all ranks together if scaling is measured in strong mode.
    """
    return Workload(
        model=partial(built, size),  # not a lambda: another commit finds the function by its name
        loader=partial(corpus_loader, size.sequence, batch_size),
        loss=next_byte_loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        samples_per_step=batch_size,
        tokens_per_step=batch_size * size.sequence,
    )


def built(size: Size) -> LanguageModel:
    """Return the model of a size."""
    return slowed(LanguageModel(size), size.name)


def corpus_loader(sequence: int, batch_size: int, rank: int, world_size: int) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return shuffled batches of one rank's share of the corpus."""
    windows = Windows(read_corpus(), sequence)
    sampler = DistributedSampler[tuple[Tensor, Tensor]](windows, world_size, rank, shuffle=True, drop_last=True)
    return DataLoader(windows, batch_size=batch_size, sampler=sampler, drop_last=True)


def read_corpus(limit: int = CORPUS_BYTES) -> Tensor:
    """Return the first `limit` bytes of the modules of the standard library, in alphabetical order."""
    corpus = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        corpus += path.read_bytes()
        if len(corpus) >= limit:
            break
    return torch.frombuffer(corpus[:limit], dtype=torch.uint8)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of the corpus; the targets of a window are the same bytes, shifted by one."""

    def __init__(self, corpus: Tensor, sequence: int) -> None:
        self.corpus = corpus
        self.sequence = sequence

    def __len__(self) -> int:
        return (len(self.corpus) - 1) // self.sequence

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.sequence
        window = self.corpus[start : start + self.sequence + 1].long()
        return window[:-1], window[1:]


class LanguageModel(nn.Module):
    """A causal transformer: each position attends to earlier positions, and predicts the next byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Parameter(torch.zeros(size.sequence, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight  # tied weights

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next byte, of shape (batch, sequence, 256)."""
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a layer norm before it and a residual connection around it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width)
        self.attention_out = nn.Linear(size.width, size.width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size.width),
            nn.Linear(size.width, size.feed_forward),
            nn.GELU(),
            nn.Linear(size.feed_forward, size.width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states after this block; the shape stays (batch, sequence, width)."""
        hidden = hidden + self.attend(self.attention_norm(hidden))
        fed: Tensor = self.feed_forward(hidden)
        return hidden + fed

    def attend(self, hidden: Tensor) -> Tensor:
        """Return the causal self-attention of the hidden states."""
        batch, sequence, width = hidden.shape
        split = self.queries_keys_values(hidden).view(batch, sequence, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, sequence, width))
        return out


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy in nats per byte; a uniform guess among 256 bytes has 5.5."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
