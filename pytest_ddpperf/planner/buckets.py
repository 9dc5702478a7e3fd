"""The buckets in which DDP averages gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pytest_ddpperf.analysis.inputs import require_number
from pytest_ddpperf.errors import SettingError

MB = 2**20  # bytes, as torch's DDP has it
DEFAULT_CAP_MB = 25.0
FIRST_CAP_MB = 1.0  # of the first bucket, if the user gives no cap


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """A bucket: the indices of its parameters in the order in which their gradients become ready, and its bytes."""

    parameters: tuple[int, ...]
    nbytes: int


def bucket_layout(
    sizes: Sequence[int],
    cap_mb: float | None = None,
    *,
    ready_order: Sequence[int] | None = None,
    kinds: Sequence[Hashable] | None = None,
) -> tuple[GradientBucket, ...]:
    """Returns the buckets of torch's DDP after it has rebuilt them, in the order in which they are sent.

    A bucket is full once it reaches its cap, so it may exceed it. The default cap is 25 MiB, and 1 MiB for the first
    bucket.

    Args:
        sizes: bytes of each gradient, in the order of ``model.parameters()``, without parameters that have no gradient.
        cap_mb: DDP's ``bucket_cap_mb``, in units of 2^20 bytes; None for its default.
        ready_order: indices of parameters in the order in which gradients become ready; reversed by default.
        kinds: the dtype and device of each parameter, which must be equal in a bucket; all equal by default.
    """
    cap = MB * (DEFAULT_CAP_MB if cap_mb is None else require_number("cap_mb", cap_mb, positive=True))
    first = FIRST_CAP_MB * MB if cap_mb is None else cap
    order = range(len(sizes) - 1, -1, -1) if ready_order is None else ready_order
    if sorted(order) != list(range(len(sizes))):
        raise SettingError(f"ready_order={order!r:.60}: expected each index below {len(sizes)} exactly once")
    full: list[GradientBucket] = []
    filling: dict[Hashable, list[int]] = {}
    caps: dict[Hashable, float] = {}
    for i in order:
        kind = None if kinds is None else kinds[i]
        filling[kind] = [*filling.pop(kind, []), i]
        if sum(sizes[j] for j in filling[kind]) >= caps.get(kind, first):
            full.append(_bucket(filling.pop(kind), sizes))
            caps[kind] = cap
    return (*full, *(_bucket(parameters, sizes) for parameters in filling.values()))


def _bucket(parameters: Sequence[int], sizes: Sequence[int]) -> GradientBucket:
    return GradientBucket(tuple(parameters), sum(sizes[i] for i in parameters))
