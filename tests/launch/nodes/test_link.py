"""A link proves both ends, and loads nothing that the other end has not signed."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.launch.nodes import link as links
from pytest_ddpperf.launch.nodes.link import ForeignPeer, Link, LinkEnded, accept, connect
from pytest_ddpperf.launch.nodes.messages import Close, Hello, Ping

KEY = bytes(range(32))


def accepted(listening: socket.socket, key: bytes = KEY) -> list[Any]:
    """The link to who connects next, or what went wrong."""
    found: list[Any] = []

    def take() -> None:
        try:
            found.append(accept(listening.accept()[0], key))
        except ForeignPeer as error:
            found.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    found.insert(0, thread)
    return found


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def pair(listening: socket.socket) -> Iterator[tuple[Link, Link]]:
    taken = accepted(listening)
    ours = connect(listening.getsockname(), KEY)
    taken[0].join()
    yield ours, taken[1]
    ours.close()
    taken[1].close()


def test_messages_of_any_size_arrive_in_order(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    sent = ["first", {"second": 2}, os.urandom(3 << 20)]
    thread = threading.Thread(target=lambda: [*map(ours.send, sent)])
    thread.start()
    assert [theirs.receive() for _ in sent] == sent
    thread.join()
    theirs.send("answer")
    assert ours.receive(5) == "answer"


def test_a_large_message_to_who_reads_slowly_arrives(pair: tuple[Link, Link]) -> None:
    """The limit of a send is for some of the message."""
    ours, theirs = pair
    raw(pair).settimeout(0.5)
    sent = os.urandom(24 << 20)
    thread = threading.Thread(target=ours.send, args=(sent,))
    thread.start()
    begun, message = time.monotonic(), None
    while message is None and time.monotonic() - begun < 60:
        time.sleep(0.05)  # as a reader does that has other things to do
        ended = theirs._take()
        assert ended is None
        message = next(iter(theirs._messages(1)), None)
    thread.join()
    assert message == sent
    assert time.monotonic() - begun > 0.5


def test_a_message_that_does_not_come_is_waited_for_so_long_and_no_longer(pair: tuple[Link, Link]) -> None:
    assert pair[0].receive(0.01) is None
    assert pair[0].received() == []


def test_the_end_of_a_link_comes_after_its_last_message_and_names_the_peer(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    theirs.name = "node 1 (b)"
    ours.send("last")
    ours.close()
    assert theirs.receive(5) == "last"
    with pytest.raises(LinkEnded, match=r"^node 1 \(b\) is gone"):
        theirs.receive(5)


def test_what_has_arrived_before_the_end_is_taken_first(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send("last")
    ours.close()
    deadline = time.monotonic() + 5
    messages: list[object] = []
    while not messages and time.monotonic() < deadline:
        messages = theirs.received()
    assert messages == ["last"]
    with pytest.raises(LinkEnded):
        theirs.received()


def test_to_send_to_a_peer_that_is_gone_is_told(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(LinkEnded):
        _send_much(ours)


def _send_much(link: Link) -> None:
    for _ in range(100):
        link.send(bytes(1 << 16))


@pytest.mark.parametrize("wrong", ["client", "server"])
def test_a_peer_with_another_key_is_refused_by_both_ends(listening: socket.socket, wrong: str) -> None:
    taken = accepted(listening, bytes(32) if wrong == "server" else KEY)
    with pytest.raises(ForeignPeer):
        connect(listening.getsockname(), bytes(32) if wrong == "client" else KEY)
    taken[0].join()
    assert isinstance(taken[1], ForeignPeer)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n", bytes(1000)])
def test_who_says_something_else_is_refused(listening: socket.socket, said: bytes) -> None:
    taken = accepted(listening)
    with socket.create_connection(listening.getsockname()) as stranger:
        with contextlib.suppress(OSError):  # it may have been refused by now
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
        taken[0].join()
    assert isinstance(taken[1], ForeignPeer)


def test_who_sends_byte_by_byte_is_given_up(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_HANDSHAKE_SECONDS", 0.2)
    taken = accepted(listening)
    with socket.create_connection(listening.getsockname()) as stranger:
        while taken[0].is_alive():
            with contextlib.suppress(OSError):  # the same
                stranger.sendall(b"p")
            taken[0].join(0.02)
    assert isinstance(taken[1], ForeignPeer)


class Planted:
    """An object whose loading leaves a mark."""

    def __reduce__(self) -> Any:
        return os.putenv, ("DDPPERF_PLANTED", "1")


def raw(pair: tuple[Link, Link]) -> socket.socket:
    """The socket of our end, as one who has taken the connection over would write to it."""
    return pair[0].hand_over()[0]


def test_a_pickle_without_the_mac_is_not_loaded(pair: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(pickle, "loads", loaded.append)
    body = pickle.dumps(Planted())
    raw(pair).sendall(struct.pack("!Q32s", len(body), bytes(32)) + body)
    with pytest.raises(LinkEnded, match="no message of this run"):
        pair[1].receive(5)
    assert loaded == []


class Evil:
    """What makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("how", ["alone", "inside", "another"])
def test_of_a_peer_that_may_be_anybody_only_the_messages_that_are_expected_are_loaded(
    pair: tuple[Link, Link], tmp_path: Path, how: str
) -> None:
    evil: Any = Evil(tmp_path / "made")
    pair[0].send({"alone": evil, "inside": Ping(evil), "another": Close(0)}[how])
    with pytest.raises(LinkEnded, match="its message is made of "):
        pair[1].receive(5, (Ping, Hello))
    assert not (tmp_path / "made").exists()


def test_a_message_that_is_expected_arrives_whole(pair: tuple[Link, Link]) -> None:
    said = Hello(rank=1, host="a", machine="m", cores=frozenset({0, 3}), gpus=("g",), needed={"torch": "2.13"})
    pair[0].send(said)
    assert pair[1].receive(5, (Ping, Hello)) == said


def test_a_message_that_is_sent_again_is_refused(listening: socket.socket) -> None:
    """By one who has listened on the network."""
    taken = accepted(listening)
    ours = connect(listening.getsockname(), KEY)
    taken[0].join()
    heard, theirs = bytearray(), taken[1]
    connected = ours.hand_over()[0]
    send = connected.send

    class Tapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(connected, name)

        def send(self, data: bytes) -> int:
            sent = send(data)
            heard.extend(data[:sent])
            return sent

    ours._socket = Tapped()  # type: ignore[assignment]
    ours.send("pay")
    assert theirs.receive(5) == "pay"
    send(bytes(heard))
    with pytest.raises(LinkEnded, match="no message of this run"):
        theirs.receive(5)
    ours.close()
    theirs.close()


def test_a_message_of_a_length_that_no_memory_holds_is_refused(pair: tuple[Link, Link]) -> None:
    raw(pair).sendall(struct.pack("!Q32s", 1 << 62, bytes(32)))
    with pytest.raises(LinkEnded, match="no message of this run"):
        pair[1].receive(5)


def test_a_peer_whose_machine_is_silent_is_given_up_by_the_kernel(pair: tuple[Link, Link]) -> None:
    connected = raw(pair)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert [connected.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, 1, 4, 20000]
