"""The diagnosed pass on one rank: a few more steps, taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.clock import clock_for
from pytest_ddpperf.instruments.compiler import compiled_frames, uncompiled
from pytest_ddpperf.instruments.live_memory import memory_reader
from pytest_ddpperf.instruments.phases.breakdown import break_down
from pytest_ddpperf.instruments.phases.phase_hooks import PhaseHook, followed, optimizers_followed, torch_phase_hooks
from pytest_ddpperf.instruments.phases.recorder import Recorder
from pytest_ddpperf.records.phases import PhaseTimes

if TYPE_CHECKING:
    import torch


def diagnose(
    run: Callable[[], object], steps: int, device: torch.device, hooks: Sequence[PhaseHook] = ()
) -> PhaseTimes:
    """Measures where the time of a step goes: calls ``run`` ``steps`` + 1 times, under instruments.

    The first step measures memory only, because reading it takes longer than marking the clock; the others are timed.
    In each, time belongs to one phase only, so the phases of a step add up to it:

    - ``data_wait``: a DataLoader is asked for the next batch, or for a new epoch.
    - ``forward``: a call of a module that no other module called, with all its hooks: DDP's broadcast of buffers or
      FSDP's gathering of parameters. A loss that is a plain function is no module, unless ``hooks`` name it.
    - ``backward``: autograd runs. It includes recomputation, and the gradients that are sent in backward with the wait
      for the last of them: no timer of phases can tell how much of that is communication.
    - ``gradient_sync``: the rank begins a collective or waits for one, whatever is sent, outside of the other phases.
    - ``optimizer``: ``step`` and ``zero_grad`` of an optimizer, torch's gradient clipping and gradient scaler.
    - ``other``: everything else, and whatever torch.compile has taken into the graph of a whole step.

    On CUDA the clock is that of the stream which is current at first, and nothing waits for it: a phase lasts as long
    as that stream takes to get through it, so host work hidden behind the device's costs nothing, waits for data too.
    Work in other threads belongs to the phase that the step's own thread is in. If ``run`` raises, no instrument stays.
    """
    recorder = Recorder()
    reader = memory_reader(device)
    with followed(recorder, (*torch_phase_hooks(), *hooks)), ExitStack() as optimizers:
        optimizers.enter_context(optimizers_followed(recorder))
        frames = compiled_frames()
        first = recorder.record(run, 1, _nothing if reader is None else reader[1])
        if compiled_frames() > frames:
            optimizers.close()  # they are part of the compiled step, which must stay the one that is timed
        clock = clock_for(device, marks=len(first.marks) * steps)

        @uncompiled
        def mark() -> Any:
            return clock.mark()

        clock.settle()
        trace = recorder.record(run, steps, mark)
    return break_down(trace, clock.seconds(trace.marks), None if reader is None else (reader[0], first))


def _nothing() -> None:
    """A reading of memory that the system does not report."""
