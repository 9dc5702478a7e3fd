"""One rank alone: the reference that every other strategy is verified against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.strategies.parallel import Parallel

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, _ctx: RankView) -> Parallel:
    """The module as it is; nothing is synchronised."""
    return Parallel(module)
