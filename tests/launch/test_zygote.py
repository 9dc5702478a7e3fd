"""The zygote's loop, without a fork."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import processes
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import Answer, Ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_ddpperf.launch.zygote import Zygote


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, Zygote]]:
    from pytest_ddpperf.launch.zygote import Zygote

    controller, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wakeup, written = socket.socketpair()
    with controller, control, wakeup, written:
        yield controller, written, Zygote(control, (wakeup, written), os.getppid())
    del sys.modules["pytest_ddpperf.launch.zygote"]  # a rank is known by it


def test_a_signal_to_end_that_arrives_in_a_sweep_is_not_lost(
    ends: tuple[socket.socket, socket.socket, Zygote], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, written, zygote = ends
    children = iter([{0}, set()])
    monkeypatch.setattr(processes, "children", lambda: next(children))
    monkeypatch.setattr(processes, "kill", lambda *_, **__: written.send(bytes([signal.SIGTERM])))
    monkeypatch.setattr(type(zygote), "_reap", lambda _: True)
    assert zygote.sweep() == ()
    assert zygote.serve() is None


def test_a_process_that_outlives_its_kill_is_reported_after_a_deadline(
    ends: tuple[socket.socket, socket.socket, Zygote], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, zygote = ends
    monkeypatch.setattr(processes, "children", lambda: {17})
    monkeypatch.setattr(type(zygote), "_reap", lambda _: True)
    assert zygote.sweep(0.0) == (17,)


def test_a_rank_whose_files_the_kernel_dropped_is_refused_with_the_reason(
    ends: tuple[socket.socket, socket.socket, Zygote], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, _, zygote = ends
    first = os.open(os.devnull, os.O_RDONLY)
    received: list[Any] = [(pickle.dumps(Ask(3, "fork", (1,))), [first], socket.MSG_CTRUNC, None), (b"", [], 0, None)]
    monkeypatch.setattr(socket, "recv_fds", lambda *_: received.pop(0))
    controller.send(b"something")
    assert zygote.serve() is None
    reason = "rank 1 could not be forked: the process that forks ranks has too many open files"
    assert pickle.loads(controller.recv(4096)) == Answer(3, None, reason)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


def test_an_error_of_the_fork_server_reaches_its_controller(launcher: Launcher) -> None:
    with Launcher(like=launcher) as copied, copied.idle_zygote() as zygote:
        assert zygote is not None
        zygote.wait_until_ready()
        zygote.control.send(b"no request")
        with pytest.raises(
            LaunchError, match=r"^the process that forks ranks failed, so the ranks were stopped: UnpicklingError: .*$"
        ):
            zygote.events(60)
