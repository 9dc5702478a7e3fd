"""Ranks of other nodes, whose launchers the tests play over links of their own."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from selectors import DefaultSelector
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.launch import launch_run, node_ranks
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.launch_run import LaunchedRanks
from pytest_ddpperf.launch.link import Close, Link, Question
from pytest_ddpperf.launch.messages import Answer, Ask, Job
from pytest_ddpperf.launch.node_ranks import NodeRanks, States
from pytest_ddpperf.launch.nodes.agent import NodeLauncher
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.streams import Frames

JOB = Job(call=b"", world_size=2, device="cpu", group=None, mode=None, timeout=1.0)


@contextlib.contextmanager
def linked() -> Iterator[tuple[Link, Link]]:
    """Both ends of a link."""
    near, far = socket.socketpair()
    with contextlib.closing(Link(near, Frames())) as ours, contextlib.closing(Link(far, Frames())) as theirs:
        yield ours, theirs


def ranks_over(link: Link, *, first: int = 1) -> NodeRanks:
    ranks = NodeRanks(link, range(first, first + 1), NodeLauncher.launch, node=1, echo=None, ahead=0)
    ranks.fork(JOB)
    return ranks


def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each wait for an answer lasts, on a clock that only these waits move; no answer comes."""
    now, given, answer = 0.0, list[float](), Question.answer

    def noted(question: Question[Any], seconds: float, hear: Any) -> Any:
        nonlocal now
        given.append(max(0.0, seconds))
        now += given[-1]
        return answer(question, 0.0, hear)

    monkeypatch.setattr(Question, "answer", noted)
    for module in (node_ranks, launch_run):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    return given


def test_the_state_of_a_rank_that_comes_together_with_an_answer_is_taken() -> None:
    with linked() as (ours, theirs), DefaultSelector() as selector:
        ranks = ranks_over(ours)
        answer = ranks.ask(RankProcesses.calls, 1.0)
        for asked in theirs.received():
            if isinstance(asked, Ask) and asked.method == "calls":
                theirs.send(Answer(asked.number, {}))
                theirs.send(States((RankEnd(rank=1, status=3),)))
        assert answer(1.0) == {}
        ranks.register(selector)
        assert [end.status for end in ranks.ends] == [3]


def test_nodes_that_do_not_answer_are_waited_for_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = waited(monkeypatch)
    here: Any = SimpleNamespace(job=JOB)
    monkeypatch.setattr(RankProcesses, "progress", lambda _: {})
    with contextlib.ExitStack() as opened:
        nodes = [ranks_over(opened.enter_context(linked())[0], first=rank) for rank in range(1, 9)]
        assert LaunchedRanks(here, nodes).progress() == {}
    assert given == [node_ranks._ANSWER_SECONDS, *[0.0] * 7]


def test_a_launch_that_is_closed_as_soon_as_it_is_asked_for_ends() -> None:
    ranks: Any = SimpleNamespace(states=[], ends=[], register=lambda _: None, tend=lambda: None)
    with linked() as (ours, theirs):
        ours.send("the request")
        ours.send(Close())
        assert theirs.receive(1.0) == "the request"
        launcher = NodeLauncher(theirs, None, None, None)  # type: ignore[arg-type]
        serving = threading.Thread(target=launcher._serve, args=(ranks,), daemon=True)
        serving.start()
        serving.join(5.0)
        assert not serving.is_alive()


def test_nodes_whose_ranks_do_not_end_share_one_deadline(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Which has passed for the second one when the first was given up."""
    monkeypatch.setattr(node_ranks, "_ANSWER_SECONDS", 0.0)
    given = waited(monkeypatch)
    with linked() as (first, _first), linked() as (second, _second):
        for ranks in (ranks_over(first), ranks_over(second, first=2)):
            ranks.sweep(60.0)
    assert given == [60.0, 0.0]
    assert len(re.findall(r"did not answer within \d+ s; the stacks of process", capfd.readouterr().err)) == 2
