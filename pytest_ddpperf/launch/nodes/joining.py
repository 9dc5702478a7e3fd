"""How a task joins a run: as the controller, which the others meet, or as one that follows it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError, RankFailed, SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.instruments.nvml import uuids
from pytest_ddpperf.launch.context import VISIBLE
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.nodes.agent import GONE, Agent
from pytest_ddpperf.launch.nodes.cluster import Cluster, use_cores
from pytest_ddpperf.launch.nodes.link import ForeignPeer, Link, LinkEnded, connect
from pytest_ddpperf.launch.nodes.meeting import (
    MEETING_SECONDS,
    STORE_VARIABLES,
    Card,
    FileMeeting,
    exchange,
    own_folder,
    wait_for,
)
from pytest_ddpperf.launch.nodes.messages import Close, Hello, Role
from pytest_ddpperf.launch.nodes.network import LOOPBACK, own_address

if TYPE_CHECKING:
    from pytest_ddpperf.launch.nodes.agent import CheckOut
    from pytest_ddpperf.launch.nodes.tasks import Task

_RETRY_SECONDS = 0.2
_LAST_SECONDS = 10.0  # in which the controller's process ends when it has ended the run
_USAGE_ERROR = 4  # the status of pytest


def hello(task: Task, root: Path, files: Iterable[Path]) -> Hello:
    """Returns what this task says of itself; ``files`` are those of its tests."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{os.path.relpath(path, root)}\n".encode() + path.read_bytes())
    facts = machine_facts()
    driver = Path("/proc/driver/nvidia/version")
    return Hello(
        rank=task.rank,
        host=socket.gethostname(),
        machine=_machine(),
        cores=frozenset(os.sched_getaffinity(0)),
        gpus=(*uuids(), *(f"{name}={os.environ[name]}" for name in VISIBLE if name in os.environ)),
        needed={
            "torch": _version("torch"),
            "pytest-ddpperf": _version("pytest-ddpperf"),
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


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _machine() -> str:
    """What tells a node from others: the start of its kernel, and its network, for containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


def control(task: Task, own: Hello, folder: Path | None) -> Cluster:
    """Meet the other tasks as their controller.

    Raises:
        SettingError: the tasks cannot meet so, or lack what this one has.
        LaunchError: a task has not come in time.
    """
    master = os.environ.get("MASTER_ADDR", "") if task.launcher == "torchrun" else ""
    host = LOOPBACK if task.one_node else own_address(master, os.environ)
    cluster = Cluster(host, own, task.size)
    try:
        meetings = [FileMeeting(task, each) for each in _folders(task, folder)]
        for meeting in meetings:
            meeting.publish(cluster.card)
        try:
            if _by_store(task, folder):
                _exchanged(task, cluster.card.dumps())
            cluster.gather()
        finally:
            for meeting in meetings:
                meeting.end()
    except BaseException:
        cluster.close(_USAGE_ERROR)
        raise
    return cluster


def follow(task: Task, own: Hello, folder: Path | None, check_out: CheckOut) -> int:
    """Meet the controller, do what it asks for until it ends, and return the status that this task ends with.

    ``check_out`` makes the files of another revision where this node lacks them.

    Raises:
        SettingError: the tasks cannot meet so.
        LaunchError: the controller has not come in time.
    """
    link, card, published = _met(task, own, folder)
    try:
        role = link.receive()  # all tasks are met first
        if isinstance(role, Close):
            return role.status
        if not isinstance(role, Role):
            return GONE
        for meeting in published:  # all tasks of this node have found it
            meeting.end()
        use_cores(role.cores)
        if role.node is not None:
            return Agent(link, replace(card, key=role.key), role.node, check_out).serve()
        message = link.receive()
        return message.status if isinstance(message, Close) else GONE
    except LinkEnded:
        return GONE
    finally:
        with contextlib.suppress(LinkEnded):
            link.receive(_LAST_SECONDS)  # its end: launchers take the first task that ends for the cause
        link.close()


def _met(task: Task, own: Hello, folder: Path | None) -> tuple[Link, Card, list[FileMeeting]]:
    """The link to the controller, its card, and where this task has published it for others of its node.

    A card that an earlier run has left leads nowhere, and is read again.
    """
    published: list[FileMeeting] = []
    (meeting, *_) = (FileMeeting(task, each) for each in _folders(task, folder))
    deadline = time.monotonic() + MEETING_SECONDS
    find: Callable[[], Card | None] = meeting.find
    if _by_store(task, folder) and task.local_rank == 0:
        card = Card.loads(_exchanged(task, None))
        meeting.publish(card)
        published = [meeting]
        find = lambda: card  # noqa: E731
    while True:
        card = wait_for(find, deadline - time.monotonic())
        try:
            link = connect((card.host, card.port), card.key, {"task": own.plain()})
        except (OSError, ForeignPeer) as error:
            if time.monotonic() > deadline:
                reason = f"the controller at {card.host} port {card.port} does not answer: {error}"
                raise LaunchError(f"{reason}; check that the nodes reach each other there") from None
            time.sleep(_RETRY_SECONDS)
        else:
            return link, card, published


def _folders(task: Task, folder: Path | None) -> list[Path]:
    if folder is not None:
        return [folder]
    if not task.one_node and task.launcher != "torchrun":
        raise SettingError(
            f"{task.launcher} started {task.size} processes, which may be on several nodes and cannot find each other: "
            "name a folder that all nodes share: --ddpperf-rendezvous-dir=DIR"
        )
    return [own_folder()]


def _by_store(task: Task, folder: Path | None) -> bool:
    return folder is None and not task.one_node


def _exchanged(task: Task, text: str | None) -> str:
    variables = {name: os.environ[name] for name in STORE_VARIABLES if name in os.environ}
    try:
        with Launcher() as launcher:
            seconds = MEETING_SECONDS
            args = (task, variables, text, seconds)
            alone = {"world_size": 1, "device": "cpu", "backend": "gloo"}
            return launcher.run(exchange, *args, timeout=seconds + 10, **alone).rank(0)  # type: ignore[arg-type]
    except RankFailed as error:
        raise LaunchError(
            f"torchrun's store at {variables.get('MASTER_ADDR')} port {variables.get('MASTER_PORT')} does not lead to "
            f"the other nodes; name a folder that all nodes share: --ddpperf-rendezvous-dir=DIR\n{error}"
        ) from None
