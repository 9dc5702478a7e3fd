"""A rank's process, from the fork to its end."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import os
import pickle
import random
import signal
import socket
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_ddpperf.launch import environment, payload, processes
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.exceptions import failed_report
from pytest_ddpperf.launch.messages import Call, Finished, Job
from pytest_ddpperf.launch.streams import Channel

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.launch.messages import RankReport, Stage

_REPORT, _STACKS, _JOB, _LISTENING = 3, 4, 5, 6
_TARGETS = (_REPORT, 1, 2, _STACKS, _JOB, _LISTENING)  # in the order of messages.Fork
_GROUP_MARGIN = 60.0  # seconds that torch's deadline lies behind the controller's, which has the better report
SEED = 0


def live(rank: int, descriptors: tuple[int, ...], zygote: int) -> NoReturn:
    """Do the job, report, wait until all ranks are done, and end the process."""
    status = 1
    try:
        _detach(descriptors, zygote)
        job: Job = pickle.loads(_content(_JOB))
        channel = Channel(socket.socket(fileno=_REPORT))
        report = _report(job, rank)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        channel.send(report)
        # A rank that leaves early breaks its peers' connections, and their errors hide the first failure.
        channel.wait_for_dismissal()
        if isinstance(report, Finished):
            _leave_group()
            status = 0
    except BaseException:  # noqa: BLE001  no report can carry it; the rank's stderr is shown with its exit
        traceback.print_exc()
    finally:
        # Not sys.exit: threads and exit handlers of the user's libraries may hang, and the report is sent.
        os._exit(status)


def _detach(descriptors: tuple[int, ...], zygote: int) -> None:
    """Replace the zygote's session, descriptors and signal handlers by the rank's own."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    processes.die_with_parent(signal.SIGKILL, zygote)
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel shall kill a rank and not the test session.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for source, target in zip(moved, _TARGETS, strict=False):
        os.dup2(source, target, inheritable=target <= 2)  # noqa: PLR2004  0, 1, 2: the standard streams
    kept = {0, *_TARGETS[: len(descriptors)]}
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
                os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  lives as long as the process
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(  # noqa: SIM115  the same
            descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=_STACKS, all_threads=True)


def _content(descriptor: int) -> bytes:
    """Read a file through its own offsets, because other ranks read through the same descriptor."""
    size = os.fstat(descriptor).st_size
    content = bytearray()
    while len(content) < size:
        content += os.pread(descriptor, size - len(content), len(content))
    os.close(descriptor)
    return bytes(content)


def _report(job: Job, rank: int) -> RankReport:
    stage: Stage = "join"
    try:
        context = _join(job, rank)
        stage = "load"
        call: Call = pickle.loads(job.call)
        seed_as_at_the_start()
        gc.collect()
        stage = "run"
        value = call.function(context, *call.arguments)
        stage = "send"
        return Finished(payload.dump_result(value, context.rank), time.time_ns())
    except BaseException as error:  # noqa: BLE001  sys.exit and pytest's outcomes are no Exceptions
        return failed_report(error, stage)


def _join(job: Job, rank: int) -> RankContext:
    """Take over the controller's environment, path and folder, and join the process group."""
    import torch

    os.environ.clear()
    os.environ.update(job.environ)
    if job.group is not None:
        os.environ.update(environment.group_variables(rank, job.world_size, job.listening))
    sys.path[:] = job.path
    os.chdir(job.directory)
    torch.set_num_threads(environment.thread_count(os.environ))
    device = torch.device("cpu")
    if job.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if job.group is not None:
        _join_group(job, job.group, rank, device if job.group == "nccl" else None)
    return RankContext(rank, job.world_size, rank, job.world_size, device, job.group or "none", job.mode)


def _join_group(job: Job, backend: str, rank: int, device: torch.device | None) -> None:
    import torch.distributed as dist

    timeout = timedelta(seconds=job.timeout + _GROUP_MARGIN)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch's stubs lack it in some versions
        "127.0.0.1",
        job.listening,
        job.world_size,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=_LISTENING if rank == 0 else None,
    )
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=job.world_size, timeout=timeout, device_id=device
    )


def seed_as_at_the_start() -> None:
    """Seed all generators alike on every rank."""
    import numpy as np
    import torch

    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  users' code draws from the global generator
    torch.manual_seed(SEED)


def _leave_group() -> None:
    """End NCCL's communicators; gloo's end with the process, and ending them here costs 30 ms."""
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() != "gloo":
        dist.destroy_process_group()
