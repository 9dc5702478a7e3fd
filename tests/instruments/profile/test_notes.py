"""Notes beside NCCL's kernels, as torch 2.13 gives them with an event and torch 2.11 writes them into a trace."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.instruments.profile.notes import Note, note_of, notes_in_trace, notes_of_kernels

# Recorded with torch 2.13: event.extra_meta().
WITH_EVENT = {
    "Is asynchronized op": "1",
    "Seq": "7",
    "Collective name": '"_reduce_scatter_base"',
    "Process Group Description": '"default_pg"',
    "dtype": '"BFloat16"',
    "Rank": "0",
    "In msg nelems": "16",
    "Global rank start": "0",
    "Group size": "2",
    "Process Group Ranks": '"[0, 1]"',
    "Out msg nelems": "8",
    "Out split size": '"[]"',
    "In split size": '"[]"',
    "Global rank stride": "1",
    "Process Group Name": '"0"',
}
# Recorded with torch 2.11: an event of the exported trace, without its shapes.
IN_TRACE = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "record_param_comms",
    "ts": 4417128477152.419,
    "dur": 0.291,
    "args": {
        "External id": 7,
        "Record function id": 0,
        "Collective name": "_reduce_scatter_base",
        "Process Group Description": "default_pg",
        "dtype": "BFloat16",
        "Rank": 0,
        "Out msg nelems": 8,
        "Process Group Name": "0",
        "Global rank stride": 1,
        "Out split size": "[]",
        "In split size": "[]",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
        "Global rank start": 0,
        "In msg nelems": 16,
    },
}
SCATTERED = Note("reduce_scatter", 32.0, 2)  # 16 of 2 bytes


def fields(name: str, dtype: str = "Float", count: int = 10) -> dict[str, Any]:
    return {"Collective name": name, "dtype": dtype, "In msg nelems": count, "Group size": 4}


def test_both_versions_say_the_same() -> None:
    assert note_of(WITH_EVENT) == SCATTERED
    trace = {"traceEvents": [{"ph": "M", "name": "process_name"}, {"name": "aten::add", "args": {}}, IN_TRACE]}
    assert {number: note_of(found) for number, found in notes_in_trace(trace).items()} == {7: SCATTERED}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("_broadcast_oop", "broadcast"),
        ("all_to_allv", "all_to_all"),
        ("barrier", "barrier"),  # NCCL's kernel would call it an all-reduce
    ],
)
def test_collectives_have_the_names_of_the_other_backend(name: str, kind: str) -> None:
    assert note_of(fields(name)) == Note(kind, 40.0, 4)


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("Half", 20.0), ("Byte", 10.0), ("Float8_e4m3fn", 10.0), ("Long", 80.0), ("Novel", None)]
)
def test_bytes_follow_from_number_and_type(dtype: str, nbytes: float | None) -> None:
    found = note_of(fields("allreduce", dtype))
    assert found is not None
    assert found.nbytes == nbytes


def test_a_wait_is_no_collective() -> None:
    assert note_of(fields("wait")) is None
    assert note_of({}) is None


def test_a_note_that_stands_for_several_kernels_tells_nothing_of_any() -> None:
    noted = {7: WITH_EVENT, 8: fields("broadcast"), 9: fields("wait")}
    assert notes_of_kernels([7, 8, 8, 9, 0, 0], noted) == {7: SCATTERED}
