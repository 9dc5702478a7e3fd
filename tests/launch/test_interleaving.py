"""Turns, asked for by threads that stand for rank 0 of each launch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_ddpperf.errors import LaunchError, RanksTimedOut
from pytest_ddpperf.launch import interleaving
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.interleaving import _REQUEST, TurnClient, TurnQueue, TurnSlot, run_interleaved
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.streams import readable

Launch = Callable[[TurnSlot], str]


def no_abort() -> None:
    pytest.fail("nothing is to be aborted")


@contextmanager
def connected(turns: TurnSlot) -> Iterator[socket.socket]:
    """Rank 0's end of a connection, whose other end a thread hears in place of the launch's."""
    with contextlib.ExitStack() as opened:
        ours, of_rank = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))

        def hear() -> None:
            while turns.queue.hear(turns.slot, ours):
                pass

        hearing = threading.Thread(target=hear)
        hearing.start()
        opened.callback(hearing.join, 30)
        opened.callback(of_rank.shutdown, socket.SHUT_RDWR)
        yield of_rank


def player(name: str, turns_wanted: int, written: list[str], meanwhile: Callable[[], None] = lambda: None) -> Launch:
    """A launch that writes down its name at the begin and the end of each of its turns."""

    def launch(turns: TurnSlot) -> str:
        with connected(turns) as connection:
            waiting = TurnClient(connection)
            for turn in range(turns_wanted):
                waiting.wait(turn / turns_wanted)
                written.append(name)
                meanwhile()
                written.append(name)
        return name

    return launch


@pytest.mark.parametrize(
    ("turns", "order"),
    [
        ({"a": 3, "b": 3}, "ababab"),
        ({"a": 3, "A": 3, "b": 3, "B": 3}, "aAbBAaBbaAbB"),  # both sides of a pair follow each benchmark alike
        ({"a": 3, "b": 6}, "abbabbabb"),  # who needs more turns has them between those of the other
    ],
)
def test_interleaved_launches_advance_by_their_progress(turns: dict[str, int], order: str) -> None:
    written: list[str] = []
    launches = [player(name, number, written) for name, number in turns.items()]
    assert run_interleaved(launches, no_abort) == [*turns]
    assert "".join(written) == "".join(2 * name for name in order)


def test_both_sides_of_a_pair_begin_equally_often_even_with_unequal_numbers_of_blocks() -> None:
    """Either side of each pair begins in half of the 22 cycles of the pair with fewer turns."""
    written: list[str] = []
    run_interleaved([player(name, {"a": 22, "b": 45}[name.lower()], written) for name in "aAbB"], no_abort)
    order = written[::2]
    begins = Counter(now for before, now in pairwise(["", *order]) if before.lower() != now.lower())
    assert begins == dict.fromkeys("aAbB", 11)


def test_a_launch_that_has_timed_all_its_steps_waits_for_the_steps_of_the_others() -> None:
    """What it does then, and its end, disturb none."""
    written: list[str] = []

    def ready(turns: TurnSlot) -> str:
        with connected(turns) as connection:
            for progress in (0.0, 1.0):
                TurnClient(connection).wait(progress)
                written.append("a")
        return ""

    run_interleaved([ready, player("b", 3, written)], no_abort)
    assert "".join(written) == "abbbbbba"


def test_a_launch_that_fails_is_not_waited_for() -> None:
    written: list[str] = []

    def fails(turns: TurnSlot) -> str:
        player("b", 1, written)(turns)
        raise OSError("the other side")

    with pytest.raises(OSError, match="the other side"):
        run_interleaved([player("a", 3, written), fails], no_abort)
    assert "".join(written) == "aabbaaaa"


def test_the_first_launchs_error_comes_first_and_the_others_have_ended() -> None:
    written: list[str] = []

    def fails(turns: TurnSlot) -> str:
        raise LookupError(str(turns.slot))

    with pytest.raises(LookupError, match=r"^0$"):
        run_interleaved([fails, player("b", 2, written)], no_abort)
    assert "".join(written) == "bbbb"


@pytest.mark.parametrize("first", ["waits", "hangs"])
def test_a_launch_that_waited_in_vain_is_not_to_blame(first: str) -> None:
    """The second launch never ends its turn, for which the first one waits; either may be the first to give up."""
    playing, given_up = threading.Event(), threading.Event()

    def give_up(name: str) -> None:
        if name != first:
            assert given_up.wait(30)

    def waits(turns: TurnSlot) -> NoReturn:
        with connected(turns) as connection:
            TurnClient(connection).wait(0.0)
            connection.sendall(_REQUEST.pack(0.5))  # which ends the turn with the wish for the next one
            assert playing.wait(30)
            if first == "hangs":
                assert connection.recv(1)  # too late to do anything with it
            give_up("waits")
        given_up.set()
        raise TimeoutError("waits")

    def hangs(turns: TurnSlot) -> NoReturn:
        with connected(turns) as connection:
            TurnClient(connection).wait(0.0)
            playing.set()
            give_up("hangs")
        given_up.set()
        raise TimeoutError("hangs")

    with pytest.raises(TimeoutError, match="hangs"):
        run_interleaved([waits, hangs], no_abort)


def test_a_launch_that_lost_its_time_to_a_hanging_one_is_not_to_blame() -> None:
    """The first launch goes on when the second one has given up, and is late while it waits for nobody."""
    playing = threading.Event()

    def is_late(turns: TurnSlot) -> str:
        with connected(turns) as connection:
            TurnClient(connection).wait(0.0)
            for progress in (0.5, 0.75):
                connection.sendall(_REQUEST.pack(progress))
                assert playing.wait(30)
                assert connection.recv(1)
        raise RanksTimedOut("late")

    def hangs(turns: TurnSlot) -> str:
        with connected(turns) as connection:
            TurnClient(connection).wait(0.0)
            playing.set()
        raise RanksTimedOut("hangs")

    with pytest.raises(RanksTimedOut, match="hangs"):
        run_interleaved([is_late, hangs], no_abort)


def test_a_launch_that_ran_after_its_wait_may_be_to_blame() -> None:
    """The second launch ends; the first one, which had waited for it, asks again and fails in a turn of its own."""

    def fails(turns: TurnSlot) -> str:
        player("a", 2, [])(turns)
        raise LookupError("a")

    def fails_too(_turns: TurnSlot) -> str:
        raise TimeoutError("b")

    with pytest.raises(LookupError, match="a"):
        run_interleaved([fails, fails_too], no_abort)


@pytest.mark.parametrize("needed", [1, 2])
def test_an_interrupt_aborts_the_others_until_they_end(needed: int) -> None:
    """One that begins only then has nothing yet that the first abort could end."""
    aborts = threading.Semaphore(0)

    def interrupted(_turns: TurnSlot) -> str:
        raise KeyboardInterrupt

    def goes_on(_turns: TurnSlot) -> str:
        for _ in range(needed):
            assert aborts.acquire(timeout=30)
        raise OSError("killed")

    with pytest.raises(KeyboardInterrupt):
        run_interleaved([interrupted, goes_on], aborts.release)


class Computing:
    """Time for a rank whose other threads compute for as many seconds yet; nothing else takes time."""

    def __init__(self, seconds: float) -> None:
        self._used, self._left = 0.0, seconds
        self.slept = 0.0

    def process_time(self) -> float:
        return self._used

    def sleep(self, seconds: float) -> None:
        used = min(seconds, self._left)
        self._left -= used
        self._used += used
        self.slept += seconds


@pytest.mark.parametrize(
    ("threads", "seconds", "slept"),
    [
        (True, 0.0045, [0.006, 0.007]),  # threads spin for 4.5 ms: a fifth millisecond has half of it, the sixth none
        (False, 1.0, [0.0, 0.0]),
        (True, 10.0, [0.03, 0.03]),  # those that never rest are waited for once
    ],
)
def test_a_block_ends_after_openmp_threads_have_stopped_spinning(
    monkeypatch: pytest.MonkeyPatch, *, threads: bool, seconds: float, slept: list[float]
) -> None:
    computing, client = Computing(seconds), TurnClient(None, threads=threads)
    monkeypatch.setattr(interleaving, "time", computing)
    for expected in slept:
        client.rest()
        assert computing.slept == pytest.approx(expected)


def test_ranks_of_two_launchers_are_interleaved(launcher: Launcher, tmp_path: Path) -> None:
    """Each rank 0 has three turns and looks at what the other one has had by then."""

    def body(_ctx: RankContext, mine: Path, theirs: Path) -> list[bool]:
        waiting, seen = TurnClient(interleaving.asking), []
        for turn in range(3):
            waiting.wait()
            seen.append((theirs / str(turn)).exists())
            (mine / str(turn)).touch()
        waiting.close()
        return seen

    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    b.mkdir()
    with Launcher(like=launcher) as other:
        calls: list[Callable[[TurnSlot], list[bool]]] = [
            lambda turns: launcher.run(body, a, b, world_size=2, turns=turns).rank(0),
            lambda turns: other.run(body, b, a, world_size=1, turns=turns).rank(0),
        ]
        assert run_interleaved(calls, other.abort) == [[False] * 3, [True] * 3]


def test_the_first_block_waits_for_all_launches_also_for_one_that_is_restarted() -> None:
    """What the ranks of the first launch were to be forked from had ended; the second one is built slowly."""
    queue = TurnQueue(2)
    queue.leave(0)
    with contextlib.ExitStack() as opened:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        (ours, first), (other, second) = [[*map(opened.enter_context, pair)] for pair in pairs]
        first.sendall(_REQUEST.pack(0.0))
        assert queue.hear(0, ours)
        assert not readable([first], 0)
        second.sendall(_REQUEST.pack(0.0))
        assert queue.hear(1, other)
        assert readable([first], 5)
        assert not readable([second], 0)
        TurnClient(first).close()
        assert first.fileno() == -1
        assert not queue.hear(0, ours)
        assert readable([second], 5)


@contextmanager
def hanging(tmp_path: Path, act: Callable[[int], None]) -> Iterator[Callable[[RankContext], None]]:
    """A function that hangs on a rank; ``act`` is called in another thread with the rank's pid as soon as it runs."""
    running = tmp_path / "running"
    os.mkfifo(running)

    def hang(_ctx: RankContext) -> None:
        running.write_text(str(os.getpid()))
        threading.Event().wait()

    acting = threading.Thread(target=lambda: act(int(running.read_text())))
    acting.start()
    yield hang
    acting.join()


def test_a_launch_that_is_aborted_by_another_thread_raises(launcher: Launcher, tmp_path: Path) -> None:
    with Launcher(like=launcher) as copied:
        with (
            hanging(tmp_path, lambda _: copied.abort()) as hang,
            pytest.raises(LaunchError, match="the process that forks ranks has ended"),
        ):
            copied.run(hang, world_size=1)
        assert copied.run(lambda ctx: ctx.rank, world_size=1).values == (0,)


def test_ctrl_c_ends_a_launch_and_comes_through(
    launcher: Launcher, tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    pids: list[int] = []
    main = threading.get_ident()

    def interrupt(pid: int) -> None:
        pids.append(pid)
        signal.pthread_kill(main, signal.SIGINT)

    with Launcher(like=launcher) as copied:
        with hanging(tmp_path, interrupt) as hang, pytest.raises(KeyboardInterrupt):
            copied.run(hang, world_size=1)
        assert all_gone(pids)
