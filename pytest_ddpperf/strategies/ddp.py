"""torch's own DistributedDataParallel: buckets that are all-reduced while backward goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.strategies.comm_hooks import CommHook, register
from pytest_ddpperf.strategies.copies import gradients_of, parameters_of
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.replicas import replicate

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(
    module: nn.Module,
    ctx: RankView,
    *,
    bucket_cap_mb: float | None = None,
    static_graph: bool | None = None,
    gradient_as_bucket_view: bool | None = None,
    find_unused_parameters: bool | None = None,
    broadcast_buffers: bool | None = None,
    comm_hook: str | None = None,
    powersgd_rank: int = 1,
    powersgd_start: int = 2,
    local_sgd_start: int = 0,
    local_sgd_period: int = 4,
) -> Parallel:
    """The module wrapped in DistributedDataParallel, which synchronises inside backward.

    A tied weight is synchronised once, a frozen one not at all. Parameters that a step does not use need
    ``find_unused_parameters`` or ``static_graph``; without, torch says so in the second step.

    Args:
        module: on the rank's device.
        ctx: the rank.
        bucket_cap_mb: MiB of a bucket; left out, 25, and 1 for the first (which is not the same as 25).
        static_graph: whether every step uses the same parameters in the same order. With it the very first
            micro-batch is synchronised also within ``no_sync``.
        gradient_as_bucket_view: whether gradients lie in the buckets.
        find_unused_parameters: whether to look in every step for parameters that it does not use.
        broadcast_buffers: whether rank 0's buffers are sent before each forward pass. At the start they are always.
        comm_hook: how a bucket travels; None for torch's own all-reduce.
        powersgd_rank: of PowerSGD's matrices.
        powersgd_start: synchronisations before PowerSGD begins. Here the fewest that torch allows: with its own
            default of 1000 a benchmark would never get there.
        local_sgd_start: optimizer steps before ranks train on their own.
        local_sgd_period: optimizer steps from one averaging of the parameters to the next.

    Raises:
        SettingError: the hook does not work on this machine.
    """
    if comm_hook == "powersgd" and ctx.backend == "gloo":
        if find_unused_parameters:
            raise SettingError(
                "comm_hook=powersgd with find_unused_parameters=true works with nccl only: on gloo what PowerSGD sends "
                "and what DDP sends of the parameters used would meet in different orders; leave out one of them"
            )
        bucket_cap_mb = _one_bucket(module, bucket_cap_mb)
    wrapped = wrap(
        module,
        ctx,
        bucket_cap_mb=bucket_cap_mb,
        static_graph=static_graph,
        gradient_as_bucket_view=gradient_as_bucket_view,
        find_unused_parameters=find_unused_parameters,
        broadcast_buffers=broadcast_buffers,
    )
    hook = register(
        wrapped,
        ctx,
        comm_hook,
        powersgd_rank=powersgd_rank,
        powersgd_start=powersgd_start,
        local_sgd_start=local_sgd_start,
        local_sgd_period=local_sgd_period,
    )
    return over(wrapped, hook)


def _one_bucket(module: nn.Module, given: float | None) -> float:
    """A cap that puts all gradients into one bucket.

    PowerSGD sends the later parts of a bucket from gloo's own thread, when the first has arrived: with several buckets
    the ranks would send them in different orders, and hang or add up what does not belong together.

    Raises:
        SettingError: a cap was given that leaves several buckets, or types do, which never share one.
    """
    dtypes = sorted({str(parameter.dtype) for parameter in module.parameters() if parameter.requires_grad})
    if len(dtypes) > 1:
        raise SettingError(
            "comm_hook=powersgd on gloo works with a single bucket only, and the trained parameters are of "
            f"{' and '.join(dtypes)}, which never share one: train parameters of one type, or use nccl or another hook"
        )
    needed = max(1.0, 2 * sum(parameter.nbytes for parameter in module.parameters()) / 2**20)
    if given is not None and given < needed:
        raise SettingError(
            f"bucket_cap_mb={given:g} with comm_hook=powersgd on gloo: there PowerSGD works with a single bucket only; "
            f"leave bucket_cap_mb out, or give at least {needed:.0f}"
        )
    return needed if given is None else given


def wrap(
    module: nn.Module, ctx: RankView, *, broadcast_buffers: bool | None, **options: Any
) -> DistributedDataParallel:
    """The module in DistributedDataParallel, with the options that are not None and torch's defaults for the others.

    Raises:
        WorkloadError: DistributedDataParallel cannot write rank 0's values into a buffer.
    """
    _require_writable_buffers(module)
    if broadcast_buffers is not None:
        if not broadcast_buffers:
            replicate(module, ctx)  # before torch 2.13 false meant unequal buffers at the start as well
        # 2.13 has renamed the option, and warns of the old name.
        names = inspect.signature(DistributedDataParallel.__init__).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"] = broadcast_buffers
    device_ids = [ctx.device] if ctx.device.type == "cuda" else None
    given = {name: value for name, value in options.items() if value is not None}
    return DistributedDataParallel(module, device_ids=device_ids, **given)


def _require_writable_buffers(module: nn.Module) -> None:
    """Refuse what torch refuses without a name: an expanded tensor, whose elements share memory."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for name, buffer in module.named_buffers():
        if name not in ignored and any(
            size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
        ):
            raise WorkloadError(
                f"the model's buffer {name} is an expanded tensor, whose elements share memory, and "
                "DistributedDataParallel cannot write rank 0's values into it: give register_buffer a copy (.clone()), "
                "or expand it in forward"
            )


def over(wrapped: DistributedDataParallel, hook: CommHook) -> Parallel:
    """What there is to know of a wrapped module and its communication hook."""
    module: nn.Module = wrapped.module
    return Parallel(
        wrapped,
        no_sync=_no_sync_but_first(wrapped) if wrapped.static_graph else wrapped.no_sync,
        still_sent=hook.still_sent,
        make_optimizer=hook.make_optimizer,
        make_scaler=hook.make_scaler,
        gradients=partial(gradients_of, module),
        parameters=partial(parameters_of, module),
        precision=hook.precision,
        lossy=hook.lossy,
        # A static graph synchronises the first micro-batch of all too, which a hook counts.
        exact_steps=max(0, hook.exact_steps - wrapped.static_graph),
        period=hook.period,
    )


def _no_sync_but_first(wrapped: DistributedDataParallel) -> Callable[[], AbstractContextManager[Any]]:
    """``no_sync`` for a static graph: torch learns it in the first backward, and fails if that is not synchronised.

    See https://github.com/pytorch/pytorch/issues/143580. One synchronisation more than needed does no harm: the mean
    of gradients that are equal on all ranks, and of what is added to them, is the mean of all.
    """
    learned = False

    def no_sync() -> AbstractContextManager[Any]:
        nonlocal learned
        if learned:
            return wrapped.no_sync()
        learned = True
        return nullcontext()

    return no_sync
