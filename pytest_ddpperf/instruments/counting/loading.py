"""Leaves a DataLoader's own work out of the counts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch.utils.data import dataloader

from pytest_ddpperf.instruments.phases.phase_hooks import replaced

_SEAMS = (
    (dataloader.DataLoader, "__iter__"),
    (dataloader._BaseDataLoaderIter, "__next__"),  # noqa: SLF001  all loaders' iterators are of it
)


@contextmanager
def loading_left_out(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Within, nothing is counted while a DataLoader makes a batch, or an epoch begins.

    With workers that happens in other processes. Without, it would depend on the number of steps before whether an
    epoch begins in one that is counted.
    """
    with ExitStack() as stack:
        for owner, name in _SEAMS:
            stack.enter_context(replaced(owner, name, _within(paused, getattr(owner, name))))
        yield


def _within(paused: Callable[[], AbstractContextManager[None]], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        with paused():
            return function(*args, **kwargs)

    return within
