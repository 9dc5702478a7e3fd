"""Records the timeline of a step: its collectives, and the time of computing between them."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.clock import CPU_CLOCK, Clock
from pytest_ddpperf.instruments.counting import collectives, operators
from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced
from pytest_ddpperf.planner.hardware import Accelerator
from pytest_ddpperf.records.predictions import Moment, Timeline, Transfer

MIN_TIMED, MAX_TIMED, TIMED_SECONDS = 5, 100, 0.5  # limits of the number of timed steps; seconds that are enough
KEPT = 0.75  # share of the steps that are averaged: the fastest ones
_NOWHERE = -1  # no backward is under way
_ON_HOST = frozenset({None, "aten._local_scalar_dense"})  # names of operators that no kernel computes


@dataclass(kw_only=True, slots=True)
class RecordedStep:
    """The collectives and waits of a step, and clock readings before and after each of them."""

    marks: list[Any] = field(default_factory=list)  # start; then two of each event, between which no time counts; end
    events: list[tuple[int, bool]] = field(default_factory=list)  # transfers, and whether they are waited for
    transfers: list[Transfer] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)  # of each transfer: the number of the backward in which it began
    sharded: set[int] = field(default_factory=set)  # transfers of FSDP
    waited: set[int] = field(default_factory=set)


class TimelineRecorder:
    """Records the collectives that a step starts, and the collectives that it waits for, in order."""

    def __init__(self, clock: Clock, *, streams: bool = False) -> None:
        self._clock = clock
        self._streams = streams  # whether FSDP uses separate streams, as on accelerators
        self._now = RecordedStep()
        self._works: dict[int, tuple[Any, list[int]]] = {}  # by identity: a work, kept alive, and its transfers
        self._results: dict[int, int] = {}  # by the memory of a result: the transfer that wrote there last

    def step(self, run: Callable[[], object]) -> tuple[RecordedStep, Sequence[float]]:
        """Calls ``run``; returns the collectives and waits in it, and the seconds of computing around each of them."""
        self._now = now = RecordedStep(marks=[self._clock.mark()])
        self._works, self._results = {}, {}
        run()
        now.marks.append(self._clock.mark())
        return now, self._clock.seconds(now.marks)[::2]

    @contextmanager
    def handing_over(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[list[int]]:
        """Stops the clock while an operator runs its collectives; yields their indices in the step's transfers."""
        now, before = self._now, self._clock.mark()
        first = len(now.transfers)
        for call in collectives.collectives_of(func, args, kwargs):
            group = collectives.group_of(func, args, kwargs)
            members = [] if group is None else dist.get_process_group_ranks(group)
            stride = members[1] - members[0] if len(members) > 1 else 1  # from one neighbour to the next
            now.transfers.append(Transfer(name=call.name, nbytes=call.nbytes, ranks=call.ranks, stride=stride))
            now.backward.append(backward_under_way())
        numbers = [*range(first, len(now.transfers))]
        if self._streams and of_fsdp():
            now.sharded.update(numbers)
        self.results(args[:1], numbers)
        yield numbers
        after = self._clock.mark()
        for number in numbers:  # those of one operator begin at the same moment
            now.events.append((number, False))
            now.marks += [before if number == first else after, after]

    def results(self, value: Any, numbers: Sequence[int]) -> None:
        """Records that transfers ``numbers`` write to the tensors in ``value``, to recognise waits for these."""
        self._results.update({_memory(tensor): numbers[-1] for tensor in collectives.tensors_in((value,)) if numbers})

    def begun(self, work: Any, numbers: list[int]) -> None:
        """Records ``work``, the handle of the transfers ``numbers``, to recognise waits for this handle."""
        self._works[id(work)] = work, numbers

    @contextmanager
    def watching_waits(self) -> Iterator[None]:
        """Records, in this context, waits for handles and for the results of functional collectives."""
        import torch.distributed._functional_collectives as functional

        wait, wait_tensor = dist.Work.wait, functional.wait_tensor

        def waiting(work: Any, *args: Any, **kwargs: Any) -> Any:
            self._wait(self._works.pop(id(work), (None, []))[1])  # its tensors are free
            return wait(work, *args, **kwargs)

        def waiting_for_tensor(tensor: torch.Tensor) -> torch.Tensor:
            number = self._results.get(_memory(tensor))
            self._wait([] if number is None else [number])
            made: torch.Tensor = wait_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's
            return made

        with replaced(dist.Work, "wait", waiting), replaced(functional, "wait_tensor", waiting_for_tensor):
            yield

    def _wait(self, numbers: Sequence[int]) -> None:
        now = self._now
        for number in numbers:
            if number < len(now.transfers) and number not in now.waited:
                mark = self._clock.mark()
                now.marks += [mark, mark]
                now.events.append((number, True))
                now.waited.add(number)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  tensors without values have no address


def timeline_of(recorder: TimelineRecorder, run: Callable[[], object], period: int, *, once: bool) -> Timeline:
    """Returns the mean timeline of ``period`` steps over several repetitions, without the slowest quarter of them.

    ``run`` makes one step; with ``once`` it is not repeated. Raises WorkloadError if repetitions have other transfers.
    """
    made: list[tuple[RecordedStep, Sequence[float]]] = []

    def several() -> None:
        for _ in range(period):
            run()

    spent = 0.0
    least, most = (1, 1) if once else (MIN_TIMED, MAX_TIMED)
    while len(made) < least or (len(made) < most and spent < TIMED_SECONDS):
        made.append(recorder.step(several))
        spent += math.fsum(made[-1][1])
    first = made[0][0]
    if any((one.events, one.transfers) != (first.events, first.transfers) for one, _ in made):
        raise WorkloadError("steps send different collectives, so no step time can be predicted; send the same in each")
    kept = sorted((seconds for _, seconds in made), key=math.fsum)[: math.ceil(KEPT * len(made))]
    times = [fmean(each) for each in zip(*kept, strict=True)]
    return Timeline(
        transfers=tuple(first.transfers),
        moments=streamed([*_moments(first, times)], first),
        rest=times[-1],
        steps=period,
    )


def _moments(step: RecordedStep, times: Sequence[float]) -> Iterator[Moment]:
    """Yields the points of a step at which a transfer starts or the step waits for it.

    Python code cannot record the waits of DDP's C++ code, which waits for all buckets of a backward once the last one
    has started. Outside of backward, a transfer without a recorded wait blocks the step until the transfer ends.
    """
    for (number, waits), computed in zip(step.events, times, strict=False):
        yield Moment(computed=computed, transfer=number, waits=waits)
        if waits:
            continue
        backward = step.backward[number]
        together = [number] if backward == _NOWHERE else [i for i, own in enumerate(step.backward) if own == backward]
        if number == together[-1]:
            for other in together:
                if other not in step.waited:
                    yield Moment(computed=0.0, transfer=other, waits=True)


class Roofline(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """A dispatch mode with the clock of a modelled accelerator: each operator takes the time of the roofline model."""

    supports_higher_order_operators = True
    below_counts = True

    def __init__(self, accelerator: Accelerator, *, tf32: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._accelerator = accelerator
        self._tf32 = tf32
        self._recorder: TimelineRecorder | None = None
        self._now = 0.0

    def recorder(self) -> TimelineRecorder:
        """Returns a recorder that uses this clock; afterwards, this mode also reports functional collectives to it."""
        self._recorder = TimelineRecorder(replace(CPU_CLOCK, mark=lambda: self._now), streams=True)
        return self._recorder

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(operators.has_a_say(kind) for kind in types):
            return NotImplemented  # it calls its parts, which come here again
        if getattr(func, "namespace", "") in collectives.NAMESPACES - {"c10d"}:  # what it calls passes no mode
            if not collectives.collectives_of(func, args, kwargs):
                return func(*args, **kwargs)
            assert self._recorder is not None  # noqa: S101  it is made before a step runs
            with self._recorder.handing_over(func, args, kwargs) as numbers:
                out = func(*args, **kwargs)
                self._recorder.results(out, numbers)
            return out
        out = func(*args, **kwargs)
        if operators.operator_name(func) not in _ON_HOST:
            tensors = collectives.tensors_in((*args, *kwargs.values(), out))
            low = any(tensor.dtype in {torch.bfloat16, torch.float16} for tensor in tensors)
            flops, moved = operators.flops_of(func, args, kwargs, out), operators.moved_bytes(tensors)
            self._now += self._accelerator.seconds(flops, moved, low=low, tf32=self._tf32)
        return out


_FSDP = "torch.distributed.fsdp"
_ON_THE_WAY = (  # modules between a collective and the code that calls it
    *("pytest_ddpperf", "contextlib", "functools", "torch._", "torch.library", "torch.utils"),
    *("torch.distributed.distributed_c10d", "torch.distributed.c10d_logger"),
    "torch.distributed._functional_collectives",
)


def of_fsdp() -> bool:
    """Returns whether FSDP itself calls the running collective, not the model that FSDP wraps."""
    frame = sys._getframe(1)  # noqa: SLF001  public in all but its name
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_ON_THE_WAY):
            return module.startswith(_FSDP)
        frame = frame.f_back  # type: ignore[assignment]  # None above the first one
    return False


def streamed(moments: Sequence[Moment], step: RecordedStep) -> tuple[Moment, ...]:
    """Returns the ``moments`` of a step, with FSDP's transfers moved to overlap with computing.

    A simulated step blocks during transfers, but accelerators overlap them with computing. FSDP gathers a layer's
    parameters while the previous layer computes. The first layer of a forward is an exception, because the optimizer
    runs before it. FSDP reduces a layer's gradients while the next layer computes. Source: ``FSDPParamGroup`` (torch
    2.13), ``unshard`` and ``post_backward``.
    """
    found = list(moments)
    gathered = [one for one in sorted(step.sharded) if step.transfers[one].name == "all_gather"]
    for before, one in itertools.pairwise(gathered):
        if step.backward[one] == _NOWHERE != step.backward[before]:
            continue
        place, begin = _place(found, one, waits=False), _place(found, before, waits=True)
        if begin < place:
            _take(found, place)
            found.insert(begin + 1, Moment(computed=0.0, transfer=one, waits=False))
    reduced = sorted(step.sharded.difference(gathered))
    for one, after in itertools.pairwise(reduced):
        place = _place(found, one, waits=True)
        if place < _place(found, after, waits=False):
            _take(found, place)
            end = _place(found, after, waits=False)
            found.insert(end, Moment(computed=found[end].computed, transfer=one, waits=True))
            found[end + 1] = replace(found[end + 1], computed=0.0)
    return tuple(found)


def _take(found: list[Moment], place: int) -> None:
    """Removes the Moment at index ``place``, and adds the computing time before it to the next Moment."""
    taken = found.pop(place)
    found[place] = replace(found[place], computed=found[place].computed + taken.computed)


def _place(found: Sequence[Moment], transfer: int, *, waits: bool) -> int:
    return next(i for i, moment in enumerate(found) if (moment.transfer, moment.waits) == (transfer, waits))
