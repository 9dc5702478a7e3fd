"""A user's step that can train with and without the gradients of other ranks, as a trainer can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.torch_internals import collectives_called
from pytest_ddpperf.strategies.parallel import nothing
from pytest_ddpperf.training.model import describe_value
from pytest_ddpperf.training.workload import unfit
from pytest_ddpperf.units import format_count


class SynchronisationKept(Exception):
    """A step sends as much where its synchronisation should be left out; says so, the same on all ranks."""


@dataclass(frozen=True, kw_only=True)
class OwnSynchronisation:
    """A user's step that can leave out its synchronisation. What it trains so is not put back.

    Ranks then train on with other values, which take as long: of these steps and of those that follow only times are
    told.
    """

    who: str  # the function that made the step, and where it stands
    unsynchronised: Callable[[], AbstractContextManager[Any]]
    skipped_steps: Sequence[int] = ()

    def snapshot(self) -> Callable[[], None]:
        """Saves nothing."""
        return nothing

    def snapshot_bytes(self) -> int:
        """Returns the memory that this takes."""
        return 0

    def still_sent(self, run: Callable[[], Any]) -> str:
        """Returns what a step without synchronisation sends all the same, in words.

        Runs a step with and one without; a collective. Raises SynchronisationKept where both make as many calls of
        collectives: it leaves nothing out, or sends only in every few calls, and this was none of them.
        """
        whole = _collectives_of(run)
        with self.unsynchronised():
            alone = _collectives_of(run)
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, (whole, alone))
        kept = next(((whole, alone) for whole, alone in of_ranks if whole and alone >= whole), None)
        if kept is not None:
            raise SynchronisationKept(
                f"within unsynchronised() a step of {self.who} makes {format_count(kept[1], 'collective call')}, and "
                f"{kept[0]} without it"
            )
        return f"{alone} of {format_count(whole, 'collective call')}" if alone else ""


def own_synchronisation(who: str, offered: Any) -> OwnSynchronisation:
    """Returns what a user's step offers; raises a WorkloadError if that gives no context."""
    problem = unfit(offered) if callable(offered) else f"it is {describe_value(offered)}"
    if problem is not None:
        raise WorkloadError(
            f"the unsynchronised of the step of {who} must be called without arguments and give a context, such as "
            f"model.no_sync: {problem}"
        )
    return OwnSynchronisation(who=who, unsynchronised=offered)


def _collectives_of(run: Callable[[], Any]) -> int:
    """Calls of collectives in the default group that a step makes; 0 if the backend does not count them."""
    before = collectives_called()
    run()
    return collectives_called() - before
