"""Start ranks, watch them, give back what they returned, leave nothing behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_ddpperf.errors import LaunchError, PayloadError, RanksTimedOut, SettingError
from pytest_ddpperf.launch import environment, failures, payload, processes, stacks
from pytest_ddpperf.launch.machine import TorchMachine, check_names, place, probe
from pytest_ddpperf.launch.messages import Call, Finished, Job
from pytest_ddpperf.launch.outputs import RankOutput, titled
from pytest_ddpperf.launch.rank_processes import End, RankGroup
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Self

    from pytest_ddpperf.launch.redirection import Redirection
    from pytest_ddpperf.records.measurement import Mode

T = TypeVar("T")

_PROBE_SECONDS = 120.0  # the first contact with a GPU driver can take its time
LONGEST_TIMEOUT = 1e6  # seconds; what the kernel can wait for in one call is not much more
_REWRITER = "_pytest.assertion.rewrite"  # rewritten asserts call into it
_PRELOADED = ("torch", "torch.distributed", "numpy", "cloudpickle", "pytest_ddpperf.launch.rank")


@dataclass(frozen=True)
class LaunchResult(Generic[T]):
    """What a launch gave: ``values`` and ``outputs`` by rank, and the seconds from the first fork to the last exit."""

    values: tuple[T, ...]
    outputs: tuple[RankOutput, ...]
    seconds: float

    def rank(self, rank: int) -> T:
        """What the function returned on ``rank``."""
        return self.values[rank]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """What the ranks printed, titled for a test's report, without those that printed nothing."""
        return titled(enumerate(self.outputs))


class Launcher:
    """Owns the zygote, the process that ranks are forked from; it starts with the first launch.

    Safe to use from any thread; launches run one after another. ``close`` ends the zygote; so does the end of this
    process, however it comes.

    Args:
        environ: what ranks get as their environment; by default this process's own, as it is at each launch.
        preload: modules that ranks shall find imported; they must start no thread and leave CUDA alone.
        redirection: the other checkout that ranks import the project from; None for this one.
        like: a launcher made with the same arguments: a copy of its zygote need not import torch, and ends with it.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        preload: Iterable[str] = (),
        redirection: Redirection | None = None,
        like: Launcher | None = None,
    ) -> None:
        self._like = like
        self._environ = environ
        self._preload = tuple(preload)
        self._redirection = redirection
        self._zygote: ZygoteProcess | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._machines: dict[str | None, TorchMachine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the zygote, whose children ranks are; None while there is none."""
        zygote = self._zygote
        return None if zygote is None else zygote.pid

    def start(self) -> None:
        """Start the zygote without waiting for it, so that it imports torch while pytest collects.

        Raises:
            LaunchError: this is not Linux.
        """
        # A copy is made in no time, once there is something to copy.
        first = self if self._like is None else self._like
        if first._lock.acquire(blocking=False):  # noqa: SLF001  else it has been started, or is just being
            try:
                first._started()  # noqa: SLF001
            finally:
                first._lock.release()  # noqa: SLF001

    def wait(self) -> None:
        """Return when ranks can be forked at once: torch has been imported.

        Raises:
            LaunchError: this is not Linux, or it cannot be imported.
        """
        with self._lock:
            self._wait_until_ready(self._started())

    def machine(self) -> TorchMachine:
        """What torch finds in this machine, under the current CUDA_VISIBLE_DEVICES.

        Raises:
            LaunchError: torch cannot be imported.
            RankFailed: torch failed when it was asked.
        """
        visible = self._environment().get("CUDA_VISIBLE_DEVICES")
        if visible not in self._machines:
            job = _job(Call(probe, ()), 1, _PROBE_SECONDS, device="cpu", group=None)
            self._machines[visible] = self._launch(job).rank(0)
        return self._machines[visible]

    def run(
        self,
        function: Callable[..., T],
        *args: Any,
        world_size: int,
        backend: str = "auto",
        device: str = "auto",
        timeout: float = 60.0,
        mode: Mode | None = None,
        preload: Iterable[str] = (),
    ) -> LaunchResult[T]:
        """Call ``function(ctx, *args)`` on every rank of a fresh process group; ``ctx`` is a ``RankContext``.

        When this returns or raises, no process of the launch is left.

        Args:
            function: anything callable, closures and lambdas too; what they hold travels along.
            *args: what ``function`` is given after ``ctx``.
            world_size: how many ranks.
            backend: ``gloo``, ``nccl`` or ``auto``: NCCL where each rank has a GPU of its own.
            device: ``cpu``, ``cuda`` or ``auto``: CUDA where there is a GPU.
            timeout: seconds for the whole launch, the one-off import of torch apart.
            mode: for ``ctx.mode``, where this is a point of a scaling curve.
            preload: more modules that the ranks of this and later launches shall find imported.

        Raises:
            RankFailed: a rank raised, exited or was killed; the first one to fail is reported first.
            RanksTimedOut: not all ranks had finished within ``timeout``; the message says where they stood.
            RankSkipped: a rank called ``pytest.skip``.
            PayloadError: the function or a result cannot be sent.
            SettingError, LaunchError: the ranks cannot be had like that.
        """
        check_names(device, backend, world_size)
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise SettingError(
                f"timeout {timeout!r} is no deadline; it takes seconds, above 0 and up to {LONGEST_TIMEOUT:.0f}"
            )
        if device != "cpu" or backend != "gloo":
            # A CPU group needs no probe: every torch that ranks can use has gloo.
            placed = place(device, backend, world_size, self.machine())
            device, backend = placed.device, placed.backend
        job = _job(Call(function, args), world_size, timeout, device=device, group=backend, mode=mode)
        return self._launch(replace(job, preload=tuple(preload)))

    def abort(self) -> None:
        """End the zygote at once, and with it the launch that another thread has under way: it raises LaunchError."""
        zygote = self._zygote
        if zygote is not None:
            zygote.kill()

    def close(self) -> None:
        """End the zygote and everything below it; may be called again. A later launch starts a new one."""
        with self._lock:
            self._drop()

    def _environment(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    def _launch(self, job: Job) -> LaunchResult[Any]:
        with self._lock:
            zygote = self._started()
            self._wait_until_ready(zygote)
            job = self._redirected(replace(job, environ=environment.inherited(self._environment(), zygote.pinned)))
            started = time.monotonic()
            kills = processes.out_of_memory_kills()
            with RankGroup(zygote, job.local_world_size, job.first_rank) as group:
                try:
                    end, found = _conduct(group, job, started + job.timeout)
                finally:
                    self._sweep(zygote)
                seconds = time.monotonic() - started
                ends = [
                    failures.RankEnd(rank.rank, rank.report, rank.status, rank.stamp, group.output(rank))
                    for rank in group.ranks
                ]
        if end is End.LATE:
            raise _timed_out(ends, found, job.world_size, job.timeout)
        if end is End.FAILED:
            raise failures.failure(ends, job.world_size, out_of_memory=processes.out_of_memory_kills() > kills)
        return LaunchResult(_values(ends), tuple(end.output for end in ends), seconds)

    def _redirected(self, job: Job) -> Job:
        if self._redirection is None:
            return job
        path, environ = self._redirection.search_path(job.path), self._redirection.environ(job.environ)
        return replace(job, path=path, environ=environ)

    def _started(self) -> ZygoteProcess:
        if not sys.platform.startswith("linux"):
            raise LaunchError(f"ranks can be started on Linux only, and this is {sys.platform}")
        if self._zygote is not None and (self._owner != os.getpid() or not self._zygote.alive):
            self._drop()
        if self._zygote is None:
            rewriter = (_REWRITER,) if _REWRITER in sys.modules else ()
            self._owner = os.getpid()
            preload = (*_PRELOADED, *rewriter, *self._preload)
            with self._original() as original:
                self._zygote = ZygoteProcess(self._environment(), preload, self._redirection, original)
            atexit.register(self.close)
        return self._zygote

    @contextlib.contextmanager
    def _original(self) -> Iterator[ZygoteProcess | None]:
        """The zygote to copy, kept from launching meanwhile; None where there is none, or where it is busy."""
        like = self._like
        if like is None or not like._lock.acquire(blocking=False):  # noqa: SLF001  its own class
            yield None
            return
        try:
            yield like._started()  # noqa: SLF001
        finally:
            like._lock.release()  # noqa: SLF001

    def _wait_until_ready(self, zygote: ZygoteProcess) -> None:
        try:
            zygote.wait_until_ready()
        except BaseException:
            self._drop()
            raise

    def _sweep(self, zygote: ZygoteProcess) -> None:
        """Leave no process of the launch; a zygote that cannot see to that, or was interrupted in it, goes as well."""
        swept = False
        try:
            swept = zygote.sweep()
        finally:
            if not swept:
                self._drop()

    def _drop(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return
        atexit.unregister(self.close)
        if self._owner == os.getpid():
            zygote.close()
        else:
            zygote.forget()


def _job(
    call: Call, world_size: int, timeout: float, *, device: str, group: str | None, mode: Mode | None = None
) -> Job:
    """The job of all ranks; its port and environment are settled when the zygote is there."""
    return Job(
        call=payload.dump_call(call),
        first_rank=0,
        local_world_size=world_size,
        world_size=world_size,
        device=device,
        group=group,
        mode=mode,
        timeout=timeout,
        listening=0,
        environ={},
        path=environment.search_path(),
        directory=str(Path.cwd()),
    )


def _conduct(group: RankGroup, job: Job, deadline: float) -> tuple[End, dict[int, str]]:
    """Start the ranks and see them through; with the stacks of those that the deadline has caught."""
    with contextlib.ExitStack() as own:
        # Bound here and served by rank 0: no other process can take the port between the choice and the use.
        listener = own.enter_context(socket.create_server(("127.0.0.1", 0), backlog=max(128, job.world_size)))
        file = os.memfd_create("ddpperf-job")
        own.callback(os.close, file)
        with open(file, "wb", closefd=False) as written:
            pickle.dump(replace(job, listening=listener.getsockname()[1]), written)
        group.fork(file, listener if job.group is not None else None, job.preload)
    end = group.watch(deadline)
    if end is End.FINISHED:
        group.dismiss()
    return end, group.stacks() if end is End.LATE else {}


def _timed_out(ends: list[failures.RankEnd], found: dict[int, str], world_size: int, timeout: float) -> RanksTimedOut:
    finished = [end.rank for end in ends if isinstance(end.report, Finished)]
    first, guilty = stacks.roll_call(found, finished, world_size, timeout)
    return RanksTimedOut(
        f"{first}\n\n{stacks.listing(found, guilty)}",
        rank=guilty,
        sections=titled((end.rank, end.output) for end in ends),
    )


def _values(ends: list[failures.RankEnd]) -> tuple[Any, ...]:
    values = []
    for end in ends:
        if not isinstance(end.report, Finished):
            raise TypeError(end.report)
        try:
            values.append(payload.loads(end.report.value))
        except Exception as error:
            raise PayloadError(
                f"what rank {end.rank} returned cannot be read by the test session: {type(error).__name__}: {error}; "
                "return plain data"
            ) from error
    return tuple(values)
