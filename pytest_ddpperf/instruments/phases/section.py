"""The parts of a step that a user names."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.instruments.phases.recorder import PhaseNode


class Section:
    """``with ctx.phase(name)``: does nothing until a diagnosed pass replaces these methods.

    No state tells whether a pass runs: reading it would cost time in timed steps, and make torch.compile compile anew
    what it has compiled without a pass.
    """

    __slots__ = ("before", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: PhaseNode | None = None

    def __enter__(self) -> None:
        """Nothing, outside of the pass."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing, outside of the pass."""
