"""What ranks have called by torch's flight recorder, and who keeps the others waiting."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from pytest_ddpperf.errors import RanksTimedOut
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.faults.flight_recorder import answer_requests, read_dump, read_gloo, stall, waits_in
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import GroupCalls, Job, RankCalls
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.streams import Channel


def entry(
    number: int,
    name: str = "all_reduce",
    state: str = "scheduled",
    *,
    group: str = "0",
    size: int = 8,
    p2p: int = 0,
    pg_id: int = 0,
) -> dict[str, Any]:
    """A collective as torch 2.13 writes it, without its times; ``p2p`` is the number of a send or receive."""
    return {
        "pg_id": pg_id,
        "process_group": [group, "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": p2p,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[size, 4]],
        "input_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "is_p2p": bool(p2p),
    }


def dump(enqueued: int, completed: int, *entries: dict[str, Any], ranks: str = "[0, 1]") -> dict[str, Any]:
    """A dump of a rank with the default group alone, whose numbers are texts and -1 before the first collective."""
    state = {"last_enqueued_collective": str(enqueued), "last_started_collective": "-1"}
    return {
        "version": "2.7",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {**state, "last_completed_collective": str(completed)}},
        "entries": list(entries),
    }


FRESH, OFF = {**dump(0, 0), "pg_status": {}}, {"version": "2.7", "pg_config": {}, "pg_status": {}}
WITHOUT_ENTRIES = {name: value for name, value in dump(3, 1).items() if name != "entries"}
PENDING = {2: "broadcast of float[8, 4]", 3: "all_reduce of float[2, 4]"}


@pytest.mark.parametrize(
    ("dumped", "called", "ended", "pending"),
    [
        (dump(3, 1, entry(1, state="completed"), entry(2, "broadcast"), entry(3, size=2)), 3, 1, PENDING),
        (WITHOUT_ENTRIES, 3, 1, {}),
        (FRESH, 0, 0, {}),  # a group without a call has no state
    ],
)
def test_a_dump_has_the_called_ended_and_pending_collectives(
    dumped: dict[str, Any], called: int, ended: int, pending: dict[int, str]
) -> None:
    assert read_dump(dumped) == {"0": GroupCalls(ranks=(0, 1), called=called, ended=ended, pending=pending)}
    assert read_dump(OFF) == {}


def test_the_entries_of_a_dump_take_precedence_over_the_notes_of_the_watchdog() -> None:
    """The watchdog looks every 100 ms, and not at all while CUDA does not answer it."""
    found = read_dump(dump(2, -1, entry(1, state="completed"), entry(2, state="completed"), entry(3)))
    assert (found["0"].called, found["0"].ended) == (3, 2)


def test_entries_assign_each_state_to_its_process_group() -> None:
    both = dump(5, 5, entry(5, state="completed"), entry(2, group="7", pg_id=1))
    both["pg_config"]["7"] = {"name": "7", "desc": "undefined", "ranks": "[0]"}
    both["pg_status"]["1"] = {"last_enqueued_collective": "2", "last_completed_collective": "1"}
    found = read_dump(both)
    assert (found["0"].called, found["0"].ended) == (5, 5)
    assert (found["7"].called, found["7"].ended, found["7"].ranks) == (2, 1, (0,))
    both["entries"] = both["entries"][:1]  # those of the other group have been overwritten
    assert read_dump(both)["7"].called is None


def test_a_group_of_calls_ends_as_one() -> None:
    """Its single calls have entries that never end."""
    parts = entry(1, "send", p2p=3), entry(1, "recv", p2p=3)
    ended = read_dump(dump(1, 1, *parts, entry(1, "coalesced", "completed", p2p=3)))
    assert not ended["0"].point_to_point
    assert read_dump(dump(1, 1, *parts, entry(1, "coalesced", p2p=3)))["0"].point_to_point


def of_gloo(number: int, name: str = "all_reduce", *, ended: bool = False, group: str = "0") -> dict[str, Any]:
    """A collective as torch 2.13 writes it for gloo, which has no other state."""
    return entry(number, group=group) | {"profiling_name": f"gloo:{name}", "retired": ended}


def test_entries_of_gloo_have_the_called_ended_and_pending_collectives() -> None:
    """Its states count sends too, and the configuration has one group without a name."""
    found = read_gloo(
        {"entries": [of_gloo(1, ended=True), of_gloo(2), of_gloo(1, group="7", ended=True), of_gloo(3, "broadcast")]},
        {"0": (0, 1, 2), "7": (0, 1), "8": (0, 2)},
    )
    assert found == {
        "0": GroupCalls(
            ranks=(0, 1, 2), called=3, ended=1, pending={2: "all_reduce of float[8, 4]", 3: "broadcast of float[8, 4]"}
        ),
        "7": GroupCalls(ranks=(0, 1), called=1, ended=1),
        "8": GroupCalls(ranks=(0, 2), called=0),
    }


def test_a_group_of_gloo_that_is_made_again_counts_from_one() -> None:
    found = read_gloo({"entries": [of_gloo(number, ended=True) for number in (1, 2, 3, 1)]}, {"0": (0, 1)})
    assert (found["0"].called, found["0"].ended) == (1, 1)
    assert read_gloo({"version": "2.10"}, {"0": (0, 1)}) == {"0": GroupCalls(ranks=(0, 1), called=0)}


def test_a_rank_waits_in_its_first_collective_that_has_not_ended() -> None:
    assert waits_in(RankCalls(groups={"0": calls(3, 1, REDUCE, GATHER), "7": calls(4, 4)}, whole=True)) == (
        "all_reduce",
        2,
    )
    assert waits_in(RankCalls(groups={"0": calls(2, 1, REDUCE), "7": calls(2, 1, REDUCE)}, whole=True)) is None
    assert waits_in(RankCalls(groups={"0": calls(2, 2)}, whole=True)) is None


def calls(
    called: int | None, ended: int = 0, *words: str, ranks: tuple[int, ...] = (0, 1, 2), **more: Any
) -> GroupCalls:
    """A rank's calls of a group; the words are of the collectives after the last one that has ended."""
    pending = {ended + number: text for number, text in enumerate(words, start=1)}
    return GroupCalls(ranks=ranks, called=called, ended=ended, pending=pending, **more)


def told(*ranks: GroupCalls | dict[str, GroupCalls]) -> dict[int, RankCalls]:
    groups = ({"0": one} if isinstance(one, GroupCalls) else one for one in ranks)
    return {rank: RankCalls(groups=one, whole=True) for rank, one in enumerate(groups)}


REDUCE, GATHER = "all_reduce of float[8]", "_all_gather_base of float[8]"


LATE, BROADCAST, SCATTER = calls(2, 1, REDUCE), "broadcast of float[8]", calls(5, 4, "scatter")
ONE, OTHER, FOUR = calls(1, 0, REDUCE, ranks=(0, 1)), calls(0, 0, ranks=(0, 1)), "all_reduce of float[4]"
OF_ALL = "all_reduce of float[8], of the group of ranks 0, 1, 2"
DIFFERENT = "collective 5 differs between ranks"


@pytest.mark.parametrize(
    ("ranks", "guilty", "text"),
    [
        (
            [calls(12, 11, REDUCE), calls(11, 11), calls(13, 11, REDUCE, GATHER)],
            1,
            f"rank 1 has not called collective 12, {OF_ALL}: ranks 0, 2 wait in it",
        ),
        ([calls(1, 0, REDUCE), {}, calls(1, 0, REDUCE)], 1, f"rank 1 has not called collective 1, {OF_ALL}: "),
        ([calls(1), calls(0), calls(1)], 1, "rank 1 has not called collective 1 of the group of ranks 0, 1, 2: "),
        # Rank 0 has sent its part of collective 5 and computes; rank 1 waits in it for rank 2, and has called another.
        ([calls(5, 5), calls(6, 4, BROADCAST, REDUCE), calls(4, 4)], 2, "rank 2 has not called collective 5, "),
        ([LATE, calls(1, 1), calls(1, 1)], None, f"ranks 1, 2 have not called collective 2, {OF_ALL}: rank 0 waits in"),
        ([LATE, calls(1, 1, point_to_point=True), LATE], None, "rank 1 has not called collective 2, "),
        ([{"a": ONE, "b": OTHER}, {"a": OTHER, "b": ONE}], None, "rank 1 has not called collective 1, "),
        # Rank 0 has gone further, for torch does not wait.
        (
            [calls(7, 4, REDUCE, GATHER), calls(5, 4, GATHER), calls(5, 4, REDUCE)],
            1,
            f"{DIFFERENT}: ranks 0, 2: {REDUCE}; rank 1: {GATHER}",
        ),
        (
            [calls(5, 4, REDUCE, ranks=(0, 1)), calls(5, 4, FOUR, ranks=(0, 1))],
            None,
            f"{DIFFERENT}: rank 0: {REDUCE}; rank 1: {FOUR}",
        ),
    ],
)
def test_the_only_rank_that_does_not_wait_or_differs_is_to_blame(
    ranks: list[GroupCalls | dict[str, GroupCalls]], guilty: int | None, text: str
) -> None:
    found = stall(told(*ranks))
    assert found is not None
    assert found.rank == guilty
    assert found.text.startswith(f"NCCL: {text}")
    assert len(found.text.splitlines()) == (2 if isinstance(ranks[0], dict) and len(ranks) == 2 else 1)


def test_a_rank_that_waits_in_another_group_is_not_to_blame() -> None:
    """Four ranks in rows and columns: 1 and 2 wait for 3, and 0 waits for 2."""
    row, column, next_row, next_column = (calls(4, 4, ranks=members) for members in ((0, 1), (0, 2), (2, 3), (1, 3)))
    first = {"row": row, "column": calls(5, 4, REDUCE, ranks=(0, 2))}
    second = {"row": row, "next column": calls(5, 4, REDUCE, ranks=(1, 3))}
    third = {"next row": calls(5, 4, GATHER, ranks=(2, 3)), "column": column}
    last = {"next row": next_row, "next column": next_column}
    found = stall(told(first, second, third, last))
    assert found is not None
    assert found.rank == 3
    assert len(found.text.splitlines()) == 2  # not the column in which rank 2 is late
    assert "group of ranks 0, 2" not in found.text


@pytest.mark.parametrize(
    "silent",
    [
        {},
        {0: LATE, 2: LATE},  # one does not answer
        {0: LATE, 1: calls(None), 2: LATE},  # its entries are overwritten
        {0: calls(2, 2), 1: calls(1, 1), 2: calls(2, 2)},  # nobody waits
        {0: LATE, 1: LATE, 2: LATE},
        {0: calls(2, 1), 1: calls(2, 1), 2: calls(2, 1)},  # all wait, in what nobody knows
        {0: calls(5, 4, "scatter of 3 x float[8]"), 1: SCATTER, 2: SCATTER},  # its tensors may differ
    ],
)
def test_an_incomplete_flight_record_blames_no_rank(silent: dict[int, GroupCalls]) -> None:
    assert stall({rank: RankCalls(groups={"0": one}, whole=True) for rank, one in silent.items()}) is None


def test_a_rank_of_gloo_that_waits_for_an_unrecorded_call_is_not_to_blame() -> None:
    answers = told(LATE, calls(1, 1), LATE)
    found = stall(answers, "gloo", elsewhere=[1])
    assert found is not None
    assert found.rank is None
    assert found.text.startswith("gloo: rank 1 has not called collective 2, ")
    assert stall(answers, "gloo", elsewhere=[0, 2]) == replace(found, rank=1)


@contextlib.contextmanager
def answering(backend: str) -> Iterator[tuple[Channel, threading.Thread]]:
    """The controller's end of a connection to a rank, and the thread there that answers its request."""
    ours, of_rank = socket.socketpair()
    with ours, of_rank:
        controller = Channel(ours)
        thread = answer_requests(Channel(of_rank), backend)
        controller.request()
        yield controller, thread
        controller.dismiss()
        thread.join()


def received(controller: Channel, number: int) -> list[Any]:
    answers: list[Any] = []
    while len(answers) < number:
        answers += controller.received()
    return answers


def test_a_rank_answers_first_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def dumped(entries: bool, active: bool) -> bytes:  # noqa: FBT001  as torch's
        asked.append(entries)
        assert not active
        found = dump(2, 1, entry(2))
        return json.dumps(found if entries else {**found, "entries": []}).encode()

    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", dumped, raising=False)
    with answering("nccl") as (controller, _):
        answers = received(controller, 2)
    assert asked == [False, True]
    assert answers == [
        RankCalls(groups={"0": GroupCalls(ranks=(0, 1), called=2, ended=1)}, whole=False),
        RankCalls(groups={"0": calls(2, 1, "all_reduce of float[8, 4]", ranks=(0, 1))}, whole=True),
    ]


def test_a_torch_without_a_recorder_answers_so_for_gloo_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        monkeypatch.delattr(torch._C._distributed_c10d, name, raising=False)
    with answering("gloo") as (controller, _):
        assert received(controller, 1) == [RankCalls(groups={}, whole=True)]
    with answering("nccl") as (controller, thread):
        thread.join()
        assert controller.received() == []


class Silent:
    """A zygote that is asked for nothing."""


def test_the_controller_takes_the_last_answer_and_does_not_wait_for_those_that_give_none() -> None:
    """Rank 0 gives both answers, rank 1 only the first, rank 2 none, and rank 3 is gone."""
    job = Job(call=b"", world_size=4, device="cpu", group="nccl", mode=None, timeout=1.0)
    with RankProcesses(cast("Any", [Silent()] * 4), job) as ranks:
        sent = [calls(2, 1), calls(2, 1, REDUCE)]
        for rank, number in ((0, 2), (1, 1)):
            channel = Channel(ranks.ranks[rank].of_rank)
            for whole, group in enumerate(sent[:number]):
                channel.send(RankCalls(groups={"0": group}, whole=bool(whole)))
        ranks.ranks[3].of_rank.close()
        found = ranks.calls(0.05)
        for rank in range(3):
            ranks.ranks[rank].of_rank.close()
    assert {rank: answer.groups["0"] for rank, answer in found.items()} == {0: sent[1], 1: sent[0]}


def own_calls(ctx: RankContext) -> GroupCalls:
    """What a rank's recorder tells after three collectives that have ended."""
    for _ in range(3):
        dist.all_reduce(torch.ones(8, device=ctx.device))
    torch.cuda.synchronize()
    c10d: Any = torch._C._distributed_c10d
    return read_dump(json.loads(c10d._dump_nccl_trace_json()))["0"]


@pytest.mark.gpu
def test_torchs_own_dump_can_be_read(launcher: Launcher) -> None:
    found = launcher.run(own_calls, world_size=1, backend="nccl", device="cuda").rank(0)
    assert (found.ranks, found.waits, found.pending) == ((0,), False, {})
    assert (found.called or 0) >= 3


def leaves_out(ctx: RankContext) -> float:
    """Rank 1 leaves out the second of three collectives, which are of one kind; rank 0 waits for its loss."""
    total = torch.ones(8, device=ctx.device)
    dist.all_reduce(total)
    if ctx.rank == 0:
        dist.all_reduce(total)
    else:
        threading.Event().wait()
    return total.sum().item()


@pytest.mark.gpu(devices=2)
def test_a_rank_that_omits_a_collective_of_nccl_is_named_at_the_deadline(launcher: Launcher) -> None:
    with pytest.raises(RanksTimedOut, match="NCCL: rank 1 has not called collective") as caught:
        launcher.run(leaves_out, world_size=2, backend="nccl", device="cuda", timeout=30)
    assert caught.value.rank == 1
