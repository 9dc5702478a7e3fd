"""The buckets in which DDP averages gradients, and how large they should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pytest_ddpperf.analysis.inputs import require_number
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.overlap import Overlap, overlapped

MB = 2**20  # bytes, as torch's DDP has it
DEFAULT_CAP_MB = 25.0
FIRST_CAP_MB = 1.0  # of the first bucket, where the user names no cap


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """A bucket: the indices of its parameters, in the order in which their gradients are ready, and its bytes."""

    parameters: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BestBuckets:
    """How many buckets cost least, by the closed form."""

    buckets: float  # not rounded
    nbytes: float  # of each
    overhead: float  # seconds that the step is longer than without communication


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketTrial:
    """A cap that was tried on the recurrence."""

    cap_mb: float
    buckets: tuple[GradientBucket, ...]
    overlap: Overlap


def bucket_layout(
    sizes: Sequence[int],
    cap_mb: float | None = None,
    *,
    ready_order: Sequence[int] | None = None,
    kinds: Sequence[Hashable] | None = None,
) -> tuple[GradientBucket, ...]:
    """The buckets of torch's DDP after it has rebuilt them, in the order in which they are sent.

    A bucket is full once it holds its cap, so it may hold more. Without a cap of the user's it is 25 MiB, and 1 MiB for
    the first bucket.

    Args:
        sizes: bytes of each gradient, in the order of ``model.parameters()``, those without a gradient left out.
        cap_mb: DDP's ``bucket_cap_mb``, of 2^20 bytes; None for its default.
        ready_order: indices of parameters in the order in which gradients are ready; the reverse one by default.
        kinds: of each parameter what has to be the same in a bucket (dtype and device); all are alike by default.

    Raises:
        SettingError: a cap or size that cannot be, or an order that has not every parameter once.
    """
    cap = MB * (DEFAULT_CAP_MB if cap_mb is None else require_number("cap_mb", cap_mb, positive=True))
    first = FIRST_CAP_MB * MB if cap_mb is None else cap
    order = range(len(sizes) - 1, -1, -1) if ready_order is None else ready_order
    if sorted(order) != list(range(len(sizes))):
        raise SettingError(f"ready_order has not each of the {len(sizes)} parameters once; give a permutation of them")
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


def best_bucket_bytes(
    total_bytes: float, bandwidth: float, overhead: float, *, largest_parameter: float = 0.0
) -> BestBuckets:
    """The bucket size that costs least where the computation hides all buckets but the last.

    With s bytes in n buckets, a bandwidth of w and o seconds for each call, a step is s/(n w) + n o longer; that is
    least for n = sqrt(s/(o w)), of sqrt(s o w) bytes each (Stanford CS336, assignment 2, 2025). No bucket is smaller
    than the largest parameter.

    Args:
        total_bytes: of all gradients.
        bandwidth: bytes per second of the collective.
        overhead: seconds that each call costs.
        largest_parameter: bytes.
    """
    total = require_number("total_bytes", total_bytes, positive=True)
    speed = require_number("bandwidth", bandwidth, positive=True)
    call = require_number("overhead", overhead, positive=True)
    largest = require_number("largest_parameter", largest_parameter)
    size = min(total, max(math.sqrt(total * call * speed), largest))
    return BestBuckets(buckets=total / size, nbytes=size, overhead=size / speed + total / size * call)


def search_bucket_size(
    sizes: Sequence[int],
    ready: Sequence[float],
    seconds_of: Callable[[int], float],
    backward: float,
    caps_mb: Sequence[float],
) -> tuple[BucketTrial, ...]:
    """Each cap on the recurrence, the best one first: of equals the one with fewer buckets.

    Args:
        sizes: bytes of each gradient, in the order of ``model.parameters()``.
        ready: seconds from the start of backward until each gradient is ready, in the same order.
        seconds_of: the seconds of an all-reduce of so many bytes, such as ``fit.seconds`` of a calibrated network.
        backward: seconds of the computation of backward.
        caps_mb: values of ``bucket_cap_mb`` to try.
    """
    if len(ready) != len(sizes):
        raise SettingError(f"ready has {len(ready)} times for {len(sizes)} gradients; give one for each")
    order = sorted(range(len(sizes)), key=lambda i: (ready[i], -i))
    trials = []
    for cap in caps_mb:
        buckets = bucket_layout(sizes, cap, ready_order=order)
        times = [max(ready[i] for i in bucket.parameters) for bucket in buckets]
        found = overlapped(times, [seconds_of(bucket.nbytes) for bucket in buckets], backward)
        trials.append(BucketTrial(cap_mb=cap, buckets=buckets, overlap=found))
    return tuple(sorted(trials, key=lambda trial: (trial.overlap.finish, len(trial.buckets))))
