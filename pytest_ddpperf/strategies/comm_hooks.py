"""Communication hooks of DistributedDataParallel: other ways for a bucket of gradients to travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from pytest_ddpperf.errors import SettingError

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from pytest_ddpperf.strategies.parallel import MakeOptimizer, OptimizerFactory, Precision, RankView


@dataclass(frozen=True)
class CommHook:
    """What a hook changes beside the way of the gradients; fields as in ``Parallel``."""

    precision: Precision = "fp32"
    lossy: bool = False
    exact_steps: int = 0
    period: int = 1
    make_optimizer: MakeOptimizer | None = None
    make_scaler: Callable[[], torch.amp.GradScaler] | None = None
    still_sent: str = ""


def register(
    wrapped: DistributedDataParallel,
    ctx: RankView,
    name: str | None,
    *,
    powersgd_rank: int,
    powersgd_start: int,
    local_sgd_start: int,
    local_sgd_period: int,
) -> CommHook:
    """Registers the named hook; None keeps torch's own all-reduce."""
    if name == "fp16":
        wrapped.register_comm_hook(None, fp16_compress_hook)
        return CommHook(precision="fp16")
    if name == "bf16":
        wrapped.register_comm_hook(None, _compress_to_bf16)
        return CommHook(precision="bf16")
    if name == "powersgd":
        return _power_sgd(wrapped, ctx, powersgd_rank, powersgd_start)
    if name == "post_local_sgd":
        return _post_local_sgd(wrapped, ctx, local_sgd_start, local_sgd_period)
    return CommHook()


# Hooks are not annotated: torch compares annotations with its types, and here they are strings.
def _compress_to_bf16(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """The hook of torch under a name that torch does not refuse without NCCL: gloo adds bf16 just as well."""
    return bf16_compress_hook(state, bucket)


def _power_sgd(wrapped: DistributedDataParallel, ctx: RankView, rank: int, start: int) -> CommHook:
    """Sends gradients as products of two thin matrices; the rest is added to the next step's gradients.

    An fp16 overflow would stay in that rest for good, so precision fp16 is refused with it.
    """
    if ctx.device.type == "cpu" and torch.cuda.is_available():
        raise SettingError(
            "comm_hook=powersgd on the CPU: torch's hook synchronises a CUDA device wherever there is one, and fails "
            "for tensors on the CPU; hide the GPUs (CUDA_VISIBLE_DEVICES=) or use device=cuda"
        )
    state = PowerSGDState(process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=start)
    wrapped.register_comm_hook(state, powerSGD_hook)
    return CommHook(lossy=True, exact_steps=start)


def _post_local_sgd(wrapped: DistributedDataParallel, ctx: RankView, start: int, period: int) -> CommHook:
    """Lets ranks train alone after ``start`` steps, and averages their parameters once in a period.

    The ranks' parameters are equal right after an averaging only: after the steps ``start``, ``start + period`` ...,
    counted from 0.
    """
    # Imported only here, because they cost every fresh rank a second.
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    from pytest_ddpperf.strategies.distributed_optimizers import PostLocalSGDOptimizer, require_optimizer

    averager = PeriodicModelAverager(period=period, warmup_steps=start)
    state = PostLocalSGDState(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        process_group=None, subgroup=None, start_localSGD_iter=start, post_local_gradient_allreduce=False
    )

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        # torch counts backward passes here and optimizer steps there; synchronised micro-batches make them differ.
        state.iter = averager.step
        return post_localSGD_hook(state, bucket)

    def make_optimizer(factory: OptimizerFactory) -> torch.optim.Optimizer:
        local = require_optimizer(factory(wrapped.parameters()), "comm_hook=post_local_sgd")
        return PostLocalSGDOptimizer(local, averager)

    wrapped.register_comm_hook(state, hook)
    return CommHook(
        period=period,
        lossy=True,
        exact_steps=start,
        make_optimizer=make_optimizer,
        still_sent="the parameters that are averaged once in a period",
        # Ranks have gradients of their own. If a single rank skipped a step, the others would wait for it to average.
        make_scaler=partial(ShardedGradScaler, ctx.device.type, process_group=dist.group.WORLD),
    )
