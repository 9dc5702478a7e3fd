"""A link proves both ends, and loads nothing that the other end has not signed."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import link as links
from pytest_ddpperf.launch.link import ForeignPeer, Link, LinkEnded, NoAnswer, accept, connect, welcome

KEY, SAID = bytes(range(32)), {"task": {"rank": 1, "cores": [0, 3]}}


def accepted(listening: socket.socket, key: bytes = KEY) -> list[Any]:
    """The link to who connects next and its hello, or what went wrong."""
    found: list[Any] = []

    def take() -> None:
        try:
            link, said = accept(listening.accept()[0], key)
            welcome(link)
            found.extend((link, said))
        except ForeignPeer as error:
            found.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    found.insert(0, thread)
    return found


@contextlib.contextmanager
def refusing(listening: socket.socket, key: bytes = KEY) -> Iterator[threading.Thread]:
    """A process that takes the connection of a stranger, and refuses it."""
    taken = accepted(listening, key)
    yield taken[0]
    taken[0].join()
    assert isinstance(taken[1], ForeignPeer)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def pair(listening: socket.socket) -> Iterator[tuple[Link, Link]]:
    taken = accepted(listening)
    ours = connect(listening.getsockname(), KEY, SAID)
    taken[0].join()
    yield ours, taken[1]
    ours.close()
    taken[1].close()


def test_messages_of_any_size_arrive_in_order_or_not_in_time(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    sent = ["first", {"second": 2}, os.urandom(3 << 20)]
    thread = threading.Thread(target=lambda: [*map(ours.send, sent)])
    thread.start()
    assert [theirs.receive() for _ in sent] == sent
    thread.join()
    theirs.send("answer")
    assert ours.receive(5) == "answer"
    assert ours.receive(0.01) is None
    assert ours.received() == []


def test_the_time_to_send_is_for_a_part_of_a_message(pair: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads slowly takes some of it each time."""
    sent: list[int] = []

    def send(connected: socket.socket, data: memoryview) -> int:
        sent.append(connected.send(data[:1000]))
        return sent[-1]

    monkeypatch.setattr("pytest_ddpperf.launch.streams._send", send)
    pair[0].send(bytes(5000))
    assert len(sent) > 5
    assert pair[1].receive(5) == bytes(5000)


def test_the_end_of_a_link_comes_after_its_last_message(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    theirs.name = "node 1 (b)"
    ours.send("last")
    ours.close()
    assert theirs.receive(5) == "last"
    with pytest.raises(LinkEnded, match=r"^node 1 \(b\) is gone"):
        theirs.receive(5)


def test_sending_to_a_peer_that_is_gone_fails(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(LinkEnded):  # noqa: PT012  the kernel takes the first ones
        for _ in range(100):
            ours.send(bytes(1 << 16))


@pytest.mark.parametrize("wrong", ["client", "server"])
def test_a_peer_with_another_key_is_refused_by_both_ends(listening: socket.socket, wrong: str) -> None:
    with refusing(listening, bytes(32) if wrong == "server" else KEY), pytest.raises(ForeignPeer):
        connect(listening.getsockname(), bytes(32) if wrong == "client" else KEY, SAID)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n", bytes(1000)])
def test_a_peer_that_sends_another_greeting_is_refused(listening: socket.socket, said: bytes) -> None:
    with refusing(listening) as taken, socket.create_connection(listening.getsockname()) as stranger:
        with contextlib.suppress(OSError):  # it may have been refused by now
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
        taken.join()


def test_a_peer_that_sends_byte_by_byte_is_given_up(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_HANDSHAKE_SECONDS", 0.2)
    with refusing(listening) as taken, socket.create_connection(listening.getsockname()) as stranger:
        while taken.is_alive():
            with contextlib.suppress(OSError):  # the same
                stranger.sendall(b"p")
            taken.join(0.02)


class Planted:
    """An object whose loading leaves a mark."""

    def __reduce__(self) -> Any:
        return os.putenv, ("DDPPERF_PLANTED", "1")

    def encode(self) -> bytes:
        return pickle.dumps(self)


def raw(pair: tuple[Link, Link]) -> socket.socket:
    """The socket of our end, as one who has taken the connection over would write to it."""
    return pair[0].hand_over()[0]


def test_a_pickle_without_the_mac_is_not_loaded(pair: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(pickle, "loads", loaded.append)
    body = pickle.dumps(Planted())
    raw(pair).sendall(b"ddpperf\n" + struct.pack("!Q32s", 32 + len(body), bytes(32)) + body)
    with pytest.raises(LinkEnded, match="not a message of this run"):
        pair[1].receive(5)
    assert loaded == []


def test_the_greeting_of_a_peer_is_json_and_no_pickle(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has read the key may say anything, and makes no process load a pickle."""
    loaded: list[bytes] = []
    monkeypatch.setattr(pickle, "loads", loaded.append)
    taken = accepted(listening)
    connect(listening.getsockname(), KEY, SAID).close()
    taken[0].join()
    taken[1].close()
    assert taken[2] == SAID
    monkeypatch.setattr(json, "dumps", lambda _: Planted())
    with refusing(listening), pytest.raises(ForeignPeer):
        connect(listening.getsockname(), KEY, SAID)
    assert loaded == []


def test_a_long_first_message_fills_no_memory(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_MAX_FIRST", 1000)
    monkeypatch.setattr(links, "_CHUNK", 100)
    with refusing(listening), pytest.raises(ForeignPeer):
        connect(listening.getsockname(), KEY, {"task": "x" * 100_000})


class Served:
    """What one end of a link serves."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self, number: int, *, twice: bool = False) -> int:
        self.noted += [number] * (1 + twice)
        return len(self.noted)

    def fails(self, error: Exception) -> None:
        raise error


def test_a_question_calls_a_method_of_the_peer_and_waits_for_its_own_answer(pair: tuple[Link, Link]) -> None:
    (ours, theirs), served, heard = pair, Served(), list[object]()
    late, asked = ours.ask(Served.note, 5), ours.ask(Served.note, 6, twice=True)
    with pytest.raises(NoAnswer, match=r"^the controller did not answer within 0 s$"):
        late.answer(0.0)
    theirs.send("unasked")
    for _ in range(2):
        theirs.reply(theirs.receive(5), served)
    assert asked.answer(5, heard.append) == 3
    assert served.noted == [5, 6, 6]
    assert heard[0] == "unasked"
    assert len(heard) == 2, "the answer to the first question, for which nobody waits any more"


@pytest.mark.parametrize(
    ("error", "told"), [(LaunchError("no torch here"), "no torch here"), (ValueError("odd"), "ValueError: odd")]
)
def test_a_method_that_fails_on_a_peer_is_reported_with_the_peer(
    pair: tuple[Link, Link], error: Exception, told: str
) -> None:
    (ours, theirs), served = pair, Served()
    ours.name = "node 1 (b)"
    asked = ours.ask(Served.fails, error)
    theirs.reply(theirs.receive(5), served)
    with pytest.raises(LaunchError, match=rf"^node 1 \(b\): {told}$"):
        asked.answer(5)


def test_a_message_that_is_sent_again_is_refused(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one who has listened on the network."""
    taken = accepted(listening)
    ours = connect(listening.getsockname(), KEY, SAID)
    taken[0].join()
    heard, theirs = bytearray(), taken[1]
    connected, send = ours.hand_over()[0], socket.socket.send

    def tapped(sender: socket.socket, data: bytes) -> int:
        sent = send(sender, data)
        heard.extend(data[:sent] if sender is connected else b"")
        return sent

    monkeypatch.setattr("pytest_ddpperf.launch.streams._send", tapped)
    ours.send("pay")
    assert theirs.receive(5) == "pay"
    connected.sendall(heard)
    with pytest.raises(LinkEnded, match="not a message of this run"):
        theirs.receive(5)
    ours.close()
    theirs.close()


def test_a_peer_whose_machine_is_silent_is_given_up_by_the_kernel(pair: tuple[Link, Link]) -> None:
    connected = raw(pair)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert [connected.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, 1, 4, 20000]
