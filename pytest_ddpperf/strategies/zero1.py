"""torch's ZeroRedundancyOptimizer over DistributedDataParallel: each rank keeps a share of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from pytest_ddpperf.strategies.replicas import import_distributed_optimizers, parallel_of, require_optimizer, wrap
from pytest_ddpperf.strategies.strategy import OptimizerFactory, Parallel, RankView

_OPTIMIZERS = import_distributed_optimizers()


def zero1(module: nn.Module, ctx: RankView, *, parameters_as_bucket_view: bool = False, **options: Any) -> Parallel:
    """Wraps the module in DistributedDataParallel, and divides the optimizer's state among the ranks.

    Gradients are all-reduced as in ``ddp``. In the optimizer's step, each rank updates some of the parameters and
    broadcasts them. With ``parameters_as_bucket_view``, a rank broadcasts its parameters together, from one buffer.
    """
    wrapped = wrap(module, ctx, **options)

    def make_optimizer(factory: OptimizerFactory) -> torch.optim.Optimizer:
        whole = require_optimizer(factory(wrapped.parameters()), "zero1")
        return sharded(whole, parameters_as_bucket_view=parameters_as_bucket_view)

    sent = "the parameters that each rank broadcasts after its update" if ctx.world_size > 1 else ""
    return parallel_of(wrapped, make_optimizer=make_optimizer, still_sent=sent)


def sharded(whole: torch.optim.Optimizer, *, parameters_as_bucket_view: bool) -> torch.optim.Optimizer:
    """Returns an optimizer that updates only this rank's share of the parameters of ``whole``.

    torch would make the rank's optimizer from a class and its defaults, which fails for some classes, such as AdamW.
    Here ``whole`` itself, with fewer parameters, is the rank's optimizer, so all flags, hooks and groups are kept. A
    learning rate that is set on the result takes effect in the next step.
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
