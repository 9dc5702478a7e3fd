"""The ways to train over several ranks: the table of their names. One file each says how."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import SettingError

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import Parallel, RankView

__all__ = ["STRATEGIES", "StrategyRow", "parallelise", "require_world_size", "resolve"]


@dataclass(frozen=True)
class StrategyRow:
    """One row of the table.

    Attributes:
        name: what a test calls it.
        module: where its function ``parallelise(module, ctx) -> Parallel`` is; imported on the ranks only.
        description: one line for a reader who chooses.
        single_rank: whether it is only right for a world size of 1.
    """

    name: str
    module: str
    description: str
    single_rank: bool = False


STRATEGIES: Mapping[str, StrategyRow] = {
    row.name: row
    for row in (
        StrategyRow("single", f"{__name__}.single", "no synchronisation: one rank on its own", single_rank=True),
        StrategyRow("naive", f"{__name__}.naive", "a blocking all-reduce for each gradient after backward"),
        StrategyRow("ddp", f"{__name__}.ddp", "torch's DistributedDataParallel: buckets that overlap with backward"),
    )
}


def resolve(name: str) -> StrategyRow:
    """The table's row for a name.

    Raises:
        SettingError: no strategy has that name.
    """
    row = STRATEGIES.get(name)
    if row is not None:
        return row
    closest = difflib.get_close_matches(str(name), STRATEGIES, n=1)
    hint = f"did you mean {closest[0]!r}? " if closest else ""
    raise SettingError(f"strategy {name!r} is unknown: {hint}known strategies: {', '.join(sorted(STRATEGIES))}")


def require_world_size(row: StrategyRow, world_size: int) -> None:
    """Make sure that a strategy can be run on that many ranks.

    Raises:
        SettingError: the strategy is for one rank, and there are more.
    """
    if row.single_rank and world_size != 1:
        raise SettingError(
            f"strategy {row.name!r} does not synchronise and needs world size 1, but the world size is {world_size}: "
            f"use world_size=1, or a strategy that synchronises, such as 'ddp'"
        )


def parallelise(name: str, module: nn.Module, ctx: RankView) -> Parallel:
    """The module, made ready for this rank by the named strategy.

    Raises:
        SettingError: there is no such strategy, or not for this world size.
    """
    row = resolve(name)
    require_world_size(row, ctx.world_size)
    parallel: Parallel = import_module(row.module).parallelise(module, ctx)
    return parallel
