"""Records a mark, such as the time, when a phase or a section (a part of a step that the user names) begins or ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident, main_thread
from typing import Any

from pytest_ddpperf.instruments.torch_internals import uncompiled
from pytest_ddpperf.records.phases import BACKWARD, DATA_WAIT, FORWARD, GRADIENT_SYNC, OPTIMIZER, OTHER, PHASES

# The phases that torch's calls may open inside each phase. A dataset may call modules, checkpointing calls modules in
# backward, full buckets are sent in backward: the outer phase keeps the time. A module may be a whole training step,
# an optimizer may run in backward or request a loss (LBFGS): then the inner phase has the time.
OPENS: Mapping[str, frozenset[str]] = {
    DATA_WAIT: frozenset(),
    FORWARD: frozenset({DATA_WAIT, BACKWARD, OPTIMIZER}),
    BACKWARD: frozenset({OPTIMIZER}),
    GRADIENT_SYNC: frozenset(),
    OPTIMIZER: frozenset({FORWARD, BACKWARD}),
    OTHER: frozenset(PHASES) - {OTHER},
}


class PhaseNode:
    """A combination of nested phases and sections. Each combination has one node, however often a step enters it."""

    __slots__ = ("_inner", "opens", "parent", "phase", "sections")

    def __init__(self, parent: PhaseNode | None, phase: str, sections: tuple[str, ...]) -> None:
        self.parent = parent  # the stack without its top; None for the empty stack
        self.phase = phase  # that gets the time here
        self.sections = sections  # paths of the user's sections around, from the outermost to the innermost
        self.opens = OPENS[phase]  # the phases that may begin here
        self._inner: dict[tuple[str, bool], PhaseNode] = {}

    def inside(self, name: str, *, section: bool = False) -> PhaseNode:
        """Returns the node of a phase or section that begins in this node; a section ``forward`` counts as a phase."""
        if (name, section) not in self._inner:
            path = f"{self.sections[-1]}/{name}" if self.sections else name
            sections = (*self.sections, path) if section else self.sections
            self._inner[name, section] = PhaseNode(self, name if name in PHASES else self.phase, sections)
        return self._inner[name, section]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The recorded marks (such as times) of some steps, and the phase and sections from each mark to the next."""

    marks: list[Any]  # read at each change and at the end: one more than there are ``places``
    places: list[PhaseNode]  # the node from each mark to the next
    starts: list[int]  # the number of the mark with which each step begins


class Recorder:
    """Records the phases of the main thread; work of other threads counts for the main thread's current phase."""

    def __init__(self) -> None:
        for instrument in (Recorder.enter, Recorder.enter_section, Recorder.go, PhaseNode.__init__, PhaseNode.inside):
            uncompiled(instrument)
        self._ground = PhaseNode(None, OTHER, ())
        self._top = self._ground
        self._thread = main_thread().ident
        self._mark: Callable[[], Any] = lambda: None
        self._marks: list[Any] = []
        self._places: list[PhaseNode] = []

    def record(self, run: Callable[[], object], steps: int, mark: Callable[[], Any]) -> Trace:
        """Calls ``run`` ``steps`` times; returns a trace of ``mark()``, called at each change of phase or section."""
        self._mark, self._marks, self._places = mark, [], []
        starts = []
        for _ in range(steps):
            starts.append(len(self._marks))
            self.go(self._ground)
            run()
        self.go(self._ground)
        return Trace(marks=self._marks, places=self._places[:-1], starts=starts)

    def enter(self, phase: str, _name: str = "") -> PhaseNode | None:
        """Begins a phase; returns the node before it, or None if the phase cannot begin in that node or this thread."""
        before = self._top
        if phase not in before.opens or get_ident() != self._thread:
            return None
        self.go(before.inside(phase))
        return before

    def enter_section(self, name: str) -> PhaseNode | None:
        """Begins a user's section; returns the node before it, or None if this is not the main thread."""
        if get_ident() != self._thread:
            return None
        before = self._top
        self.go(before.inside(name, section=True))
        return before

    def go(self, place: PhaseNode) -> None:
        """Makes ``place`` the current node, and records a mark for the change."""
        self._marks.append(self._mark())
        self._places.append(place)
        self._top = place


class Section:
    """The context of ``with ctx.phase(name)``; its methods do nothing until a diagnosis replaces them."""

    __slots__ = ("before", "name")  # no flag: reading it would cost time in timed steps, and cause recompilations

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: PhaseNode | None = None

    def __enter__(self) -> None:
        """Does nothing outside a diagnosis."""

    def __exit__(self, *_raised: object) -> None:
        """Does nothing outside a diagnosis."""
