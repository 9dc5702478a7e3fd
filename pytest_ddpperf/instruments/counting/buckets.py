"""How torch's DistributedDataParallel lays gradients out in buckets."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def ddp_buckets(modules: Iterable[nn.Module]) -> dict[str, float]:
    """The bytes of each bucket in the order in which they are sent: ``{"bucket 0": 1048576.0, ...}``.

    Of all DistributedDataParallel in these modules, as they were rebuilt after the first steps; empty without any.
    torch tells them in the data that it keeps for its own logs.
    """
    sizes = [
        size
        for module in modules
        for inside in module.modules()
        if isinstance(inside, DistributedDataParallel)
        for size in _sizes(inside)
    ]
    return {f"bucket {number}": size for number, size in enumerate(sizes)}


def _sizes(wrapped: DistributedDataParallel) -> list[float]:
    said = wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001  there is no public reader
    text = str(said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes", ""))
    return [float(size) for size in text.split(",") if size.strip()]
