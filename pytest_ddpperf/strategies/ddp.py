"""torch's own DistributedDataParallel, which all-reduces buckets of gradients while backward is still running."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies.replicas import import_distributed_optimizers, parallel_of, require_optimizer, wrap
from pytest_ddpperf.strategies.strategy import OptimizerFactory, Parallel, RankView


def ddp(
    module: nn.Module,
    ctx: RankView,
    *,
    comm_hook: str | None = None,
    powersgd_rank: int = 1,
    powersgd_start: int = 2,
    local_sgd_start: int = 0,
    local_sgd_period: int = 4,
    **options: Any,
) -> Parallel:
    """Returns the module wrapped in DistributedDataParallel with torch's ``options``.

    If a step leaves parameters unused, ``find_unused_parameters`` or ``static_graph`` is needed; otherwise torch raises
    an error in the second step. ``comm_hook`` names a hook of torch: ``bf16`` and ``fp16`` send fewer bits,
    ``powersgd`` sends approximate gradients, and ``post_local_sgd`` averages parameters in some steps only.
    """
    if comm_hook == "powersgd":
        _require_powersgd(ctx, options)
        if ctx.backend == "gloo":
            options["bucket_cap_mb"] = _one_bucket(module, options.get("bucket_cap_mb"))
    wrapped = wrap(module, ctx, **options)
    if comm_hook == "powersgd":
        state = PowerSGDState(None, matrix_approximation_rank=powersgd_rank, start_powerSGD_iter=powersgd_start)
        wrapped.register_comm_hook(state, powerSGD_hook)
        return parallel_of(wrapped, lossy=True, exact_steps=_exact_steps(wrapped, powersgd_start))
    if comm_hook == "post_local_sgd":
        return _post_local_sgd(wrapped, ctx, local_sgd_start, local_sgd_period)
    if comm_hook is None:
        return parallel_of(wrapped)
    wrapped.register_comm_hook(None, fp16_compress_hook if comm_hook == "fp16" else _compress_to_bf16)
    return parallel_of(wrapped, precision=comm_hook)


def _require_powersgd(ctx: RankView, options: Mapping[str, Any]) -> None:
    """Raises a SettingError if torch's PowerSGD fails on this rank, or might hang."""
    if ctx.backend == "gloo" and options.get("find_unused_parameters"):
        raise SettingError(
            "comm_hook=powersgd with find_unused_parameters=true needs backend=nccl: on gloo, ranks could start "
            "the collectives of PowerSGD and of DDP in different orders; leave one of the two options out"
        )
    if ctx.device.type == "cpu" and torch.cuda.is_available():
        raise SettingError(
            "comm_hook=powersgd with device=cpu: torch's hook fails for tensors on the CPU if the machine has a GPU; "
            "hide the GPUs (CUDA_VISIBLE_DEVICES=) or use device=cuda"
        )


def _one_bucket(module: nn.Module, given: float | None) -> float:
    """Returns a ``bucket_cap_mb`` for which DDP makes a single bucket; raises a SettingError if there is none.

    With several buckets on gloo, ranks may send parts of buckets in different orders, and hang or add up wrong parts.
    """
    dtypes = sorted({str(parameter.dtype) for parameter in module.parameters() if parameter.requires_grad})
    if len(dtypes) > 1:
        raise SettingError(
            "comm_hook=powersgd on gloo needs a single bucket, but DDP makes a bucket for each type of trained "
            f"parameter ({' and '.join(dtypes)}): train parameters of one type, or use nccl or another hook"
        )
    needed = max(1.0, 2 * sum(parameter.nbytes for parameter in module.parameters()) / 2**20)
    if given is not None and given < needed:
        reason = f"bucket_cap_mb={given:g} makes several buckets, but comm_hook=powersgd on gloo needs a single one"
        raise SettingError(f"{reason}; leave bucket_cap_mb out, or give at least {needed:.0f}")
    return needed if given is None else given


# Hooks are not annotated: torch compares annotations with its types, and here they are strings.
def _compress_to_bf16(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Calls torch's bf16 hook, which DDP itself refuses without NCCL, although gloo can all-reduce bf16."""
    return bf16_compress_hook(state, bucket)


def _exact_steps(wrapped: DistributedDataParallel, start: int) -> int:
    """Returns how many first steps average gradients exactly; DDP's hook, such as PowerSGD, begins after ``start``."""
    return max(0, start - wrapped.static_graph)  # a static graph averages two micro-batches of the first step


def _post_local_sgd(wrapped: DistributedDataParallel, ctx: RankView, start: int, period: int) -> Parallel:
    """Lets ranks train alone after ``start`` steps, and averages their parameters once in every ``period`` steps."""
    # Imported only here, because they cost every fresh rank a second.
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    optimizers = import_distributed_optimizers()
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
        averaging: torch.optim.Optimizer = optimizers.PostLocalSGDOptimizer(local, averager)
        return averaging

    wrapped.register_comm_hook(state, hook)
    return parallel_of(
        wrapped,
        period=period,
        lossy=True,
        exact_steps=_exact_steps(wrapped, start),
        make_optimizer=make_optimizer,
        still_sent="the parameters that are averaged once in a period",
        # Ranks have gradients of their own. If a single rank skipped a step, the others would wait for it to average.
        make_scaler=partial(ShardedGradScaler, ctx.device.type, process_group=dist.group.WORLD),
    )
