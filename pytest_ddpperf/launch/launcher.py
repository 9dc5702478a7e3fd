"""Start ranks, watch them, return their results, leave no process behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.launch import environment, payload
from pytest_ddpperf.launch.conduct import conduct, value_of
from pytest_ddpperf.launch.machine import TorchMachine, check_names, place, probe
from pytest_ddpperf.launch.messages import Call, Job
from pytest_ddpperf.launch.outputs import RankOutput, titled
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Self

    from pytest_ddpperf.launch.redirection import Redirection
    from pytest_ddpperf.records.measurement import Mode

T = TypeVar("T")

_PROBE_SECONDS = 120.0  # the first contact with a GPU driver can take its time
MAX_TIMEOUT = 1e6  # seconds; the kernel cannot wait much longer in one call
_REWRITER = "_pytest.assertion.rewrite"  # rewritten asserts call into it
_PRELOADED = ("torch", "torch.distributed", "numpy", "cloudpickle", "pytest_ddpperf.launch.rank")


@dataclass(frozen=True)
class LaunchResult(Generic[T]):
    """The results of a launch: ``values`` and ``outputs`` by rank, and the seconds from the first fork to the end."""

    values: tuple[T, ...]
    outputs: tuple[RankOutput, ...]
    seconds: float

    def rank(self, rank: int) -> T:
        """The value that the function returned on ``rank``."""
        return self.values[rank]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """The output of each rank that printed something, with a title for the test's report."""
        return titled(enumerate(self.outputs))


class Launcher:
    """Owns the zygote, the process that ranks are forked from; the first launch starts it.

    Any thread may use a launcher; its launches run one after another. ``close`` ends the zygote, and so does the end of
    this process, however it comes.

    Args:
        environ: environment variables of the ranks; by default those of this process at each launch.
        preload: modules that ranks find imported; they must start no thread and leave CUDA alone.
        redirection: another checkout that ranks import the project from; None for this one.
        like: a launcher with the same arguments; a copy of its zygote spares the import of torch, and ends with it.
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
        """Process id of the zygote, which is the parent of ranks; None while there is no zygote."""
        zygote = self._zygote
        return None if zygote is None else zygote.pid

    def start(self) -> None:
        """Start the zygote and let it import torch while pytest collects."""
        # A copy costs next to nothing when its original is ready, so only originals are started early.
        original = self if self._like is None else self._like
        with original.idle_zygote():
            pass

    @contextlib.contextmanager
    def idle_zygote(self) -> Iterator[ZygoteProcess | None]:
        """Lend the zygote, started if need be, and keep launches waiting; None where the launcher is busy."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self._started()
        finally:
            self._lock.release()

    def wait(self) -> None:
        """Wait until torch is imported and ranks can be forked at once."""
        with self._lock:
            self._wait_until_ready(self._started())

    def machine(self) -> TorchMachine:
        """The devices and backends that torch finds under the current CUDA_VISIBLE_DEVICES."""
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
            function: any callable, closures and lambdas too; the objects that it refers to travel along.
            *args: the function's arguments after ``ctx``.
            world_size: the number of ranks.
            backend: ``gloo``, ``nccl`` or ``auto``: NCCL where each rank has a GPU of its own.
            device: ``cpu``, ``cuda`` or ``auto``: CUDA where there is a GPU.
            timeout: seconds for the whole launch, without the one-off import of torch.
            mode: the value of ``ctx.mode``, at a point of a scaling curve.
            preload: more modules that the ranks of this and later launches find imported.

        Raises:
            RankFailed: a rank raised, exited or was killed; the error starts with the first one to fail.
            RanksTimedOut: not all ranks had finished within ``timeout``; the message says where they stood.
            RankSkipped: a rank called ``pytest.skip``.
            PayloadError: the function or a result cannot be sent.
            SettingError: a device, backend, world size or timeout is invalid.
            LaunchError: this machine cannot start such ranks.
        """
        check_names(device, backend, world_size)
        if not 0 < timeout <= MAX_TIMEOUT:
            raise SettingError(
                f"timeout {timeout!r} is no deadline; it takes seconds, above 0 and up to {MAX_TIMEOUT:.0f}"
            )
        if device != "cpu" or backend != "gloo":
            # A CPU group needs no probe: every torch that ranks can use has gloo.
            placed = place(device, backend, world_size, self.machine())
            device, backend = placed.device, placed.backend
        job = _job(Call(function, args), world_size, timeout, device=device, group=backend, mode=mode)
        return self._launch(replace(job, preload=tuple(preload)))

    def abort(self) -> None:
        """End the zygote at once; a launch that another thread has under way raises LaunchError."""
        zygote = self._zygote
        if zygote is not None:
            zygote.kill()

    def close(self) -> None:
        """End the zygote and everything below it; the next launch starts a new one."""
        with self._lock:
            self._drop()

    def _environment(self) -> Mapping[str, str]:
        return os.environ if self._environ is None else self._environ

    def _launch(self, job: Job) -> LaunchResult[Any]:
        with self._lock:
            zygote = self._started()
            self._wait_until_ready(zygote)
            job = self._redirected(replace(job, environ=environment.inherited(self._environment(), zygote.pinned)))
            ends, seconds = conduct(zygote, job, lambda: self._sweep(zygote))
        return LaunchResult(tuple(map(value_of, ends)), tuple(end.output for end in ends), seconds)

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
            lent = contextlib.nullcontext() if self._like is None else self._like.idle_zygote()
            with lent as original:
                self._zygote = ZygoteProcess(self._environment(), preload, self._redirection, original)
            atexit.register(self.close)
        return self._zygote

    def _wait_until_ready(self, zygote: ZygoteProcess) -> None:
        try:
            zygote.wait_until_ready()
        except BaseException:
            self._drop()
            raise

    def _sweep(self, zygote: ZygoteProcess) -> None:
        """Leave no process of the launch; a zygote whose sweep failed or was interrupted is ended as well."""
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
    """The job of all ranks; ``environ`` is filled in when the zygote runs, ``listening`` when the socket is bound."""
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
