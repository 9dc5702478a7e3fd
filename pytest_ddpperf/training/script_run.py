"""Runs a script in a rank's main thread; after each optimizer step, the script waits for the measuring thread."""

from __future__ import annotations

import functools
import os
import subprocess
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from datetime import timedelta
from itertools import dropwhile
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from pytest_ddpperf.errors import TrainingEnded, WorkloadError
from pytest_ddpperf.instruments.torch_internals import after_optimizer_steps, process_groups, replaced, uncompiled
from pytest_ddpperf.launch.faults.exceptions import to_stderr, traceback_text
from pytest_ddpperf.strategies.strategy import RankView, nothing
from pytest_ddpperf.training.subject import Script
from pytest_ddpperf.training.without_gpu import GpuCalls
from pytest_ddpperf.units import format_count

T = TypeVar("T")
_Mode: TypeAlias = "TorchFunctionMode | TorchDispatchMode"
_kept: list[Any] = []
"""The process groups of scripts, kept until their rank ends, because both threads below could hang (torch 2.13).

If a script destroys its group before its model is freed, the thread that frees the model holds the GIL while it waits
for gloo's threads to end, and one of gloo's threads may wait for the GIL.
"""
_PATIENCE = timedelta(days=1)  # the controller's deadline comes first, and has the better report
_SPAWN = "torch.multiprocessing.spawn"
_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun"}


class ScriptStopped(BaseException):
    """Raised to end a script that has trained enough; no Exception, so that ``except Exception`` does not catch it."""


class _EndedError(Exception):
    """The error that ends the measuring thread if the script fails before its last step."""


class _Order(NamedTuple):
    steps: int
    mark: Callable[[], Any]  # called before these steps and after each
    modes: Sequence[_Mode]  # of the measuring thread: instruments that are to see these steps


class ScriptRun:
    """A run of a script in this rank's main thread, which alternates with the measuring code in another thread."""

    def __init__(self, ctx: RankView, script: Script, needed: int, roots: tuple[str, ...]) -> None:
        self._ctx, self._script, self._needed = ctx, script, needed
        self.gpu_calls = GpuCalls(ctx.local_world_size, roots)
        self.made = 0  # optimizer steps so far
        self.group: Any = None  # where the ranks that measure meet
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()  # None ends the script
        self._answers: SimpleQueue[list[Any] | None] = SimpleQueue()  # marks; None if the script has ended
        self._order: _Order | None = None
        self._marks: list[Any] = []
        self._backward = 0  # calls of backward under way
        self._late: torch.optim.Optimizer | None = None  # that stepped inside such a call
        self._modes: list[_Mode] = []  # of the measuring thread that the script's steps run under, too
        self._counted: Callable[[], torch.optim.Optimizer | None] = nothing
        self._ended = False
        self._error: BaseException | None = None

    def beside(self, measure: Callable[[], T]) -> T:
        """Runs the script in this thread and ``measure`` in another thread; returns the result of ``measure``."""
        on_cpu = self._ctx.device.type == "cpu"
        with (
            self.gpu_calls.on_cpu() if on_cpu else nullcontext(),
            replaced(BaseProcess, "start", self._refusing_ranks(BaseProcess.start)),
            replaced(subprocess.Popen, "__init__", self._refusing_ranks(subprocess.Popen.__init__)),
            ThreadPoolExecutor(1, "ddpperf-measuring") as measuring,
        ):
            measured = measuring.submit(self._measured, measure)
            ask: Any = Join._get_num_nonjoined_procs  # noqa: SLF001 - torch asks nowhere else
            with (
                after_optimizer_steps(self._stepped),
                replaced(torch.Tensor, "backward", self._ending_late(torch.Tensor.backward)),
                replaced(torch.autograd, "backward", self._ending_late(torch.autograd.backward)),
                replaced(Join, "_get_num_nonjoined_procs", lambda join: self._joined(ask, join)),
            ):
                self._run()
            if self._error is not None:
                raise self._error
            return measured.result()

    # In the measuring thread.

    def _measured(self, measure: Callable[[], T]) -> T:
        if self._ctx.device.type == "cuda":
            torch.cuda.set_device(self._ctx.device)
        with closing(self):
            return measure()

    def begin(self) -> None:
        """Runs the script to the end of its first optimizer step."""
        # A separate group, which the script's ``init_process_group`` and ``destroy_process_group`` do not touch.
        rank, ranks = self._ctx.rank, self._ctx.world_size
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, ranks, is_master=False, timeout=_PATIENCE)  # type: ignore[attr-defined]
        self.group = dist.ProcessGroupGloo(dist.PrefixStore("ddpperf", store), rank, ranks, _PATIENCE)  # type: ignore[attr-defined]
        self()

    def __call__(self) -> None:
        """Lets the script train one step."""
        self.marked(1, nothing)

    def marked(self, steps: int, mark: Callable[[], Any]) -> list[Any]:
        """Lets the script run ``steps`` steps; returns the results of ``mark`` before the first step and after each."""
        if not self._ended:
            of_functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # torch's
            modes = [*of_functions, *_get_current_dispatch_mode_stack()]
            self._orders.put(_Order(steps, mark, modes))
            marks = self._answers.get()
            if marks is not None:
                return marks
            self._ended = True
        if self._error is not None:
            raise _EndedError
        if not self.made:
            reason = f"{self._script.name} ended before its first optimizer step: its last output may say why"
            cure = "the plugin does not see the steps of processes that the script starts itself"
            raise WorkloadError(f"{reason}; {cure}")
        raise TrainingEnded(
            f"{self._script.name} ended after {format_count(self.made, 'optimizer step')}, and this launch needs "
            f"{max(self._needed, self.made + 1)}, to warm up, to time and to diagnose: let it train for longer "
            "(more epochs, more data), or lower steps=... and warmup=..."
        )

    def close(self) -> None:
        """Stops the script, and waits until it has ended."""
        if not self._ended:
            self._ended = True
            self._orders.put(None)
            while self._answers.get() is not None:
                pass

    # In the script's thread.

    def _run(self) -> None:
        try:
            self._await_order()
            self._script.run()
        except ScriptStopped:
            pass
        except BaseException as error:  # noqa: BLE001  it may be sys.exit
            if self._order is None:  # a consequence of being stopped
                to_stderr(traceback_text(error) or str(error))
            elif not (isinstance(error, SystemExit) and not error.code):
                self._error = error
        finally:
            try:
                self._follow(())
            finally:
                self._answers.put(None)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a step if the first optimizer of the script has stepped; called after each step of any optimizer."""
        if self._counted() is None:
            self._counted = weakref.ref(optimizer)
        if self._counted() is not optimizer:
            return
        if self._backward:
            self._late = optimizer
            return
        if self._order is None:
            raise ScriptStopped  # again: somebody has caught it
        if self.made == 0:
            _kept.extend(process_groups())
        self.made += 1
        self._marks.append(self._order.mark())
        if len(self._marks) > self._order.steps:
            self._answers.put(self._marks)
            self._await_order()

    def _ending_late(self, backward: Callable[..., T]) -> Callable[..., T]:
        """Wraps ``backward``, so that an optimizer that steps inside ends the step only after ``backward`` returns."""

        @functools.wraps(backward)
        def run(*args: Any, **kwargs: Any) -> T:
            self._backward += 1
            try:
                result = backward(*args, **kwargs)
            finally:
                self._backward -= 1
            if not self._backward and (late := self._late) is not None:  # ``backward`` resets dispatch modes
                self._late = None
                self._stepped(late)
            return result

        return uncompiled(run)

    def _joined(self, ask: Callable[[Join], T], join: Join) -> T:
        """Returns ``ask(join)``, how many ranks have batches. Raises WorkloadError if they train without this rank."""
        others = ask(join)
        if others and not join._throw_on_early_termination:  # noqa: SLF001  else the others end, too
            fact = f"{self._script.name}: rank {self._ctx.rank} has fewer batches than others and waits in Join"
            raise WorkloadError(f"{fact}, but all ranks are measured in the same steps: give all equally many batches")
        return others

    def _refusing_ranks(self, start: Callable[..., T]) -> Callable[..., T]:
        """Wraps ``start``, which starts a process; raises an error if the script starts ranks before it trains."""

        @functools.wraps(start)
        def started(*args: Any, **how: Any) -> T:
            by = "" if self.made or dist.is_initialized() else _starter(*args, **how)
            if by:
                raise WorkloadError(
                    f"{self._script.name} starts ranks itself, by {by}: the plugin has already started them, and sees "
                    "no steps of other processes. If RANK is set, let the script start no ranks, and train in the "
                    "process that runs it, with the numbers in RANK, LOCAL_RANK and WORLD_SIZE, as under torchrun"
                )
            return start(*args, **how)

        return started

    def _await_order(self) -> None:
        self._order = self._orders.get()
        if self._order is None:
            self._follow(())
            raise ScriptStopped
        self._follow(self._order.modes)
        self._marks = [self._order.mark()]

    def _follow(self, modes: Sequence[_Mode]) -> None:
        """Enters the measuring thread's dispatch modes in this thread, because a mode affects only one thread."""
        if list(modes) == self._modes:
            return
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's are not annotated
        self._modes = [mode.__enter__() for mode in modes]  # type: ignore[no-untyped-call]


def _starter(process: object, args: Any = (), *_: Any, **__: Any) -> str:
    """Returns the name of the program or module by which a new process would start ranks; empty if none."""
    target, given = getattr(process, "_target", None), getattr(process, "_args", ())
    by = _SPAWN if getattr(target, "__module__", "") == _SPAWN else "multiprocessing.Process"
    target = next(iter(given), None) if by == _SPAWN else target  # the function that each process calls
    target = getattr(target, "func", target)  # of a functools.partial
    named = map(target.__globals__.get, target.__code__.co_names) if isinstance(target, FunctionType) else ()
    functions = (one for one in (target, *named) if isinstance(one, FunctionType))
    if any("init_process_group" in one.__code__.co_names for one in functions):
        return by
    parts = args if isinstance(args, (list, tuple)) else args.split() if isinstance(args, str) else ()
    words = [os.fsdecode(part) for part in parts if isinstance(part, (str, bytes, os.PathLike))]
    words = list(dropwhile(lambda word: word in {"exec", "env"} or "=" in word, words))
    if words[1:2] == ["-m"] and Path(words[0]).name.startswith("python"):
        del words[:2]
    name, what = Path(words[0]).name if words else "", words[1:2]
    starts = name in _LAUNCHERS and what != ["--version"] and (name != "accelerate" or what == ["launch"])
    return name if starts else ""
