"""What every rank of a launch is told to do. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.training.steps import BLOCKS

if TYPE_CHECKING:
    from pytest_ddpperf.launch.interleaving import TurnSlot
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.strategy import Strategy
    from pytest_ddpperf.training.workload import Workload


@dataclass(frozen=True)
class LaunchJob:
    """What every rank of a launch has to do.

    Attributes:
        subject: a workload, or a function ``build(ctx)`` that returns one step.
        strategy: how the ranks of a workload are synchronised; None for a user's function, which synchronises itself.
        settings: how a workload is trained.
        plan: how many steps run.
        samples_per_step: the count that the test gave; None to ask the subject.
        tokens_per_step: the count that the test gave; None to ask the subject.
        seed: seeds the order of synchronised and unsynchronised blocks; the same on all ranks.
        growth: whether further steps show if memory grows.
        diagnosed: whether further steps show where the time goes.
        times_matter: whether the times are used; if not, the steps only have to be of full size in memory.
        turns: where to ask for turns at timing, beside launches that run at the same time; None for a launch alone.
        blocks: into how many turns the timed steps are divided, at most.
        stands_for: the timed steps of the launches that a diagnosis describes; None if it describes this launch.
    """

    subject: Workload | Callable[[Any], Any]
    strategy: Strategy | None
    settings: Settings
    plan: Plan
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    seed: int = 0
    growth: bool = True
    diagnosed: bool = True
    times_matter: bool = True
    turns: TurnSlot | None = None
    blocks: int = BLOCKS
    stands_for: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the times of the timed steps are used."""
        return self.times_matter and self.stands_for is None

    @property
    def diagnosed_plan(self) -> Plan:
        """The plan of the launches that a diagnosis describes."""
        return self.plan if self.stands_for is None else Plan(warmup=self.plan.warmup, steps=self.stands_for)


@dataclass(frozen=True)
class RankFunction:
    """A function that ranks run, by name: the controller does not import what runs on ranks."""

    module: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Import the function, and call it."""
        __tracebackhide__ = True
        return getattr(import_module(self.module), self.name)(*arguments)


RUN_LAUNCH = RankFunction("pytest_ddpperf.training.loop", "run_launch")
PREPARE_LAUNCH = RankFunction("pytest_ddpperf.training.preparing", "prepare_launch")
PROBE_LAUNCH = RankFunction("pytest_ddpperf.training.limit", "probe_launch")
PROFILE_LAUNCH = RankFunction("pytest_ddpperf.training.profiling", "profile_launch")
