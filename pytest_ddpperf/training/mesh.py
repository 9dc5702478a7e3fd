"""The mesh of ranks that a user's step asks for, and which dimensions share out data. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_ddpperf.strategies.parallel import RankView

OF_DATA = ("dp", "data", "ddp", "fsdp", "hsdp", "replicate", "shard")
"""How the names of dimensions begin whose ranks have samples of their own."""


def mesh_of(ctx: RankView, sizes: Mapping[str, int]) -> DeviceMesh | None:
    """The mesh of all ranks; None for a twin that is alone. A collective."""
    if ctx.world_size != math.prod(sizes.values()):
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(ctx.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def shares_data(sizes: Mapping[str, int]) -> bool:
    """Returns whether a dimension is one of data; without any, all ranks count as working on the same samples."""
    return any(name.startswith(OF_DATA) for name in sizes)


def share_of_samples(sizes: Mapping[str, int]) -> float:
    """The part of its samples that a rank counts, so that ranks which work on the same ones count them once."""
    own = math.prod(size for name, size in sizes.items() if name.startswith(OF_DATA))
    return own / math.prod(sizes.values())
