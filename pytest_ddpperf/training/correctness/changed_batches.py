"""What a step changes in the batches that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.training.workload import Workload, located

Pair = tuple[Any, Any]
Way = tuple[Any, ...]


def copied(pair: Pair, device: torch.device | None = None) -> Pair:
    """A batch with containers and tensors of its own."""

    def copy(leaf: Any) -> Any:
        return leaf.detach().to(device or leaf.device, copy=True) if isinstance(leaf, Tensor) else leaf

    return tree_map(copy, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any


def changes(before: Sequence[Pair], after: Sequence[Pair]) -> tuple[set[Way], set[Way]]:
    """The ways to what the batches do not hold any more, and to tensors that have other values or are none any more."""
    lost, changed = set(), set()
    for first, second in zip(map(_by_way, before), map(_by_way, after), strict=True):
        lost |= first.keys() - second.keys()
        changed |= {way for way in first.keys() & second.keys() if not _alike(first[way], second[way])}
    return lost, changed


def refusal(workload: Workload, ways: set[tuple[Any, ...]], *, taken: bool) -> WorkloadError:
    """The error for a step whose batch the next step would find changed."""
    names = " and ".join(sorted(_name(way, whole=workload.forward is not None) for way in ways))
    assert workload.batch is not None  # noqa: S101  it is what makes the batch
    done = f"takes {names} out of its batch" if taken else f"changes {names} in place, in each step again"
    cure = "read it without pop(), or from dict(batch)" if taken else "change a clone()"
    return WorkloadError(
        f"a step {done}, and all steps are given the one batch of {located(workload.batch)}: {cure}, or give a "
        "loader(rank, world_size) that makes a new batch for each step"
    )


def _by_way(pair: Pair) -> dict[tuple[Any, ...], Any]:
    leaves, _ = tree_flatten_with_path(pair)
    return {tuple(way): leaf for way, leaf in leaves}


def _name(way: tuple[Any, ...], *, whole: bool) -> str:
    """``inputs['ids']``, or ``batch['ids']`` where the batch is passed as a whole."""
    first, *others = way
    return ("batch" if whole else ("inputs", "targets")[first.idx]) + keystr(tuple(others))


def _alike(before: Any, after: Any) -> bool:
    if not isinstance(before, Tensor):
        return True  # what it is to be compared by is not known
    if not isinstance(after, Tensor) or (before.shape, before.dtype) != (after.shape, after.dtype):
        return False
    if before.layout is not torch.strided or (before.itemsize == 1 and before.is_floating_point()):
        return True  # torch compares neither sparse tensors nor float8
    same = (before == after) | ((before != before) & (after != after))  # noqa: PLR0124  NaN equals nothing
    return bool(same.all())
