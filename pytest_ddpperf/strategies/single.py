"""One rank on its own: the reference that every other strategy is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.strategies import require_world_size, resolve
from pytest_ddpperf.strategies.parallel import Parallel

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """The module as it is; nothing is synchronised.

    Raises:
        SettingError: there is more than one rank.
    """
    require_world_size(resolve("single"), ctx.world_size)
    return Parallel(module, synchronise=_nothing)


def _nothing() -> None:
    """A rank on its own has nobody to agree with."""
