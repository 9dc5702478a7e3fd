"""What every rank of a preparing launch is told to find out, and what it found. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.records.launch import RankLaunch
    from pytest_ddpperf.training.correctness.verification import Verification, VerifyJob
    from pytest_ddpperf.training.job import LaunchJob


@dataclass(frozen=True)
class PrepareJob:
    """What every rank of a preparing launch has to find out.

    Attributes:
        training: what is built and stepped; without ``timed``, the steps of its plan extend the warm-up.
        timed: whether the steps of its plan are timed, to know how long steps and launches take.
        counted: whether one step is counted.
        verified: what is verified against a single process; None for nothing.
    """

    training: LaunchJob
    timed: bool = False
    counted: bool = False
    verified: VerifyJob | None = None

    @property
    def parts(self) -> int:
        """The number of tasks."""
        return self.timed + self.counted + (self.verified is not None)


@dataclass(frozen=True)
class RankPrepared:
    """What one rank of a preparing launch found out; None for tasks that were not asked for.

    Attributes:
        timed: the timed steps, without memory peaks and diagnosis.
        counts: what one step does on this rank.
        verification: how the training compares with a single process.
        seconds: how long counting and verifying took.
    """

    timed: RankLaunch | None
    counts: Counts | None
    verification: Verification | None
    seconds: float
