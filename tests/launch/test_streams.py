"""Messages over a socket whose other end may stop anywhere, and what is kept of what ranks print."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from pathlib import Path

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.streams import (
    OUTPUT_LIMIT,
    Channel,
    FollowedOutput,
    GarbledMessage,
    RankOutput,
    open_output,
    read_output,
    readable,
    titled,
    trim_output,
)


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
    theirs.sendall(b"ddpperf\n" + (100).to_bytes(8, "big") + b"half")
    assert ours.received() == []
    theirs.close()
    assert ours.received() == []
    assert ours.closed


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello",
        b"\0" * 100,
        b"ddpperf\n" + (4).to_bytes(8, "big") + b"none",
        b"ddpperf?" + b"\0" * 8,
        b"ddpperf\n" + b"\1" * 8,
    ],
)
def test_bytes_that_are_no_message_are_refused_at_once(
    ends: tuple[socket.socket, socket.socket], garbage: bytes
) -> None:
    ours, theirs = Channel(ends[0]), ends[1]
    theirs.sendall(garbage + b"\0" * 16)
    with pytest.raises(GarbledMessage):
        ours.received()
    assert ours.closed


def test_endless_garbage_is_not_read_to_its_end(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends[1].sendall(b"x")
    reads = iter([b"x" * 10])
    monkeypatch.setattr(socket.socket, "recv", lambda *_: next(reads))
    with pytest.raises(GarbledMessage):
        Channel(ends[0]).received()


def test_a_receiver_that_is_gone_is_noticed_and_is_no_error(ends: tuple[socket.socket, socket.socket]) -> None:
    theirs = Channel(ends[1])
    ends[0].close()
    theirs.send("into the void")
    assert theirs.closed


def test_a_rank_is_asked_until_it_is_dismissed(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Channel(ends[0]), Channel(ends[1])
    ends[1].settimeout(5)
    ours.request()
    ours.dismiss()
    assert [theirs.asked(), theirs.asked(), theirs.asked()] == [True, False, False]


def test_lines_that_gloo_prints_for_each_group_are_omitted() -> None:
    """torch 2.8 and 2.9 print it to stdout."""
    said = b"[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    with open_output() as file:
        file.write(said + b"first\n" + said + b"[Gloo] of mine\n")
        assert read_output(file, "stdout") == "first\n[Gloo] of mine\n"
        assert FollowedOutput(file).lines() == ["first", "[Gloo] of mine"]


def test_of_a_long_text_the_end_is_kept_and_the_cut_is_named() -> None:
    with open_output() as file:
        file.write(b"0123456789")
        cut = "[the first 6 of 10 bytes of rank 1's stdout are cut here]"
        assert read_output(file, "rank 1's stdout", 4) == f"{cut}\n6789"


def test_reading_does_not_move_the_writers_place_in_a_file_without_a_name() -> None:
    with open_output() as file:
        os.write(file.fileno(), b"a\xff")
        assert read_output(file, "stdout") == "a\ufffd"
        os.write(file.fileno(), b"b")
        assert read_output(file, "stdout") == "a\ufffdb"
        assert os.fstat(file.fileno()).st_nlink == 0, "a crash leaves nothing behind"


def test_of_a_stream_of_megabytes_only_the_end_takes_space() -> None:
    with open_output() as file:
        file.write(b"a" * (4 << 20) + b"end")
        trim_output(file)
        status = os.fstat(file.fileno())
        assert status.st_size == (4 << 20) + 3
        assert status.st_blocks * 512 <= 2 * OUTPUT_LIMIT
        assert read_output(file, "stdout").endswith("aaaend")


def test_descriptors_above_the_limit_of_select_can_be_waited_for(ends: tuple[socket.socket, socket.socket]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, limits[1]))
    try:
        high = fcntl.fcntl(ends[0].fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
        assert readable([high], 0) == set()
        ends[1].sendall(b"x")
        assert readable([high], None) == {high}
        os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_a_folder_for_temporary_files_the_message_has_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(LaunchError, match=r"the output of ranks cannot be stored in .*/gone: .*; set TMPDIR to a"):
        open_output()


def test_a_followed_stream_gives_whole_lines_once_and_the_rest_at_its_end() -> None:
    with open_output() as file:
        followed = FollowedOutput(file)
        assert followed.lines() == []
        file.write(b"one\ntwo\nthr")
        assert followed.lines() == ["one", "two"]
        file.write(b"ee\n")
        assert followed.lines() == ["three"]
        file.write(b"end")
        assert followed.lines() == []
        assert followed.lines(last=True) == ["end"]
        assert followed.lines(last=True) == []


def test_a_stream_that_is_followed_too_slowly_says_how_much_is_cut() -> None:
    with open_output() as file:
        followed = FollowedOutput(file)
        file.write(b"x" * 10 + b"\n" + b"y" * (OUTPUT_LIMIT - 1) + b"\n")
        assert followed.lines() == ["[11 bytes are cut here]", "y" * (OUTPUT_LIMIT - 1)]


def test_a_report_has_the_last_state_of_progress_bars_and_equal_output_of_ranks_once() -> None:
    bar = "\x1b[A\r  0%|    | 0/2\r 50%|##  | 1/2\r100%|####| 2/2\n"
    outputs = [RankOutput("hello\nfrom 0\n", bar), RankOutput("hello\nfrom 1\n", bar), RankOutput("hello\nfrom 1\n")]
    assert titled(enumerate(outputs)) == (
        ("rank 0 stdout", "hello\nfrom 0\n"),
        ("ranks 0, 1 stderr", "100%|####| 2/2\n"),
        ("ranks 1, 2 stdout", "[omitted: 1 line that an earlier rank printed; pytest -s shows all]\nfrom 1\n"),
    )


def test_a_report_has_the_last_lines_of_a_stream_and_says_how_many_are_omitted() -> None:
    ((title, text),) = titled([(3, RankOutput("".join(f"{number}\n" for number in range(195))))])
    first, *shown = text.splitlines()
    assert title == "rank 3 stdout"
    assert first == "[omitted: 175 lines before these; pytest -s shows all]"
    assert shown == [str(number) for number in range(175, 195)]


CPP_STACK = """[W1130 10:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl: Connection reset by peer
Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:697 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f{number} in /venv/torch/lib/libc10.so)
frame #1: <unknown function> + 0x163b752 (0x7f0057a3b752 in /venv/torch/lib/libtorch_cpu.so)
<omitting python frames>
frame #15: clone + 0x85 (0x7f006d245305 in /lib/x86_64-linux-gnu/libc.so.6)

  File "train.py", line 8 in step
"""


def test_a_report_has_the_users_lines_and_no_cpp_stacks_of_torchs_warnings() -> None:
    """A stack whose beginning was cut, because the stream is long, goes as well. Addresses differ between ranks."""
    ranks = [RankOutput(stderr=CPP_STACK.replace("{number}", str(number)) * 10) for number in range(2)]
    cut = RankOutput(stderr=CPP_STACK[CPP_STACK.index("frame #1:") :])
    ((title, text), (_, after_cut)) = titled([*enumerate(ranks), (2, cut)])
    warning, *_ = CPP_STACK.splitlines()
    left_out = "[a C++ stack is omitted; pytest -s shows all]"
    assert title == "ranks 0, 1 stderr"
    assert text.splitlines()[-3:] == [warning, left_out, '  File "train.py", line 8 in step']
    assert after_cut.splitlines()[0].startswith("[omitted: 2 lines that an earlier rank printed")
    assert "frame #" not in text + after_cut


def test_a_report_sent_before_the_end_of_a_rank_is_read_although_a_request_failed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours = Channel(ends[0])
    Channel(ends[1]).send("report")
    ends[1].close()
    ours.request()
    ours.dismiss()
    assert (ours.received(), ours.closed) == (["report"], True)
