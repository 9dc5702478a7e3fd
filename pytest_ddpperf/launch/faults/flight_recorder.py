"""Reads torch's flight recorder: the collectives that each rank has called, and the rank that all others wait for.

NCCL's collectives do not block Python: a rank runs on until it needs a value, or until its GPU's queue is full. So
stacks rarely show in which collective a rank waits, but the numbers of called collectives do. Torch 2.11 and later also
record gloo's collectives. Torch 2.9 does so only if TORCH_FR_BUFFER_SIZE is set. No torch records gloo's send and recv.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpperf.instruments.torch_internals import process_groups
from pytest_ddpperf.launch.faults.stacks import minority
from pytest_ddpperf.launch.messages import GroupCalls, RankCalls, grouped, numbers
from pytest_ddpperf.launch.streams import Channel

ANSWERING = "ddpperf-answers"  # the name of a thread
_EVEN = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast")  # tensors are alike on all ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A text on the collectives in which ranks wait; ``rank`` is the rank for which all wait, or None."""

    text: str
    rank: int | None


def answer_requests(channel: Channel, backend: str = "nccl") -> threading.Thread:
    """Starts a thread that sends this rank's list of collectives to the controller whenever the controller asks."""
    thread = threading.Thread(target=_answer, args=(channel, backend), daemon=True, name=ANSWERING)
    thread.start()
    return thread


def _answer(channel: Channel, backend: str) -> None:
    with contextlib.suppress(Exception):  # without an answer the stacks alone show where ranks wait
        while channel.asked():
            c10d: Any = sys.modules["torch._C._distributed_c10d"]
            dump = "_dump_nccl_trace_json" if backend == "nccl" else "_dump_fr_trace_json"
            reader: Any = getattr(c10d, dump, None)  # there is no public one
            for answer in _answers(reader) if backend == "nccl" else [_gloo_answer(reader)]:
                channel.send(answer)


def _gloo_answer(dump: Callable[[], bytes] | None) -> RankCalls:
    """Returns the gloo collectives that this rank has called, or an empty answer if torch does not record them."""
    if dump is None:
        return RankCalls(groups={}, whole=True)
    dist = sys.modules["torch.distributed"]
    members = {group.group_name: tuple(dist.get_process_group_ranks(group)) for group in process_groups()}
    return RankCalls(groups=read_gloo(json.loads(dump()), members), whole=True)


def read_gloo(dump: Mapping[str, Any], members: Mapping[str, tuple[int, ...]]) -> dict[str, GroupCalls]:
    """Returns the collectives in a dump of gloo's recorder, by process group; ``members`` has each group's ranks."""
    calls: dict[str, dict[int, Mapping[str, Any]]] = {name: {} for name in members}
    for entry in dump.get("entries", ()):
        numbered = calls.get(entry["process_group"][0])
        if numbered is not None and not entry["is_p2p"]:
            if entry["collective_seq_id"] < max(numbered, default=0):  # a new group of the same name
                numbered.clear()
            numbered[entry["collective_seq_id"]] = entry
    pending = {
        name: {number: _words(entry) for number, entry in numbered.items() if not entry["retired"]}
        for name, numbered in calls.items()
    }
    return {
        name: GroupCalls(
            ranks=members[name],
            called=max(numbered, default=0),
            ended=min(pending[name], default=1 + max(numbered, default=0)) - 1,
            pending=pending[name],
        )
        for name, numbered in calls.items()
    }


def waits_in(calls: RankCalls) -> tuple[str, int] | None:
    """Returns name and number of the collective that a rank waits in, or None if it waits in none or in several."""
    waiting = [min(group.pending.items()) for group in calls.groups.values() if group.pending]
    return (waiting[0][1].partition(" ")[0], waiting[0][0]) if len(waiting) == 1 else None


def _answers(dump: Callable[[bool, bool], bytes | str]) -> Iterator[RankCalls]:
    """Yields this rank's collectives twice: at once without their tensors, then with tensors, which may take long."""
    for entries in (False, True):
        groups = read_dump(json.loads(dump(entries, False)))  # noqa: FBT003  torch's: entries, only active ones
        if entries or len(groups) == 1:
            yield RankCalls(groups=groups, whole=entries)


def read_dump(dump: Mapping[str, Any]) -> dict[str, GroupCalls]:
    """Returns the collectives in a dump of NCCL's flight recorder, by name of the process group."""
    entries: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in dump.get("entries", ()):
        entries[entry["process_group"][0]].append(entry)
    config, states = dump.get("pg_config", {}), dump.get("pg_status", {})
    known = {name: str(found[0]["pg_id"]) for name, found in entries.items()}
    if len(config) == 1 and states and not known:
        known = dict(zip(config, states, strict=False))
    told = len(known) == len(states)  # then groups without a state have called nothing
    return {
        name: _calls(tuple(json.loads(group["ranks"])), entries[name], states.get(known.get(name)), told=told)
        for name, group in config.items()
    }


def _calls(
    ranks: tuple[int, ...], entries: Sequence[Mapping[str, Any]], state: Mapping[str, Any] | None, *, told: bool
) -> GroupCalls:
    if state is None:
        return GroupCalls(ranks=ranks, called=0 if told else None)
    called, ended = (max(0, int(state[f"last_{what}_collective"])) for what in ("enqueued", "completed"))
    single = {entry["p2p_seq_id"] for entry in entries if entry["is_p2p"]}
    collectives = [entry for entry in entries if not entry["is_p2p"]]
    done = [entry for entry in entries if entry["state"] == "completed"]
    # Coalesced calls have an entry for each, which never ends, and one for all. Collectives end in their order.
    single -= {entry["p2p_seq_id"] for entry in done if entry["is_p2p"]}
    ended = max([ended, *(entry["collective_seq_id"] for entry in done if not entry["is_p2p"])])
    called = max([called, ended, *(entry["collective_seq_id"] for entry in collectives)])
    pending = {entry["collective_seq_id"]: _words(entry) for entry in collectives}
    return GroupCalls(
        ranks=ranks,
        called=called,
        ended=ended,
        pending={number: words for number, words in pending.items() if number > ended},
        point_to_point=bool(single),
    )


def _words(entry: Mapping[str, Any]) -> str:
    sizes = zip(entry.get("input_dtypes", ()), entry.get("input_sizes", ()), strict=False)
    tensors = [f"{dtype.lower()}{list(size)}" for dtype, size in sizes]
    several = f"{len(tensors)} x " if len(tensors) > 1 else ""
    name = entry["profiling_name"].removeprefix("nccl:").removeprefix("gloo:")
    return f"{name} of {several}{', '.join(dict.fromkeys(tensors))}" if tensors else name


def stall(answers: Mapping[int, RankCalls], backend: str = "NCCL", elsewhere: Collection[int] = ()) -> Stall | None:
    """Returns the collectives in which ranks wait and the rank that they wait for, or None if no rank waits.

    Only process groups whose ranks have all answered are examined. Within a group, ranks wait for a rank that has not
    called the collective and is not waiting. ``elsewhere`` has the ranks that wait, but for no recorded collective.
    """
    groups = {name: group for answer in answers.values() for name, group in answer.groups.items()}
    lines: dict[str, list[int]] = {}
    for name, group in groups.items():
        if set(group.ranks) <= answers.keys():
            members = {rank: answers[rank].groups.get(name, GroupCalls(ranks=(), called=0)) for rank in group.ranks}
            lines |= {f"{backend}: {line}": late for line, late in _late(group.ranks, members).items()}
    waiting = {rank for rank, answer in answers.items() if any(group.waits for group in answer.groups.values())}
    waiting |= {*elsewhere}
    roots = {line: sorted({*ranks} - waiting) for line, ranks in lines.items()}
    guilty = {rank for ranks in roots.values() for rank in ranks}
    if lines:
        told = [line for line, ranks in roots.items() if ranks] or [*lines]
        return Stall(text="\n".join(told), rank=next(iter(guilty)) if len(guilty) == 1 else None)
    if len(groups) == 1:
        return _mismatch(answers, next(iter(groups)), backend)
    return None


def _late(ranks: tuple[int, ...], members: Mapping[int, GroupCalls]) -> dict[str, list[int]]:
    """Returns {sentence for the error message: ranks that the others in the group wait for}; {} if no rank waits."""
    calls = {rank: member.called for rank, member in members.items() if member.called is not None}
    waiting = [rank for rank, member in members.items() if member.called is not None and member.called > member.ended]
    if len(calls) < len(members) or not waiting:
        return {}
    most = max(calls[rank] for rank in waiting)
    behind = [rank for rank in calls if rank not in waiting and calls[rank] < most]
    if not behind:
        return {}
    least = min(calls[rank] for rank in behind)
    late = [rank for rank in behind if calls[rank] == least]
    what = next((members[rank].pending[least + 1] for rank in waiting if least + 1 in members[rank].pending), "")
    has = "has" if len(late) == 1 else "have"
    waits = "waits" if len(waiting) == 1 else "wait"
    line = (
        f"{numbers(late)} {has} not called collective {least + 1}{f', {what},' if what else ''} of the group of "
        f"{numbers(ranks)}: {numbers(waiting)} {waits} in it"
    )
    return {line: late}


def _mismatch(answers: Mapping[int, RankCalls], name: str, backend: str) -> Stall | None:
    """Returns a stall if all ranks wait, and their first unfinished collectives differ; else None."""
    members = {rank: answer.groups[name] for rank, answer in answers.items() if name in answer.groups}
    ranks = next(iter(members.values())).ranks
    if set(ranks) != set(members) or not all(member.waits for member in members.values()):
        return None
    number = 1 + min(member.ended for member in members.values())
    words = {rank: member.pending.get(number, "") for rank, member in sorted(members.items())}
    kinds = {rank: text.partition(" ")[0] for rank, text in words.items()}
    called = grouped((rank, words[rank] if kind in _EVEN else kind) for rank, kind in kinds.items())
    if len(called) == 1 or "" in called:
        return None
    odd = minority([*called.values()])
    listed = "; ".join(f"{numbers(who)}: {what}" for what, who in called.items())
    return Stall(
        text=f"{backend}: collective {number} differs between ranks: {listed}", rank=odd[0] if len(odd) == 1 else None
    )
