"""torch's own DistributedDataParallel, with its defaults: buckets that are all-reduced while backward goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.strategies.parallel import Parallel

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """The module wrapped in DistributedDataParallel, which synchronises inside backward."""
    device_ids = [ctx.device] if ctx.device.type == "cuda" else None
    return Parallel(DistributedDataParallel(module, device_ids=device_ids), synchronise=_nothing)


def _nothing() -> None:
    """Backward has waited for the last bucket already."""
