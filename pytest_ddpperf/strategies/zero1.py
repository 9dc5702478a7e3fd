"""torch's ZeroRedundancyOptimizer over DistributedDataParallel: each rank keeps a share of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from pytest_ddpperf.strategies.ddp_wrapping import import_distributed_optimizers, parallel_of, require_optimizer, wrap
from pytest_ddpperf.strategies.strategy import OptimizerFactory, Parallel, RankView

_OPTIMIZERS = import_distributed_optimizers()


def zero1(module: nn.Module, ctx: RankView, *, parameters_as_bucket_view: bool = False, **options: Any) -> Parallel:
    """Returns the module wrapped in DistributedDataParallel, and an optimizer whose state is divided among the ranks.

    Gradients are all-reduced as in ``ddp``, with torch's ``options``. In the optimizer's step each rank updates its
    share of the parameters (whole tensors, distributed by size) and broadcasts it. With ``parameters_as_bucket_view``
    the parameters of a share lie in one buffer and are broadcast together.
    """
    wrapped = wrap(module, ctx, **options)

    def make_optimizer(factory: OptimizerFactory) -> torch.optim.Optimizer:
        whole = require_optimizer(factory(wrapped.parameters()), "zero1")
        return sharded(whole, parameters_as_bucket_view=parameters_as_bucket_view)

    sent = "the parameters that each rank broadcasts after its update" if ctx.world_size > 1 else ""
    return parallel_of(wrapped, make_optimizer=make_optimizer, still_sent=sent)


def sharded(whole: torch.optim.Optimizer, *, parameters_as_bucket_view: bool) -> torch.optim.Optimizer:
    """Returns an optimizer of this rank's share of the parameters, made from ``whole``, an optimizer of all.

    torch builds the local optimizer from a class and its defaults, which does not work for every optimizer (AdamW's
    defaults hold an argument that it does not take). Here the local optimizer is the user's own with its parameter
    groups narrowed, so it keeps every flag, hook and group. Learning rates that are changed on the result reach the
    local optimizer before each step.
    """

    def narrowed(groups: Iterable[dict[str, Any]], **_defaults: Any) -> torch.optim.Optimizer:
        kept = set()
        for group, mine in zip(whole.param_groups, groups, strict=True):
            group["params"] = list(mine["params"])
            kept.update(group["params"])
        for parameter in set(whole.state) - kept:  # some optimizers (Adagrad) create their state at construction
            del whole.state[parameter]
        return whole

    groups = [dict(group) for group in whole.param_groups]
    zero: torch.optim.Optimizer = _OPTIMIZERS.ZeroRedundancyOptimizer(
        groups, optimizer_class=narrowed, parameters_as_bucket_view=parameters_as_bucket_view, **whole.defaults
    )
    return zero
