"""What NCCL's RAS service answers, with a small server that speaks as NCCL's own does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_ddpperf.launch.environment import with_ras
from pytest_ddpperf.launch.faults.nccl_ras import status

ASKED = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSTATUS\n"
TEXT = b"NCCL version 2.27.5 compiled with CUDA 12.9\n\nJob summary\n===========\n\n  Errors\n======\n\nINCOMPLETE\n"


@contextmanager
def served(*replies: bytes, asked: bytes = ASKED, silent: bool = False) -> Iterator[dict[str, str]]:
    """The variables of ranks whose service gives these replies, or with ``silent`` keeps its connection open."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            peer, _ = server.accept()
            with peer, peer.makefile("rb") as requests:
                peer.sendall(b"".join(replies))
                if not silent:
                    peer.shutdown(socket.SHUT_WR)
                heard.append(requests.read())

        thread = threading.Thread(target=speak)
        thread.start()
        yield {"NCCL_RAS_ADDR": f"127.0.0.1:{server.getsockname()[1]}"}
        thread.join()
    assert heard == [asked]


HELLO, OK = b"SERVER PROTOCOL 2\n", b"OK\n"


def test_the_status_is_all_text_up_to_the_end_of_the_connection() -> None:
    with served(HELLO, OK, TEXT) as environ:
        assert status(environ) == TEXT.decode().strip()


def test_a_long_status_is_cut() -> None:
    with served(HELLO, OK, b"x" * 99 + b"\n" + b"y" * 20_000 + b"\n") as environ:
        assert len(status(environ)) == 16 * 1024


@pytest.mark.parametrize(
    ("replies", "asked"),
    [
        ([b"HTTP/1.1 400 Bad Request\n"], b"CLIENT PROTOCOL 2\n"),  # another service
        ([HELLO, b"ERROR: Invalid timeout value 1\n"], b"CLIENT PROTOCOL 2\nTIMEOUT 1\n"),
        ([HELLO, OK], ASKED),  # it closes the connection
    ],
)
def test_what_is_no_status_is_not_told(replies: list[bytes], asked: bytes) -> None:
    with served(*replies, asked=asked) as environ:
        assert status(environ) == ""


def test_a_service_that_does_not_answer_holds_up_nothing() -> None:
    with served(HELLO, OK, silent=True) as environ:
        assert status(environ, seconds=0.2) == ""


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
