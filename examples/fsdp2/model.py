"""A small transformer that guesses the next byte, with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, SEQUENCE, LAYERS = 256, 64, 32, 2


class Transformer(nn.Module):
    """Blocks of attention and feed-forward layers between an embedding and a head; it has no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every possible next byte, at every position."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        scores: Tensor = self.head(hidden)
        return scores


def next_byte_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats per byte."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def random_bytes(samples: int) -> tuple[Tensor, Tensor]:
    """Inputs, and the bytes that follow them."""
    text = torch.randint(VOCABULARY, (samples, SEQUENCE + 1))
    return text[:, :-1], text[:, 1:]
