"""Messages over a socket whose other end may stop anywhere."""

from __future__ import annotations

import socket
import threading

import pytest

from pytest_ddpperf.launch.channel import Channel


@pytest.fixture
def ends() -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_arrive_whole_and_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Channel(ends[0]), Channel(ends[1])
    theirs.send("one")
    theirs.send({"two": 2})
    assert ours.received() == ["one", {"two": 2}]
    assert ours.received() == []
    assert not ours.closed


def test_half_a_message_is_none_and_does_not_block(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Channel(ends[0]), ends[1]
    theirs.sendall((100).to_bytes(8, "big") + b"half")
    assert ours.received() == []
    theirs.close()
    assert ours.received() == []
    assert ours.closed


def test_a_message_larger_than_the_sockets_buffer_is_put_together(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Channel(ends[0]), Channel(ends[1])
    content = bytes(range(256)) * (1 << 14)  # 4 MiB
    sender = threading.Thread(target=theirs.send, args=(content,))
    sender.start()
    messages: list[object] = []
    while not messages:
        messages = ours.received()
    sender.join()
    assert messages == [content]


def test_a_receiver_that_is_gone_is_noticed_and_is_no_error(ends: tuple[socket.socket, socket.socket]) -> None:
    theirs = Channel(ends[1])
    ends[0].close()
    theirs.send("into the void")
    assert theirs.closed


def test_a_dismissal_ends_the_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Channel(ends[0]), Channel(ends[1])
    waiter = threading.Thread(target=theirs.wait_for_dismissal)
    waiter.start()
    ours.dismiss()
    waiter.join(5)
    assert not waiter.is_alive()
