"""What a launch gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pytest_ddpperf.launch.streams import RankOutput, titled

if TYPE_CHECKING:
    from pytest_ddpperf.launch.messages import SeenImport

T = TypeVar("T")


@dataclass(frozen=True)
class LaunchResult(Generic[T]):
    """The results of a launch: ``values`` and ``outputs`` by rank, and the seconds from the first fork to the end."""

    values: tuple[T, ...]
    outputs: tuple[RankOutput, ...]
    seconds: float
    imports: tuple[SeenImport, ...] = ()  # of rank 0, that no zygote had made before

    def rank(self, rank: int) -> T:
        """The value that the function returned on ``rank``."""
        return self.values[rank]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """The output of each rank that printed something, with a title for the test's report."""
        return titled(enumerate(self.outputs))
