"""Start ranks, watch them, return their results, leave no process behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch import environment, payload
from pytest_ddpperf.launch.conduct import conduct, end_seconds
from pytest_ddpperf.launch.context import VISIBLE, Gpus, TorchMachine, check_names, find_machine, place, probe
from pytest_ddpperf.launch.messages import Call, Finished, Job, Preload
from pytest_ddpperf.launch.preloading import preloaded
from pytest_ddpperf.launch.processes import HAS_PIDFD, require_linux
from pytest_ddpperf.launch.streams import RankOutput, titled
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from pytest_ddpperf.launch.environment import Variables
    from pytest_ddpperf.launch.messages import SeenImport
    from pytest_ddpperf.launch.preloading import Judged, PreloadedZygotes, Wanted
    from pytest_ddpperf.launch.rank_processes import Echo
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
    imports: tuple[SeenImport, ...] = ()  # of rank 0, that no zygote had made before

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
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,  # of the ranks; by default that of this process at each launch
        preload: Iterable[str] = (),  # modules that ranks find imported; they start no thread and leave CUDA alone
        redirection: Redirection | None = None,  # another checkout that ranks import the project from
        echo: Echo | None = None,  # is told what ranks print, while they run
        like: Launcher | None = None,  # with the same arguments: its zygote is copied, which spares torch's import
    ) -> None:
        self._like = like
        self._variables: dict[str, str] = {}
        self.remarks: dict[str, str] = {}  # on GPUs, the first on each
        self._environ, self._echo = environ, echo
        self._preload = tuple(preload)
        self._redirection = redirection
        self._zygote: ZygoteProcess | None = None
        self._preloaded: PreloadedZygotes | None = None  # copies of the zygote
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._machines: dict[tuple[bool | str | None, ...], TorchMachine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def having(self, variables: Variables) -> Self:
        """The same launcher, whose later ranks have these variables besides those of the environment."""
        self._variables = dict(variables)
        return self

    @property
    def pid(self) -> int | None:
        """Process id of the zygote, which is the parent of ranks; None while there is no zygote."""
        zygote = self._zygote  # read once: another thread may drop it
        return None if zygote is None else zygote.pid

    @property
    def parents(self) -> tuple[int | None, ...]:
        """Process ids of the zygote and of its copies, which are the parents of ranks."""
        copies = () if self._preloaded is None else self._preloaded.all
        return (self.pid, *(zygote.pid for zygote in copies))

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
            self._ready()

    def preload(self, wanted: Wanted, judged: Judged, like: Launcher | None = None) -> None:
        """Fork later ranks from copies of the zygote that have imported these modules, as far as that is harmless.

        With ``like``, a launcher that has preloaded the same, its copies are copied.

        Raises:
            SettingError: a module that was asked for cannot be imported before ranks are forked.
            LaunchError: this machine cannot start such ranks.
        """
        with self._lock:
            zygote = self._ready()
            (environ, path), found = self._of_ranks(zygote), self._preloaded
            if found is not None and found.serve(wanted) and found.fits(environ):
                return
            self._drop_preloaded()
            if not (wanted.modules and HAS_PIDFD):
                return
            if like is not None:
                with like.idle_preloaded() as original:
                    self._preloaded = None if original is None else original.duplicate()
                return
            request = Preload(environ=environ, path=path, directory=environment.current_folder())
            self._preloaded = preloaded(zygote, request, wanted, judged)

    def has_preloaded(self, wanted: Wanted) -> bool:
        """Whether copies of the zygote have imported these modules."""
        found = self._preloaded  # read once: another thread may drop it
        return found is not None and found.serve(wanted)

    @contextlib.contextmanager
    def idle_preloaded(self) -> Iterator[PreloadedZygotes | None]:
        """Lend the copies of the zygote, and keep launches waiting; None where there are none."""
        with self._lock:
            yield self._preloaded

    def machine(self, *, gpus: bool = True) -> TorchMachine:
        """The devices and backends that torch finds in the current environment; without ``gpus`` no GPU is touched."""
        if self._like is not None:
            return self._like.machine(gpus=gpus)
        environ = self._environment()
        key = (gpus, *map(environ.get, VISIBLE))
        if key not in self._machines:

            def ask(shown: Gpus, processes: int) -> tuple[TorchMachine, ...]:
                alone = {"world_size": processes, "device": "cpu", "gpus": shown, "group": None, "mode": None}
                return self._launch(Call(probe, (gpus,)), _PROBE_SECONDS, probes=gpus, **alone).values

            self._machines[key] = find_machine(environ, ask)
        return self._machines[key]

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
        own_group: bool = False,
        interleaved: bool = False,
    ) -> LaunchResult[T]:
        """Call ``function(ctx, *args)`` on every rank of a fresh process group; ``ctx`` is a ``RankContext``.

        The function may be a closure or a lambda; the objects that it refers to travel along. ``timeout`` is in seconds
        for the whole launch, without the one-off import of torch. The ranks of this and later launches find the modules
        of ``preload`` imported. With ``own_group`` the function makes the group, ``interleaved`` others may use GPUs.

        Raises:
            RankFailed: a rank raised, exited or was killed; the error starts with the first one to fail.
            RanksTimedOut: not all ranks had finished within ``timeout``; the message says where they stood.
            RankSkipped: a rank called ``pytest.skip``.
            PayloadError: the function or a result cannot be sent, or a result cannot be read in time.
            SettingError: a device, backend, world size or timeout is invalid.
            LaunchError: this machine cannot start such ranks.
        """
        check_names(device, backend, world_size)
        if not 0 < timeout <= MAX_TIMEOUT:
            seconds = f"seconds, above 0 and up to {MAX_TIMEOUT:.0f}"
            raise SettingError(f"timeout {timeout!r} is no deadline; it takes {seconds}")
        gpus = Gpus()
        if device != "cpu" or backend != "gloo":
            # A CPU group needs no probe: every torch that ranks can use has gloo.
            machine = self.machine(gpus=device != "cpu")
            placed = place(device, backend, world_size, machine)
            device, backend = placed.device, placed.backend
            gpus = machine.gpus if device == "cuda" else gpus
        return self._launch(
            Call(function, args),
            timeout,
            world_size=world_size,
            device=device,
            gpus=gpus,
            group=backend,
            mode=mode,
            preload=tuple(preload),
            own_group=own_group,
            interleaved=interleaved,
        )

    def abort(self) -> None:
        """End the zygote at once; a launch that another thread has under way raises LaunchError."""
        zygote, preloaded = self._zygote, self._preloaded
        for one in (() if preloaded is None else preloaded.all) + (() if zygote is None else (zygote,)):
            one.kill()

    def close(self) -> None:
        """End the zygote and everything below it; the next launch starts a new one."""
        with self._lock:
            self._drop()

    def _environment(self) -> Mapping[str, str]:
        environ = os.environ if self._environ is None else self._environ
        return {**environ, **self._variables} if self._variables else environ

    def _launch(self, call: Call, timeout: float, **of_job: Any) -> LaunchResult[Any]:
        dumped = payload.dump_call(call)
        with self._lock:
            zygote = self._ready()
            environ, path = self._of_ranks(zygote)
            job = Job(
                call=dumped,
                timeout=timeout,
                environ=environ,
                path=path,
                directory=environment.current_folder(),
                **of_job,
            )
            zygotes, found = [zygote] * job.world_size, self._preloaded
            if found is not None and found.fits(environ):
                zygotes = found.of(job.world_size)
            if job.device != "cpu" and zygotes[0].remark:
                self.remarks["forked"] = zygotes[0].remark
            sweeping = end_seconds(job) + 2.0
            ends, seconds = conduct(zygotes, job, lambda: self._sweep(zygotes, sweeping), self._echo)
            for report in (end.report for end in ends if isinstance(end.report, Finished) and end.report.remark):
                self.remarks.setdefault(report.remark.partition(":")[0], report.remark)
        outputs = tuple(end.output for end in ends)
        return LaunchResult(payload.values_of(ends, timeout - seconds), outputs, seconds, ends[0].imports)

    def _of_ranks(self, zygote: ZygoteProcess) -> tuple[dict[str, str], tuple[str, ...]]:
        """The environment variables and the search path of ranks."""
        environ, path = environment.inherited(self._environment(), zygote.pinned), environment.search_path()
        if self._redirection is None:
            return environ, path
        return self._redirection.environ(environ), self._redirection.search_path(path)

    def _started(self) -> ZygoteProcess:
        require_linux()
        zygote, environ = self._zygote, self._environment()
        if zygote and not (self._owner == os.getpid() and zygote.usable and zygote.imports_as(environ)):
            self._drop()
        if self._zygote is None:
            self._owner = os.getpid()
            preload = (*_PRELOADED, *({_REWRITER} & sys.modules.keys()), *self._preload)
            lent = contextlib.nullcontext() if self._like is None else self._like.idle_zygote()
            with lent as original:
                self._zygote = ZygoteProcess(environ, preload, self._redirection, original)
            atexit.register(self.close)
        return self._zygote

    def _ready(self) -> ZygoteProcess:
        zygote = self._started()
        try:
            zygote.wait_until_ready()
        except BaseException:
            self._drop()
            raise
        return zygote

    def _sweep(self, zygotes: Sequence[ZygoteProcess], seconds: float) -> None:
        """Leave no process of the launch; zygotes of which a sweep failed or was interrupted are ended as well."""
        swept = False
        try:
            sweeps = [zygote.sweep(seconds) for zygote in dict.fromkeys(zygotes)]
            swept = all(sweeps)
        finally:
            if not swept:
                self._drop()

    def _drop_preloaded(self) -> None:
        preloaded, self._preloaded = self._preloaded, None
        for zygote in () if preloaded is None else preloaded.all:
            (zygote.close if self._owner == os.getpid() else zygote.forget)()

    def _drop(self) -> None:
        self._drop_preloaded()
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return
        atexit.unregister(self.close)
        (zygote.close if self._owner == os.getpid() else zygote.forget)()
