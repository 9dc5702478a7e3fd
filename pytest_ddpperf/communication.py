"""What is known of the communication of a step on one rank. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockTimes:
    """Steps with and without synchronisation of gradients on one rank, from blocks that alternated.

    Attributes:
        synchronised: seconds of each step of the blocks that were whole, in order.
        unsynchronised: of each step that averaged no gradients.
        still_sent: what those steps sent all the same, in words; empty for nothing.
    """

    synchronised: tuple[float, ...]
    unsynchronised: tuple[float, ...]
    still_sent: str = ""
