"""Starts ranks, watches them, returns their results, and leaves no process behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch import environment, payload
from pytest_ddpperf.launch.context import Gpus, TorchMachine, find_machine, place, probe
from pytest_ddpperf.launch.launch_run import LaunchResult, end_seconds, run_ranks
from pytest_ddpperf.launch.messages import Call, Finished, Job, Preload, SeenImport
from pytest_ddpperf.launch.preloading.zygotes import Judged, PreloadedZygotes, Wanted, preloaded
from pytest_ddpperf.launch.processes import require_linux
from pytest_ddpperf.launch.rank_processes import Echo, RankProcesses, enough_files
from pytest_ddpperf.launch.zygote_process import ZygoteEnded, ZygoteProcess

if TYPE_CHECKING:
    from pytest_ddpperf.launch.environment import Variables
    from pytest_ddpperf.launch.interleaving import TurnSlot
    from pytest_ddpperf.launch.node_ranks import NodeRanks
    from pytest_ddpperf.launch.redirection import Redirection
    from pytest_ddpperf.records.measurement import Mode

T = TypeVar("T")

_PROBE_SECONDS = 120.0  # the first contact with a GPU driver can take its time
MAX_TIMEOUT = 1e6  # seconds; the kernel cannot wait much longer in one call
_REWRITER = "_pytest.assertion.rewrite"  # rewritten asserts call into it
_PRELOADED = ("torch", "torch.distributed", "numpy", "cloudpickle", "pytest_ddpperf.launch.rank")


class _OtherNodes(Protocol):  # the methods of NodeLaunchers that launchers call
    @property
    def interface(self) -> str: ...
    def counts(self, world_size: int, gpus: int) -> tuple[int, ...]: ...
    def ranks(self, counts: Sequence[int], environ: Mapping[str, str], echo: Echo | None) -> Sequence[NodeRanks]: ...
    def preload(self, modules: Sequence[SeenImport]) -> Callable[[], None]: ...
    def close(self) -> None: ...


class Launcher(contextlib.AbstractContextManager["Launcher"]):
    """Launches ranks from a fork server, which is a process that has imported torch.

    Any thread may use a launcher. Its launches run one after another, and the first launch starts the fork server. The
    fork server ends with ``close``, or when this process ends.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,  # of the ranks; by default that of this process at each launch
        threads: Mapping[str, str] | None = None,  # numbers of threads in place of those in environ
        preload: Iterable[str] = (),  # modules that ranks find imported; they start no thread and leave CUDA alone
        redirection: Redirection | None = None,  # another checkout that ranks import the project from
        echo: Echo | None = None,  # gets the lines that ranks print, while they run
        like: Launcher | None = None,  # with the same arguments: its zygote is copied, which spares torch's import
        nodes: _OtherNodes | None = None,  # that also run ranks of large launches
    ) -> None:
        self._like, self.nodes = like, nodes
        self._added: dict[str, str] = {}
        self.remarks: dict[str, str] = {}  # the first on each GPU, and on files that launches have left
        self.environ, self._threads, self._echo = environ, threads, echo
        self.modules, self.redirection = tuple(preload), redirection
        self._zygote: ZygoteProcess | None = None
        self._preloaded: PreloadedZygotes | None = None  # copies of the zygote
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._machines: dict[tuple[bool | str | None, ...], TorchMachine] = {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def having(self, variables: Variables) -> Launcher:
        """Adds environment variables for later ranks; returns this launcher."""
        self._added = dict(variables)
        return self

    @property
    def pid(self) -> int | None:
        """Returns the process id of the fork server, the parent of ranks; None while there is no fork server."""
        zygote = self._zygote  # read once: another thread may drop it
        return None if zygote is None else zygote.pid

    @property
    def parents(self) -> tuple[int | None, ...]:
        """Returns the process ids of the fork server and of its copies, which are the parents of ranks."""
        copies = () if self._preloaded is None else self._preloaded.all
        return (self.pid, *(zygote.pid for zygote in copies))

    def start(self) -> None:
        """Starts the fork server, which imports torch while pytest collects."""
        # A copy costs next to nothing when its original is ready, so only originals are started early.
        original = self if self._like is None else self._like
        with original.idle_zygote():
            pass

    @contextlib.contextmanager
    def idle_zygote(self) -> Iterator[ZygoteProcess | None]:
        """Yields the fork server, which no launch can use during this context, or None if a launch is running now."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self._started()
        finally:
            self._lock.release()

    def wait(self) -> None:
        """Waits until torch is imported and ranks can be forked at once."""
        with self._lock:
            self._ready()

    def preload(self, wanted: Wanted, judged: Judged, like: Launcher | None = None) -> None:
        """Imports the ``wanted`` modules in copies of the fork server, from which later ranks are then forked.

        ``judged``: modules that each rank has to import itself. ``like``: a launcher whose fork servers can be copied.
        Raises SettingError if a module that the user named cannot be imported before ranks are forked.
        """
        with self._lock:
            zygote = self._ready()
            environ, found = self._of_ranks(zygote), self._preloaded
            if found is not None and found.serve(wanted) and found.fits(environ):
                return
            self._drop_preloaded()
            if like is not None:
                self._preloaded = like.duplicate_preloaded()
            elif wanted.modules:
                request = Preload(environ=environ, path=self._search_path(), directory=environment.current_folder())
                self._preloaded = preloaded(zygote, request, wanted, judged)

    def duplicate_preloaded(self) -> PreloadedZygotes | None:
        """Returns copies of the preloaded fork servers, for another launcher, or None if nothing is preloaded."""
        with self._lock:
            return None if self._preloaded is None else self._preloaded.duplicate()

    def has_preloaded(self, wanted: Wanted) -> bool:
        """Returns whether copies of the fork server have imported the modules in ``wanted``."""
        found = self._preloaded  # read once: another thread may drop it
        return found is not None and found.serve(wanted)

    def machine(self, *, gpus: bool = True) -> TorchMachine:
        """Returns the devices and backends that torch finds on this machine, without GPUs if ``gpus`` is False."""
        if self._like is not None:
            return self._like.machine(gpus=gpus)
        environ = self._variables
        key = (gpus, *map(environ.get, environment.VISIBLE))
        if key not in self._machines:

            def ask(shown: Gpus, processes: int) -> tuple[TorchMachine, ...]:
                alone: dict[str, Any] = {"device": "cpu", "gpus": shown, "group": None, "mode": None}
                call = Call(probe, (gpus,))
                return self._launch(self._job(call, _PROBE_SECONDS, (processes,), probes=gpus, **alone)).values

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
        turns: TurnSlot | None = None,
        bind: bool = False,
        projects: Iterable[str] = (),
    ) -> LaunchResult[T]:
        """Calls ``function(ctx, *args)`` on every rank of a fresh process group; ``ctx`` is a ``RankContext``.

        The function may be a closure or a lambda: objects that it refers to are sent to the ranks. ``timeout`` is for
        the whole launch, in seconds; the first import of torch does not count. ``mode`` becomes ``ctx.mode``.
        ``preload`` names modules to import before ranks are forked. With ``own_group`` the function makes the group.
        With ``turns`` several launches exist at once, and run one after the other. With ``bind`` no two ranks share a
        core. The launch gives ranks copies of the files in the folders ``projects``.

        Raises:
            RankFailed: a rank raised, exited or was killed; the error starts with the first rank to fail.
            RanksTimedOut: not all ranks had finished within ``timeout``; the message says which lines they had reached.
            RankSkipped: a rank called ``pytest.skip``.
            PayloadError: the function or a result cannot be sent, or a result cannot be read in time.
            SettingError: the timeout is no number of seconds, or NCCL was chosen for the CPU.
            LaunchError: this machine cannot start such ranks.
        """
        gpus = Gpus()
        if not 0 < timeout <= MAX_TIMEOUT:
            raise SettingError(f"timeout={timeout!r}: expected a number of seconds above 0, at most {MAX_TIMEOUT:.0f}")
        known = device == "cpu" and backend == "gloo"  # every torch that ranks can use has gloo
        machine = None if known else self.machine(gpus=device != "cpu")
        counts = self.counts(world_size, device, machine)
        if machine is not None:
            placed = place(device, backend, counts[0], machine)
            device, backend = placed.device, placed.backend
            gpus = machine.gpus if device == "cuda" else gpus
        ranks = {"device": device, "gpus": gpus, "group": backend, "own_group": own_group, "bind": bind}
        waits = {"interleaved": turns is not None, "mode": mode}
        finds = {"preload": tuple(preload), "projects": tuple(projects)}
        return self._launch(self._job(Call(function, args), timeout, counts, **ranks, **waits, **finds), counts, turns)

    def abort(self) -> None:
        """Kills the fork server; a launch that another thread is running raises LaunchError."""
        zygote, preloaded = self._zygote, self._preloaded
        for one in (() if preloaded is None else preloaded.all) + (() if zygote is None else (zygote,)):
            one.kill()

    def close(self) -> None:
        """Ends the fork server and all its descendants; the next launch starts a new fork server."""
        with self._lock:
            self._drop()

    @property
    def _variables(self) -> Mapping[str, str]:
        """Returns the environment variables of ranks, without variables of a single launch such as RANK."""
        environ = os.environ if self.environ is None else self.environ
        if self._threads is not None:
            others = {name: value for name, value in environ.items() if name not in environment.THREADS}
            environ = {**others, **self._threads}
        return {**environ, **self._added} if self._added else environ

    def counts(self, world_size: int, device: str, machine: TorchMachine | None) -> tuple[int, ...]:
        """Returns each node's number of ranks, this node first; raises RankSkipped if these cannot be equal."""
        if self.nodes is None or world_size == 1:
            return (world_size,)
        gpus = len(machine.gpus.names) if machine is not None and device != "cpu" else 0
        return self.nodes.counts(world_size, gpus)

    def _job(self, call: Call, timeout: float, counts: tuple[int, ...], **of_job: Any) -> Job:
        return Job(
            call=payload.dump_call(call),
            timeout=timeout,
            world_size=sum(counts),
            local_world_size=counts[0],
            nodes=len(counts),
            interface=self.nodes.interface if self.nodes is not None and len(counts) > 1 else "",
            path=self._search_path(),
            directory=environment.current_folder(),
            **of_job,
        )

    def _launch(
        self, job: Job, counts: tuple[int, ...] = (1,), turns: TurnSlot | None = None, *, again: bool = True
    ) -> LaunchResult[Any]:
        try:
            with self.ranks(job, self._echo, turns) as here:
                nodes = self.nodes if len(counts) > 1 else None
                elsewhere = () if nodes is None else nodes.ranks(counts, self._variables, self._echo)
                ends, seconds = run_ranks(here, elsewhere)
        except ZygoteEnded as error:
            if not (again and error.unused):
                raise
            return self._launch(job, counts, turns, again=False)  # it ended between launches, perhaps out of memory
        for report in (end.report for end in ends if isinstance(end.report, Finished) and end.report.remark):
            self.remarks.setdefault(report.remark.partition(":")[0], report.remark)
        values = payload.values_of(ends, job.timeout - seconds)
        return LaunchResult(values, tuple(end.output for end in ends), seconds, getattr(ends[0].report, "imports", ()))

    @contextlib.contextmanager
    def ranks(self, job: Job, echo: Echo | None, turns: TurnSlot | None = None) -> Iterator[RankProcesses]:
        """Yields the processes of a job's ranks on this machine, before the fork of the ranks.

        Raises LaunchError if this machine cannot start the ranks. Other launches wait until this context ends.
        """
        with self._lock:
            zygote = self._ready()
            here = job.directory if Path(job.directory).is_dir() else environment.current_folder()
            job = replace(job, environ=self._of_ranks(zygote, job.interface), directory=here)
            zygotes, found = [zygote] * job.local_world_size, self._preloaded
            if found is not None and found.fits(job.environ):
                zygotes = found.of(job.local_world_size)
            if job.device != "cpu" and zygotes[0].remark:
                self.remarks["forked"] = zygotes[0].remark
            files: contextlib.AbstractContextManager[Job] = contextlib.nullcontext(job)
            if job.projects and job.nodes == 1:  # ranks of several nodes have the project's, which they may share
                from pytest_ddpperf.launch.own_files import own_files

                files = own_files(job, self.redirection, zygote.mark, self.remarks)
            sweep = partial(self._sweep, zygotes, end_seconds(job) + 2.0)
            with enough_files(len(zygotes)), files as job, RankProcesses(zygotes, job, echo, sweep, turns) as ranks:
                yield ranks

    def _of_ranks(self, zygote: ZygoteProcess, interface: str = "") -> dict[str, str]:
        """Returns the environment variables of ranks; ``interface``: the network interface between nodes."""
        environ = environment.inherited(self._variables, zygote.pinned, interface)
        return environ if self.redirection is None else self.redirection.environ(environ)

    def _search_path(self) -> tuple[str, ...]:
        path = environment.search_path()
        return path if self.redirection is None else self.redirection.search_path(path)

    def _started(self) -> ZygoteProcess:
        require_linux()
        zygote, environ = self._zygote, self._variables
        if zygote and not (self._owner == os.getpid() and zygote.usable and zygote.imports_as(environ)):
            self._drop()
        if self._zygote is None:
            self._owner = os.getpid()
            preload = (*_PRELOADED, *({_REWRITER} & sys.modules.keys()), *self.modules)
            lent = contextlib.nullcontext() if self._like is None else self._like.idle_zygote()
            with lent as original:
                self._zygote = ZygoteProcess(environ, preload, self.redirection, original)
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
        """Ends all processes of the launch, or even the fork servers if this fails or is interrupted."""
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
        if self.nodes is not None and self._owner == os.getpid():  # a forked copy shares the connections
            self.nodes.close()
        self._drop_preloaded()
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return
        atexit.unregister(self.close)
        (zygote.close if self._owner == os.getpid() else zygote.forget)()
