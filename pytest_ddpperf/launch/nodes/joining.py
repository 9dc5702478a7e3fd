"""Makes a task of torchrun, srun or mpirun the controller, or connects the task to the controller."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_ddpperf.errors import LaunchError, RankFailed, SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.instruments.nvml import uuids
from pytest_ddpperf.launch import context, environment
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.link import Close, ForeignPeer, Link, LinkEnded, connect
from pytest_ddpperf.launch.nodes import meeting, network
from pytest_ddpperf.launch.nodes.agent import GONE, Agent, CheckOut
from pytest_ddpperf.launch.nodes.cluster import Cluster, use_cores
from pytest_ddpperf.launch.nodes.tasks import Task

_RETRY_SECONDS = 0.05
_LAST_SECONDS = 10.0  # for the end of the controller's process after the run
_USAGE_ERROR = 4  # the status of pytest


def hello(task: Task, root: Path, files: Iterable[Path]) -> meeting.Hello:
    """Returns the facts that this process sends to the controller, among them a digest of its test files."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{os.path.relpath(path, root)}\n".encode() + path.read_bytes())
    facts = machine_facts()
    driver = Path("/proc/driver/nvidia/version")
    start_of_kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return meeting.Hello(
        rank=task.rank,
        host=socket.gethostname(),
        machine=f"{start_of_kernel} {Path('/proc/self/ns/net').readlink()}",  # each container has its own network
        cores=frozenset(os.sched_getaffinity(0)),
        gpus=(*uuids(), *(f"{name}={os.environ[name]}" for name in environment.VISIBLE if name in os.environ)),
        needed={
            **{name: context.versions([name]).get(name, "not installed") for name in ("torch", "pytest-ddpperf")},
            "the root folder": str(root),
            "the digest of the test files": digest.hexdigest()[:12],
        },
        facts={
            "Python": platform.python_version(),
            "the CPU": facts.cpu_model,
            "the number of cores": str(facts.cores),
            "the kernel": platform.release(),
            "the GPU driver": driver.read_text().splitlines()[0] if driver.exists() else "none",
        },
    )


def control(task: Task, own: meeting.Hello, folder: Path | None) -> Cluster:
    """Waits, as the controller, for the other tasks, and returns the nodes of the run.

    ``own`` describes this task. ``folder`` is the folder that all tasks share, or None.

    Raises:
        SettingError: the tasks share no usable folder, or have other versions or test files than this task.
        LaunchError: a task has not come in time.
    """
    master = os.environ.get("MASTER_ADDR", "") if task.launcher == "torchrun" else ""
    host = network.LOOPBACK if task.one_node else network.own_address(master, os.environ)
    file = meeting.FileMeeting(task, _folder(task, folder))
    cluster = Cluster(host, own, task.size)
    try:
        file.publish(cluster.card)
        if _by_store(task, folder):
            _exchanged(task, cluster.card.dumps())
        cluster.gather()
    except BaseException:
        cluster.close(_USAGE_ERROR)
        raise
    finally:
        file.end()
    return cluster


def follow(task: Task, own: meeting.Hello, folder: Path | None, check_out: CheckOut) -> int:
    """Connects to the controller, serves it, and returns the exit status of this process.

    ``own`` describes this task. ``folder`` is the folder that all tasks share, or None. ``check_out`` checks out
    another revision if this node lacks its files.

    Raises:
        SettingError: the tasks share no usable folder.
        LaunchError: the controller has not come in time.
    """
    file = meeting.FileMeeting(task, _folder(task, folder))
    if _by_store(task, folder) and task.local_rank == 0:
        file.publish(meeting.Card.loads(_exchanged(task, None)))  # for the other tasks of this node
    link, card = _met(file, own)
    try:
        role = link.receive()  # the controller first waits for all tasks
        if isinstance(role, Close):
            return role.status
        if not isinstance(role, meeting.Role):
            return GONE
        file.end()  # all tasks of this node have read the card
        use_cores(role.cores)
        if role.node is not None:
            return Agent(link, replace(card, key=role.key), role.node, check_out).serve()
        message = link.receive()
        return message.status if isinstance(message, Close) else GONE
    except LinkEnded:
        return GONE
    finally:
        with contextlib.suppress(LinkEnded):
            link.receive(_LAST_SECONDS)  # until the link ends: launchers take the first task that ends for the cause
        link.close()


def _met(file: meeting.FileMeeting, own: meeting.Hello) -> tuple[Link, meeting.Card]:
    """Returns the link to the controller, and the controller's card; raises LaunchError if the controller is late."""
    deadline = time.monotonic() + meeting.MEETING_SECONDS
    why = "did not join: its tests may have failed to import, or none of them uses a fixture of the plugin"
    while time.monotonic() < deadline:
        card = file.find()
        if card is not None:
            try:
                return connect((card.host, card.port), card.key, {"task": own.plain()}), card
            except (OSError, ForeignPeer) as error:
                there = f"{card.host} port {card.port}"
                why = f"does not answer at {there}: {error}; check that the nodes can connect to this port"
        time.sleep(_RETRY_SECONDS)
    why = f"{why} (waited {meeting.MEETING_SECONDS:.0f} s)"
    raise late(LaunchError(f"rank 0 of the launcher, which controls the run, {why}"))


def _folder(task: Task, folder: Path | None) -> Path:
    if folder is None and not task.one_node and task.launcher != "torchrun":
        raise SettingError(
            f"{task.launcher} started {task.size} processes, perhaps on several nodes, which need a shared folder to "
            "find each other: name it with --ddpperf-rendezvous-dir=DIR"
        )
    return meeting.own_folder() if folder is None else folder


def _by_store(task: Task, folder: Path | None) -> bool:
    return folder is None and not task.one_node


def _exchanged(task: Task, text: str | None) -> str:
    variables = {name: os.environ[name] for name in meeting.STORE_VARIABLES if name in os.environ}
    try:
        with Launcher() as launcher:
            args = (task, variables, text, meeting.MEETING_SECONDS)
            alone = {"world_size": 1, "device": "cpu", "backend": "gloo", "timeout": meeting.MEETING_SECONDS + 10}
            return launcher.run(meeting.exchange, *args, **alone).rank(0)  # type: ignore[arg-type]
    except RankFailed as error:
        raise LaunchError(
            f"nodes could not exchange addresses by torchrun's store at {variables.get('MASTER_ADDR')}, port "
            f"{variables.get('MASTER_PORT')}; use a folder that all nodes share: --ddpperf-rendezvous-dir=DIR\n{error}"
        ) from None
