"""A rank's process, from the fork to its end."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import os
import pickle
import random
import resource
import signal
import socket
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pytest_ddpperf.instruments.clock import system_time
from pytest_ddpperf.instruments.torch_internals import SEED, tcp_store
from pytest_ddpperf.launch import devices, environment, interleaving, payload, processes, progress, redirection
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.faults import flight_recorder, stacks
from pytest_ddpperf.launch.faults.exceptions import failed_report
from pytest_ddpperf.launch.messages import Call, Finished, Job, RankReport, Stage
from pytest_ddpperf.launch.own_files import replace_links
from pytest_ddpperf.launch.preloading.imports import ImportWatch
from pytest_ddpperf.launch.streams import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


_LEAST_DESCRIPTOR = 512
_GROUP_MARGIN = 60.0  # seconds that torch's deadline lies behind the controller's, which has the better report
_exit, _getpid = os._exit, os.getpid  # users' code may patch the module's


class Descriptors(NamedTuple):
    """A rank's file descriptors except standard streams; numbers are high, as faulty code may write to low numbers."""

    report: int
    stacks: int
    job: int
    progress: int
    listening: int | None = None  # rank 0's
    turns: int | None = None  # rank 0's, if the launch is interleaved


def live(rank: int, descriptors: tuple[int, ...], zygote: int) -> NoReturn:
    """Runs the job on this rank, sends the report, waits until all ranks are done, and ends the process."""
    status = 1
    try:
        for number, descriptor in zip((1, 2), descriptors[1:3], strict=True):  # what fails from here on is shown
            os.dup2(descriptor, number)
        files = _detach(descriptors, zygote)
        channel, process = Channel(socket.socket(fileno=files.report)), _getpid()
        job: Job = pickle.loads(Path(f"/proc/self/fd/{files.job}").read_bytes())  # other ranks read the same file
        os.close(files.job)
        progress.begin(files.progress, rank - job.first_rank)
        interleaving.asking = None if files.turns is None else socket.socket(fileno=files.turns)
        answering = flight_recorder.answer_requests(channel, job.group) if job.group is not None else None
        report = _report(job, rank, files.listening)
        if _getpid() != process:  # a fork that the function made and let return
            _exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        channel.send(report)
        # A rank that leaves early breaks its peers' connections, and their errors hide the first failure.
        if answering is not None:
            answering.join()  # it reads what comes before the dismissal
        with contextlib.suppress(ConnectionResetError):
            while channel.asked():
                pass
        if isinstance(report, Finished):
            # NCCL's communicators end with the process; to destroy them takes seconds, and may hang.
            processes.remove(processes.nccl_files(process) if job.group == "nccl" else set())
            status = 0
    except BaseException:  # noqa: BLE001  no report can carry it; the rank's stderr is shown with its exit
        traceback.print_exc()
    finally:
        # Not sys.exit: threads and exit handlers of the user's libraries may hang, and the report is sent.
        _exit(status)


def _detach(descriptors: tuple[int, ...], zygote: int) -> Descriptors:
    """Starts a session for this rank, closes or renumbers inherited descriptors, and resets signal handlers."""
    signal.set_wakeup_fd(-1)
    for number in processes.HEARD:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    processes.die_with_parent(signal.SIGKILL, zygote)
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel shall kill a rank and not the test session.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    least = _LEAST_DESCRIPTOR if limit == resource.RLIM_INFINITY else min(_LEAST_DESCRIPTOR, limit // 2)
    report, _stdout, _stderr, *others = (fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, least) for file in descriptors)
    files = Descriptors(report, *others)
    kept = {0, 1, 2, *files}
    for descriptor in processes.open_files().keys() - kept:
        with contextlib.suppress(OSError):  # also if the file system reports an error of an earlier write
            os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  lives as long as the process
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(  # noqa: SIM115  the same
            descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(file=2)
    faulthandler.register(stacks.SIGNAL, file=files.stacks, all_threads=True)
    faulthandler.register(stacks.MAIN_SIGNAL, file=files.stacks, all_threads=False)
    return files


def _report(job: Job, rank: int, listening: int | None) -> RankReport:
    stage: Stage = "join"
    try:
        with _modules_kept():
            progress.stage(progress.START)
            context, _store, remark = _join(job, rank, listening)  # rank 0 serves the store while it is referred to
            stage = "load"
            progress.stage(progress.LOAD)
            with ImportWatch() as watch:
                call: Call = pickle.loads(job.call)
                seed_as_at_the_start()
                watch.around = _random_numbers
                gc.collect()
                stage = "run"
                progress.stage(progress.FUNCTION)
                value = call.function(context, *call.arguments)
        stage = "send"
        seen = watch.seen() if rank == 0 else ()
        return Finished(payload.dump_result(value, rank), system_time.time_ns(), seen, remark)
    except BaseException as error:  # noqa: BLE001  sys.exit and pytest's outcomes are no Exceptions
        return failed_report(error, stage)


@contextlib.contextmanager
def _modules_kept() -> Iterator[None]:
    """Restores, at the end of this context, modules removed from ``sys.modules``, which pickling and imports need."""
    modules = {**sys.modules}
    try:
        yield
    finally:
        for name, module in modules.items():
            sys.modules.setdefault(name, module)


def _join(job: Job, rank: int, listening: int | None) -> tuple[RankContext, object, str]:
    """Sets up the job's environment on this rank and joins the group; returns context, store and a warning."""
    import torch

    os.environ.clear()
    os.environ.update(job.environ)
    local, others = rank - job.first_rank, job.local_world_size or job.world_size
    if job.group is not None:
        variables = environment.group_variables(
            rank, job.world_size, job.listening, local=(local, others), node=job.node, nodes=job.nodes
        )
        os.environ.update(variables)
        if job.device != "cuda" and job.world_size > 1:  # else Accelerate and the Trainer join no ranks without a GPU
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
        if job.device != "cuda" and job.own_group:  # a script that finds a GPU computes there
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if job.gpus.instances:  # read when CUDA is initialised, which no process above this one does
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpus.instances[local % len(job.gpus.instances)]
    sys.path[:] = job.path
    redirection.enter(job.files, job.directory)
    if job.folder:
        replace_links(job.folder)
    torch.set_num_threads(environment.thread_count(os.environ))
    if job.bind:
        addresses = [job.gpus.pci[other % len(job.gpus.pci)] if job.gpus.pci else None for other in range(others)]
        os.sched_setaffinity(0, devices.own_cores(addresses, local, os.environ))
    device, remark = torch.device("cpu"), ""
    if job.device == "cuda":
        count = len(job.gpus.names)
        device = torch.device("cuda", 0 if job.gpus.instances else local % count)
        addresses = [job.gpus.pci[other % count] for other in range(others)]
        # Other launches, or ranks that share the GPU and whose function makes the group, may be at work by now.
        check_memory = not job.interleaved and (others <= count or not job.own_group)
        remark = devices.claim_gpu(device, addresses, local, check_memory=check_memory)
    store = None
    if job.group is not None:
        store = _join_group(job, job.group, rank, device if job.group == "nccl" else None, listening)
    return RankContext(rank, job.world_size, local, others, device, job.group or "none", job.mode), store, remark


def _join_group(job: Job, backend: str, rank: int, device: torch.device | None, listening: int | None) -> object:
    import torch.distributed as dist

    timeout = timedelta(seconds=job.timeout + _GROUP_MARGIN)
    store = tcp_store("127.0.0.1", job.listening, job.world_size, timeout, listening, waits=job.own_group)
    if not job.own_group:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=job.world_size, timeout=timeout, device_id=device
        )
    return store


def seed_as_at_the_start() -> None:
    """Seeds all generators equally on every rank."""
    import numpy as np
    import torch

    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  users' code draws from the global generator
    torch.manual_seed(SEED)


def _random_numbers() -> Callable[[], None]:
    """Saves the state of random generators, and returns a function that restores it."""
    import numpy as np
    import torch

    python, numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  the same

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002  the same
        torch.set_rng_state(of_torch)

    return restore
