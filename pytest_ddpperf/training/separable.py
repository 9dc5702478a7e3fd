"""A user's training step that can skip the averaging of gradients over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.torch_internals import collectives_called
from pytest_ddpperf.strategies.strategy import nothing
from pytest_ddpperf.training.model import describe_value
from pytest_ddpperf.training.subject import unfit
from pytest_ddpperf.units import format_count


class SynchronisationKept(Exception):
    """The error that all ranks raise if a step sends as much as usual although it should not synchronise."""


@dataclass(frozen=True, kw_only=True)
class OwnSynchronisation:
    """A user's step that can skip its averaging of gradients. Ranks then diverge, so only the times of steps count."""

    who: str  # the function that made the step, and where it stands
    unsynchronised: Callable[[], AbstractContextManager[Any]]
    skipped_steps: Sequence[int] = ()

    def snapshot(self) -> Callable[[], None]:
        """Returns a function that restores nothing, because nothing is saved."""
        return nothing

    def snapshot_bytes(self) -> int:
        """Returns 0, the number of bytes that ``snapshot`` saves."""
        return 0

    def still_sent(self, run: Callable[[], Any]) -> str:
        """Returns in words how many collectives ``unsynchronised()`` keeps; raises SynchronisationKept if all stay."""
        whole = _collectives_of(run)
        with self.unsynchronised():
            alone = _collectives_of(run)
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, (whole, alone))
        kept = next(((whole, alone) for whole, alone in of_ranks if whole and alone >= whole), None)
        if kept is not None:
            raise SynchronisationKept(
                f"unsynchronised() skips no collective: a step of {self.who} makes "
                f"{format_count(kept[1], 'collective call')} inside this context, and {kept[0]} outside"
            )
        return f"{alone} of {format_count(whole, 'collective call')}" if alone else ""


def own_synchronisation(who: str, offered: Any) -> OwnSynchronisation:
    """Wraps ``offered``, a user's ``step.unsynchronised``; raises a WorkloadError for a function with arguments."""
    problem = unfit(offered) if callable(offered) else f"step.unsynchronised is {describe_value(offered)}"
    if problem is not None:
        raise WorkloadError(
            f"step.unsynchronised of {who} must be a function without arguments that returns a context manager, such "
            f"as model.no_sync: {problem}"
        )
    return OwnSynchronisation(who=who, unsynchronised=offered)


def _collectives_of(run: Callable[[], Any]) -> int:
    before = collectives_called()
    run()
    return collectives_called() - before
