"""torch's own DistributedDataParallel: buckets that are all-reduced while backward goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies.comm_hooks import register
from pytest_ddpperf.strategies.ddp_wrapping import parallel_of, wrap

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import Parallel, RankView


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
    ``find_unused_parameters`` or ``static_graph``; otherwise torch raises in the second step.
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
    return parallel_of(wrapped, hook)


def _one_bucket(module: nn.Module, given: float | None) -> float:
    """A bucket size that puts all gradients into one bucket; a SettingError if that is impossible.

    PowerSGD sends the later parts of a bucket from gloo's own thread, when the first has arrived. With several buckets
    the ranks would send them in different orders, and hang or add up what does not belong together.
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
