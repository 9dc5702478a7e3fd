"""The ways to train over several ranks: a table of their names, and one file each that says how."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import ALIASES, STRATEGIES, require_world_size, resolve, row_of

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView

__all__ = ["ALIASES", "STRATEGIES", "Strategy", "modules_of", "parallelise", "require_world_size", "resolve", "row_of"]


def modules_of(strategy: Strategy | None) -> tuple[str, ...]:
    """The module that a rank needs for a strategy, by name; none for a function or a step that brings its own."""
    return () if strategy is None or strategy.function is not None else (row_of(strategy).module,)


def parallelise(
    strategy: str | Strategy, module: nn.Module, ctx: RankView, blocks: Sequence[nn.Module] = ()
) -> Parallel:
    """The module, made ready for this rank by a strategy.

    Args:
        strategy: as ``resolve`` takes it.
        module: on the rank's device.
        ctx: the rank.
        blocks: the modules inside ``module`` that a sharding strategy treats one by one.

    Raises:
        SettingError: there is no such strategy, or not for this world size.
    """
    resolved = resolve(strategy)
    require_world_size(resolved, ctx.world_size)
    row = row_of(resolved)
    function = resolved.function or import_module(row.module).parallelise
    by_block = {"blocks": tuple(blocks)} if row.by_block else {}
    parallel = function(module, ctx, **by_block, **resolved.options)
    if not isinstance(parallel, Parallel):
        kind = "None" if parallel is None else f"a {type(parallel).__name__}"
        raise SettingError(f"strategy {resolved} gave {kind}: give back a pytest_ddpperf.Parallel(module, synchronise)")
    return parallel
