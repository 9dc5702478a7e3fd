"""A language model over bytes, on a corpus that every machine has: the sources of Python's standard library."""

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
    """How large a model is, and how long the sequences are that it is trained on."""

    name: str
    width: int
    heads: int
    layers: int
    feed_forward: int
    sequence: int


SMALL = Size("small", width=128, heads=4, layers=2, feed_forward=256, sequence=64)
LARGER = Size("larger", width=256, heads=8, layers=4, feed_forward=1024, sequence=128)


def language_model(size: Size, batch_size: int) -> Workload:
    """The workload that a test hands to `ddpperf`: factories, each called on every rank.

    `batch_size` is one rank's. Measured in strong mode, the same workload's `batch_size` is that of all ranks together.
    """
    return Workload(
        model=partial(built, size),  # no lambda: another commit has to find it by its name
        loader=partial(corpus_loader, size.sequence, batch_size),
        loss=next_byte_loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        samples_per_step=batch_size,
        tokens_per_step=batch_size * size.sequence,
    )


def built(size: Size) -> LanguageModel:
    """The model of a size."""
    return slowed(LanguageModel(size), size.name)


def corpus_loader(sequence: int, batch_size: int, rank: int, world_size: int) -> DataLoader[tuple[Tensor, Tensor]]:
    """One rank's share of the corpus, shuffled, in batches."""
    windows = Windows(read_corpus(), sequence)
    sampler = DistributedSampler[tuple[Tensor, Tensor]](windows, world_size, rank, shuffle=True, drop_last=True)
    return DataLoader(windows, batch_size=batch_size, sampler=sampler, drop_last=True)


def read_corpus(limit: int = CORPUS_BYTES) -> Tensor:
    """The first `limit` bytes of the standard library's modules in alphabetical order."""
    corpus = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        corpus += path.read_bytes()
        if len(corpus) >= limit:
            break
    return torch.frombuffer(corpus[:limit], dtype=torch.uint8)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of the corpus, each with the bytes that follow its own by one: what the model has to guess."""

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
    """A causal transformer: each position sees only those before it, and guesses the next byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Parameter(torch.zeros(size.sequence, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight  # tied: one matrix reads bytes and writes them

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every possible next byte, at every position."""
        hidden = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention, then a feed-forward layer, each behind a norm and beside a residual connection."""

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
        """The hidden states, worked on once more."""
        hidden = hidden + self.attend(self.attention_norm(hidden))
        fed: Tensor = self.feed_forward(hidden)
        return hidden + fed

    def attend(self, hidden: Tensor) -> Tensor:
        """What each position takes over from those before it."""
        batch, sequence, width = hidden.shape
        split = self.queries_keys_values(hidden).view(batch, sequence, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, sequence, width))
        return out


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats per byte: 5.5 for guessing blindly among 256."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
