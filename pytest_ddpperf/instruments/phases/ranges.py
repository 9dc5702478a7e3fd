"""Shows phases and sections as named ranges of torch's profiler, and notes the learning rate of each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import get_ident, main_thread
from typing import Any, cast

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import record_function

from pytest_ddpperf.instruments.phases.phase_hooks import PhaseHook, followed, optimizers_followed, torch_phase_hooks
from pytest_ddpperf.instruments.phases.recorder import OPENS
from pytest_ddpperf.instruments.torch_internals import compiled_frames, uncompiled
from pytest_ddpperf.records.phases import BACKWARD, DATA_WAIT, FORWARD, GRADIENT_SYNC, OPTIMIZER, OTHER, LearningRates

RANGES: Mapping[str, str] = {
    DATA_WAIT: "data_wait",
    FORWARD: "forward_pass",
    BACKWARD: "backward_pass",
    GRADIENT_SYNC: "gradient_sync",
    OPTIMIZER: "optimizer_step",
    OTHER: "other",
}


class Ranges:
    """A recorder that opens a named range for each phase and section of the main thread.

    Unlike a ``Recorder``, this class also opens ranges inside the range of a phase: for its named parts, and for
    collectives that begin in backward.
    """

    def __init__(self) -> None:
        for instrument in (Ranges.enter, Ranges.enter_section, Ranges.go, Ranges.note_rates):
            uncompiled(instrument)
        self._open: list[tuple[str, str, AbstractContextManager[Any]]] = []  # phase, name and range, outermost first
        self._thread = main_thread().ident
        self._rates: dict[int, list[tuple[int, tuple[float, ...]]]] = {}

    def enter(self, phase: str, name: str = "") -> int | None:
        """Begins a phase's range; returns how many ranges were open before, or None if the phase gets no new range."""
        name = name or RANGES[phase]
        top, top_name = self._open[-1][:2] if self._open else (OTHER, "")
        opens = phase in OPENS[top] or (phase, top) in {(GRADIENT_SYNC, BACKWARD), (OTHER, OTHER)}
        part = phase in {top, OTHER} and top_name == RANGES[top] != name
        if not (opens or part) or name == top_name or get_ident() != self._thread:
            return None
        return self._opened(phase, name)

    def enter_section(self, name: str) -> int | None:
        """Begins a section's range; returns how many ranges were open, or None if the current range has this name."""
        if get_ident() != self._thread:
            return None
        top, top_name = self._open[-1][:2] if self._open else (OTHER, "")
        phase = name if name in RANGES else top
        name = RANGES.get(name, name)
        return None if name == top_name else self._opened(phase, name)

    def go(self, place: int) -> None:
        """Ends all open ranges except the ``place`` outermost ones."""
        while len(self._open) > place:
            self._open.pop()[2].__exit__(None, None, None)

    def note_rates(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        """Records the learning rates with which an optimizer begins a step, unless they are tensors on a GPU."""
        rates = [group.get("lr") for group in getattr(optimizer, "param_groups", ())]
        if all(isinstance(rate, (int, float)) or getattr(rate, "is_cpu", False) for rate in rates):
            self._rates.setdefault(id(optimizer), []).append((time.time_ns(), tuple(map(float, rates))))

    @property
    def rates(self) -> tuple[LearningRates, ...]:
        """Returns each optimizer's learning rates with their times; optimizers with equal rates count only once."""
        different = {tuple(rates for _, rates in notes): tuple(notes) for notes in self._rates.values()}
        return tuple(different.values())

    def _opened(self, phase: str, name: str) -> int:
        before, opened = len(self._open), cast("AbstractContextManager[Any]", record_function(name))
        opened.__enter__()
        self._open.append((phase, name, opened))
        return before


@contextmanager
def named_ranges(run: Callable[[], object], hooks: Sequence[PhaseHook]) -> Iterator[Ranges]:
    """Shows phases and sections, in this context, as ranges of the profiler. Calls ``run`` once before.

    If that call compiles code, an optimizer's step may be part of a compiled graph, so optimizers are not followed.
    """
    ranges = Ranges()
    with followed(ranges, (*torch_phase_hooks(), *hooks)), ExitStack() as optimizers:
        optimizers.callback(register_optimizer_step_pre_hook(ranges.note_rates).remove)
        optimizers.enter_context(optimizers_followed(ranges))
        frames = compiled_frames()
        run()
        if compiled_frames() > frames:
            optimizers.close()
        yield ranges
