"""Whoever reaches torchrun's store reads the key of the run, and still runs no code in the controller."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from pytest_ddpperf.launch import link as links
from pytest_ddpperf.launch.link import ForeignPeer, Link, LinkEnded, connect
from pytest_ddpperf.launch.nodes.meeting import Card, Hello
from tests.run.session.test_under_launcher import SECONDS, started

pytestmark = [
    pytest.mark.slow,  # two processes import torch
    pytest.mark.skipif(not hasattr(TCPStore, "list_keys"), reason="this torch lists no keys of a store"),
]

T = TypeVar("T")

WAITS = """
import os, pathlib, time

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
"""
SECOND_WAITS = f"{WAITS}\nif 'WAITS' in os.environ and os.environ['RANK'] == '1': wait_for('attacked')\n"
TEST = f"{WAITS}\ndef test_met(ddpperf_group):\n    pathlib.Path('met').touch()\n    wait_for('over')\n"


class Evil:
    """An object whose loading makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


def served() -> Any:
    """A store as torchrun's agent of the first node serves it."""
    return TCPStore("127.0.0.1", 0, is_master=True)


def variables(rank: int, port: int, nodes: int) -> dict[str, str]:
    """Those of a task that torchrun starts on a node of its own."""
    sizes = {"RANK": rank, "WORLD_SIZE": nodes, "GROUP_RANK": rank, "GROUP_WORLD_SIZE": nodes}
    local = {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "TORCHELASTIC_RUN_ID": "shared", "MASTER_PORT": port}
    text = {name: str(number) for name, number in (sizes | local).items()}
    own = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
    return {**text, **own}


def cards(port: int) -> list[Card]:
    """What a foreign client of the store finds among its keys."""
    store = TCPStore("127.0.0.1", port)
    named = [key for key in map(os.fsdecode, store.list_keys()) if "pytest-ddpperf" in key]
    return [Card.loads(store.get(key).decode()) for key in named if not key.endswith("/read")]


def first_message_is_a_pickle(card: Card, evil: Evil) -> None:
    """Sends a pickle, with the right code of the key, in place of the JSON that the controller expects."""
    connected = socket.create_connection((card.host, card.port), 5)
    send(Link(connected, links._greeted(connected, card.key, time.monotonic() + 5, serving=False)), evil)


def send(link: Link, evil: Evil) -> None:
    """Sends a pickle, and waits until the controller ends the connection, which it may have done before."""
    with contextlib.closing(link), pytest.raises(LinkEnded):  # noqa: PT012  either of them
        link.send(evil)
        while link.receive(SECONDS) is not None:
            pass


def when(there: Callable[[], T], tasks: Iterable[subprocess.Popen[bytes]]) -> T:
    """What is there as soon as it is true."""
    deadline = time.monotonic() + SECONDS
    while not (found := there()) and time.monotonic() < deadline:
        assert all(task.poll() is None for task in tasks)
        time.sleep(0.01)
    return found


@pytest.fixture
def evil(tmp_path: Path) -> Evil:
    """A pickle that would be noticed if it were loaded."""
    tried = Evil(tmp_path / "tried")
    pickle.loads(pickle.dumps(tried))
    assert tried.file.exists()
    return Evil(tmp_path / "owned")


def test_a_foreign_process_that_is_no_task_harms_no_run_before_all_have_met_or_after(
    tmp_path: Path, evil: Evil
) -> None:
    store = served()
    (tmp_path / "conftest.py").write_text(SECOND_WAITS)
    (tmp_path / "test_it.py").write_text(TEST)

    def of_task(rank: int) -> dict[str, str]:
        return {**variables(rank, store.port, 2), "WAITS": ""}

    with started(tmp_path, lambda _: [], of_task) as tasks, socket.create_server(("127.0.0.1", 0)) as local:
        (card,) = when(lambda: cards(store.port), tasks)
        address = card.host, card.port
        first_message_is_a_pickle(card, evil)
        for hello in ({}, {"launcher": [1, 0]}, {"store": local.getsockname()[1]}):
            with pytest.raises(ForeignPeer):
                connect(address, card.key, hello)
        send(connect(address, card.key, {"looks": True}), evil)
        (tmp_path / "attacked").touch()
        assert when((tmp_path / "met").exists, tasks)
        assert cards(store.port) == [], "the last node has deleted it"
        with pytest.raises(ForeignPeer):
            connect(address, card.key, {"looks": True})
        (tmp_path / "over").touch()
        assert [task.wait(SECONDS) for task in tasks] == [0, 0]
    assert "1 passed" in (tmp_path / "0.out").read_text()
    assert not evil.file.exists()


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (3, "so did one at 127.0.0.1: a foreign process has the key of this run; name a folder that only you can read"),
        (2, "on the node of rank 0, but none on foreign (rank 1 of the launcher); make them the same on all nodes"),
    ],
    ids=["a task that comes, too", "the last task"],
)
def test_a_foreign_process_that_claims_to_be_a_task_ends_the_run_and_is_named(
    tmp_path: Path, evil: Evil, nodes: int, told: str
) -> None:
    """The third of three tasks never comes. In place of the last one, who knows the test files could run code."""
    store = served()
    (tmp_path / "conftest.py").write_text(SECOND_WAITS)
    (tmp_path / "test_it.py").write_text(TEST)

    def of_task(rank: int) -> dict[str, str]:
        return {**variables(rank, store.port, nodes), **({"WAITS": ""} if nodes == 2 else {})}

    with started(tmp_path, lambda _: [], of_task) as tasks:
        (card,) = when(lambda: cards(store.port), tasks)
        claimed = Hello(rank=1, host="foreign", machine="foreign", cores=frozenset())
        send(connect((card.host, card.port), card.key, {"task": claimed.plain()}), evil)
        assert tasks[0].wait(SECONDS) == 4
    assert told in (tmp_path / "0.err").read_text()
    assert not evil.file.exists()
