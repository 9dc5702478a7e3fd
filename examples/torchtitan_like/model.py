"""A small Llama-like decoder: RMSNorm, rotary positions, grouped queries and a gated feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelArgs:
    """How large the model is."""

    dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    hidden_dim: int = 128
    vocab_size: int = 256
    max_seq_len: int = 32


class Attention(nn.Module):
    """Causal attention, several queries to one key; a rank may hold a part of the heads."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)

    def forward(self, hidden: Tensor, angles: Tensor) -> Tensor:
        """What each position takes over from those before it."""
        batch, sequence, _ = hidden.shape
        queries, keys, values = (
            project(hidden).view(batch, sequence, -1, self.head_dim).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        )
        mixed = functional.scaled_dot_product_attention(
            rotated(queries, angles), rotated(keys, angles), values, is_causal=True, enable_gqa=True
        )
        out: Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return out


def rotated(heads: Tensor, angles: Tensor) -> Tensor:
    """Queries or keys, each pair of whose features is turned by the angle of its position."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class FeedForward(nn.Module):
    """A gated layer (SwiGLU)."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.hidden_dim, bias=False)
        self.w2 = nn.Linear(args.hidden_dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.hidden_dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden states, each position on its own."""
        out: Tensor = self.w2(functional.silu(self.w1(hidden)) * self.w3(hidden))
        return out


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual connection."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention = Attention(args)
        self.feed_forward = FeedForward(args)
        self.attention_norm = nn.RMSNorm(args.dim)
        self.ffn_norm = nn.RMSNorm(args.dim)

    def forward(self, hidden: Tensor, angles: Tensor) -> Tensor:
        """The hidden states, worked on once more."""
        hidden = hidden + self.attention(self.attention_norm(hidden), angles)
        out: Tensor = hidden + self.feed_forward(self.ffn_norm(hidden))
        return out


class Transformer(nn.Module):
    """The decoder; its layers have names, as torchtitan's have."""

    angles: Tensor

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleDict({str(number): TransformerBlock(args) for number in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        half = args.dim // args.n_heads // 2
        speeds = 10_000.0 ** (-torch.arange(half) / half)
        self.register_buffer("angles", torch.outer(torch.arange(args.max_seq_len), speeds), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every possible next token, at every position."""
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            hidden = layer(hidden, self.angles[: tokens.shape[1]])
        out: Tensor = self.output(self.norm(hidden))
        return out
