"""What NCCL's RAS service answers, with a small server that speaks as NCCL's own does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pytest_ddpperf.launch.environment import with_ras
from pytest_ddpperf.launch.faults.nccl_ras import status

TEXT = b"NCCL version 2.27.5 compiled with CUDA 12.9\n\nJob summary\n===========\n\n  Errors\n======\n\nINCOMPLETE\n"


@pytest.fixture
def serve() -> Iterator[Callable[..., dict[str, str]]]:
    """Starts a server that answers these requests with these replies, one by one; gives the variables of its ranks."""
    opened: list[tuple[socket.socket, threading.Thread]] = []

    def serving(*replies: tuple[bytes, bytes | None]) -> dict[str, str]:
        server = socket.create_server(("127.0.0.1", 0))

        def speak() -> None:
            peer, _ = server.accept()
            with peer, peer.makefile("rb") as requests:
                for request, reply in replies:
                    assert requests.readline() == request
                    if reply is None:  # it never answers
                        requests.readline()
                        return
                    peer.sendall(reply)

        thread = threading.Thread(target=speak)
        thread.start()
        opened.append((server, thread))
        return {"NCCL_RAS_ADDR": f"127.0.0.1:{server.getsockname()[1]}"}

    yield serving
    for server, thread in opened:
        thread.join()
        server.close()


HELLO = (b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL 2\n")
TIMEOUT = (b"TIMEOUT 1\n", b"OK\n")


def test_the_status_is_all_text_up_to_the_end_of_the_connection(serve: Callable[..., dict[str, str]]) -> None:
    assert status(serve(HELLO, TIMEOUT, (b"STATUS\n", TEXT))) == TEXT.decode().strip()


def test_a_long_status_is_cut(serve: Callable[..., dict[str, str]]) -> None:
    assert len(status(serve(HELLO, TIMEOUT, (b"STATUS\n", b"x" * 99 + b"\n" + b"y" * 20_000 + b"\n")))) == 16 * 1024


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([(b"CLIENT PROTOCOL 2\n", b"HTTP/1.1 400 Bad Request\n")], id="another service"),
        pytest.param([HELLO, (b"TIMEOUT 1\n", b"ERROR: Invalid timeout value 1\n")], id="a refusal"),
        pytest.param([HELLO, TIMEOUT, (b"STATUS\n", b"")], id="a closed connection"),
    ],
)
def test_what_is_no_status_is_not_told(
    serve: Callable[..., dict[str, str]], replies: list[tuple[bytes, bytes | None]]
) -> None:
    assert status(serve(*replies)) == ""


def test_a_service_that_does_not_answer_holds_up_nothing(serve: Callable[..., dict[str, str]]) -> None:
    assert status(serve(HELLO, TIMEOUT, (b"STATUS\n", None)), seconds=0.2) == ""


def test_where_nobody_listens_there_is_no_status() -> None:
    for environ in ({}, {"NCCL_RAS_ADDR": "127.0.0.1"}, {"NCCL_RAS_ADDR": "127.0.0.1:1"}):
        assert status(environ) == ""


def test_a_launch_has_an_address_of_its_own_unless_the_user_has_chosen_one() -> None:
    first, second = (with_ras({"A": "b"}) for _ in range(2))
    assert first["A"] == "b"
    assert first["NCCL_RAS_ADDR"].startswith("127.0.0.1:")
    assert set(second) == {"A", "NCCL_RAS_ADDR"}
    for chosen in ({"NCCL_RAS_ADDR": "localhost:28028"}, {"NCCL_RAS_ENABLE": "0"}):
        assert with_ras(chosen) == chosen
