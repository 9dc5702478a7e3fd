"""Steps under the profiler, torch's notes on their collectives, and their traces as files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.profile import profiling
from pytest_ddpperf.instruments.profile.events import Note, note_of, notes_by_link, notes_in_trace
from pytest_ddpperf.instruments.profile.profiling import completed, notes_of, profile_steps, write_snapshot, write_trace
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.communication import merged
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.phases import RankProfile
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.preparing import profile_launch
from tests.factories import runnable
from tests.training.workloads import workload

# Recorded with torch 2.13: a part of event.extra_meta().
WITH_EVENT = {
    "Seq": "7",
    "Collective name": '"_reduce_scatter_base"',
    "dtype": '"BFloat16"',
    "In msg nelems": "16",
    "Group size": "2",
    "Process Group Ranks": '"[0, 1]"',
    "Out msg nelems": "8",
}
# Recorded with torch 2.11: an event of the exported trace.
IN_TRACE = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "record_param_comms",
    "args": {
        "External id": 7,
        "Collective name": "_reduce_scatter_base",
        "dtype": "BFloat16",
        "Out msg nelems": 8,
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
        "In msg nelems": 16,
    },
}
SCATTERED = Note(kind="reduce_scatter", nbytes=32.0, ranks=2)  # 16 of 2 bytes


def fields(name: str, dtype: str = "Float", count: int = 10) -> dict[str, Any]:
    return {"Collective name": name, "dtype": dtype, "In msg nelems": count, "Group size": 4}


def test_notes_of_events_and_of_traces_are_the_same() -> None:
    assert note_of(WITH_EVENT) == SCATTERED
    trace = {"traceEvents": [{"ph": "M", "name": "process_name"}, {"name": "aten::add", "args": {}}, IN_TRACE]}
    assert {number: note_of(found) for number, found in notes_in_trace(trace).items()} == {7: SCATTERED}


@pytest.mark.parametrize(
    ("name", "dtype", "kind", "nbytes"),
    [
        ("allreduce", "Half", "all_reduce", 20.0),
        ("_allgather_base", "Byte", "all_gather", 10.0),
        ("_broadcast_oop", "Float8_e4m3fn", "broadcast", 10.0),
        ("all_to_allv", "Long", "all_to_all", 80.0),
        ("barrier", "Novel", "barrier", None),  # NCCL's kernel would call it an all-reduce
    ],
)
def test_notes_have_the_names_of_the_other_backend_and_bytes_by_number_and_type(
    name: str, dtype: str, kind: str, nbytes: float | None
) -> None:
    assert note_of(fields(name, dtype)) == Note(kind=kind, nbytes=nbytes, ranks=4)


def test_a_wait_is_no_collective() -> None:
    assert note_of(fields("wait")) is None
    assert note_of({}) is None


def test_a_note_that_stands_for_several_kernels_belongs_to_none() -> None:
    noted = {7: WITH_EVENT, 8: fields("broadcast"), 9: fields("wait")}
    assert notes_by_link([7, 8, 8, 9, 0, 0], (), noted) == {7: SCATTERED}


PARAMETERS = 2 * (64 * 64 + 64)


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))


def profile_all(ctx: RankContext) -> dict[str, RankProfile]:
    """The profile of each strategy, and of a collective among both ranks while there is a group of rank 0 alone."""
    subject = workload(model=two_layers, batch=lambda: (torch.rand(8, 64), torch.zeros(8, 64)))
    jobs = {
        strategy: LaunchJob(subject, resolve(strategy), Settings(), Plan(warmup=3, steps=1))
        for strategy in runnable(["naive", "ddp", "fsdp2"])
    }
    found = {strategy: profile_launch(ctx, job) for strategy, job in jobs.items()}
    dist.new_group([0])
    return {**found, "group": profile_steps(lambda: dist.all_reduce(torch.ones(8)), 1, ctx.device)}


@pytest.fixture(scope="module")
def profiles(launcher: Launcher) -> dict[str, tuple[RankProfile, ...]]:
    """What the ranks report of each."""
    ranks = launcher.run(profile_all, world_size=2, backend="gloo", device="cpu").values
    return {name: tuple(rank[name] for rank in ranks) for name in ranks[0]}


@pytest.mark.parametrize(
    ("strategy", "collectives"),
    [
        ("naive", [("all_reduce", size * 4) for size in (64 * 64, 64, 64 * 64, 64)]),
        ("ddp", [("all_reduce", PARAMETERS * 4)]),
        # Each rank puts in its half; gloo scatters by an all-reduce of the whole.
        ("fsdp2", [("all_gather", PARAMETERS * 2), ("all_reduce", PARAMETERS * 4)]),
    ],
)
def test_all_collectives_of_a_step_are_there_with_their_bytes(
    profiles: dict[str, tuple[RankProfile, ...]], strategy: str, collectives: list[tuple[str, int]]
) -> None:
    for rank in profiles[strategy]:
        assert len(rank.steps) == Settings().profile_steps
        for step in rank.steps:
            assert Counter((collective.kind, collective.nbytes) for collective in step.collectives) == Counter(
                collectives
            )
            assert 0 <= step.overlapped <= min(step.busy, step.computed)
            assert step.busy + step.computed - step.overlapped <= step.seconds * (1 + 1e-9)
            assert step.computed > 0
            assert step.busy > 0


def test_a_smaller_group_is_reported(profiles: dict[str, tuple[RankProfile, ...]]) -> None:
    """Gloo's spans tell no group, so then nobody knows which ranks met."""
    assert {name for name, ranks in profiles.items() if ranks[0].subgroups} == {"group"}
    ranks = profiles["group"]
    assert {collective.ranks for rank in ranks for step in rank.steps for collective in step.collectives} == {None}
    assert merged(ranks).unplaced


def test_only_ddp_has_a_window(profiles: dict[str, tuple[RankProfile, ...]]) -> None:
    assert {strategy for strategy, ranks in profiles.items() if ranks[0].window is not None} == {"ddp"}
    window = merged(profiles["ddp"]).window
    assert window is not None
    assert window.communication > 0


NOTED = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Group size": 2}


def event(name: str, activity: str, own: int, linked: int, **more: Any) -> Any:
    """An event as the profiler records it."""
    values = {"name": name, "activity_type": activity, "correlation_id": own, "linked_correlation_id": linked}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in (values | more).items()})


def recorded(**note: Any) -> list[Any]:
    """A collective as the profiler records it on CUDA: torch's note, the call on the host, the kernel."""
    return [
        event("c10d::allreduce_", "cpu_op", 4, 0),
        event("record_param_comms", "cpu_op", 5, 0, **note),
        event("cudaLaunchKernelExC", "cuda_runtime", 90, 5),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", 90, 5),
        event("sgemm", "kernel", 91, 4),
    ]


def refuse() -> dict[str, Any]:
    raise AssertionError("the trace is not to be saved")


def trace_of_note() -> dict[str, Any]:
    return {"traceEvents": [{"name": "record_param_comms", "args": {"External id": 5, **NOTED}}]}


@pytest.mark.parametrize(
    ("note", "trace"),
    [({"extra_meta": {name: json.dumps(value) for name, value in NOTED.items()}}, refuse), ({}, trace_of_note)],
    ids=["with the event", "in the trace"],
)
def test_a_kernel_of_nccl_is_known_by_the_note_that_it_is_linked_to(
    note: dict[str, Any], trace: Callable[[], dict[str, Any]]
) -> None:
    assert notes_of(recorded(**note), trace) == {5: Note(kind="all_reduce", nbytes=1024.0, ranks=2)}


def test_copies_that_are_linked_to_a_note_without_a_kernel_send_its_collective() -> None:
    """Of note 5 a kernel sends, and a copy of the operator's own stands beside it; of note 7 two copies do."""
    fields = {name: json.dumps(value) for name, value in NOTED.items()}
    events = [
        *recorded(extra_meta=fields),
        event("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 92, 5),
        event("record_param_comms", "cpu_op", 7, 0, extra_meta=fields),
        event("Memcpy PtoP (Device -> Device)", "gpu_memcpy", 93, 7),
        event("Memcpy PtoP (Device -> Device)", "gpu_memcpy", 94, 7),
        event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 95, 4),
    ]
    assert notes_of(events, refuse) == {
        5: Note(kind="all_reduce", nbytes=1024.0, ranks=2),
        7: Note(kind="all_reduce", nbytes=None, ranks=2, copied=True),
    }


def test_a_trace_is_saved_once_for_notes_and_for_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to save it twice: "Trace is already saved"."""
    read = list[Mapping[str, Any]]()

    def look(_recorded: object, trace: Callable[[], Mapping[str, Any]]) -> dict[int, Note]:
        read.append(trace())
        return {}

    monkeypatch.setattr(profiling, "notes_of", look)
    one = torch.ones(1)
    found = profile_steps(lambda: one + 1, 1, torch.device("cpu"), exported=lambda trace: read.append(trace()))
    assert (found.steps[0].busy, found.steps[0].collectives) == (0, ())
    assert read[0] is read[1]
    assert "aten::add" in {found["name"] for found in read[0]["traceEvents"]}


def test_without_nccl_nothing_is_noted() -> None:
    assert notes_of([event for event in recorded() if event.name() != "record_param_comms"], refuse) == {}


SAVED: dict[str, Any] = {
    "baseTimeNanoseconds": 1_000_000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "X", "cat": "user_annotation", "name": "warmup_step", "ts": 50, "dur": 10, "pid": 7},
        {"ph": "X", "cat": "user_annotation", "name": "step", "ts": 60, "dur": 10, "pid": 7},
    ],
}


def counters(rates: Any) -> list[tuple[str, float, dict[str, float]]]:
    events = completed(SAVED, 3, rates)["traceEvents"]
    return [(event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]


def test_learning_rates_are_a_counter_at_the_time_of_each_step() -> None:
    notes = (1_040_000, (0.5,)), (1_055_000, (0.1, 0.2)), (1_065_000, (0.2, 0.4))  # the first one before the trace
    assert counters([notes]) == [
        ("learning rate", 55, {"group 0": 0.1, "group 1": 0.2}),
        ("learning rate", 65, {"group 0": 0.2, "group 1": 0.4}),
    ]
    of_two = counters([notes[1:2], ((1_056_000, (0.3,)),)])
    assert [name for name, *_ in of_two] == ["learning rate 0", "learning rate 1"]


def test_a_trace_names_its_process_by_rank_and_its_steps_as_other_tools_expect(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x_rank_3_trace.json"
    write_trace(SAVED, file, 3, [])
    written = json.loads(file.read_text())
    assert written["traceEvents"][0]["args"]["name"] == "rank 3"
    assert written["traceEvents"][1:3] == SAVED["traceEvents"][1:]
    (added,) = written["traceEvents"][3:]
    assert (added["name"], added["ts"], added["dur"]) == ("ProfilerStep#0", 60, 10)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(SettingError, match=r"^--ddpperf-profile=.*/taken: x.json cannot be written: .*; name a folder"):
        write_trace(SAVED, tmp_path / "taken" / "x.json", 0, [])


class Memory:
    """Stands in for ``torch.cuda.memory``."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.calls = wrong, list[object]()

    def _record_memory_history(self, enabled: object = "all", max_entries: int = 0) -> None:
        if self.wrong == "record":
            raise RuntimeError("this allocator records nothing\nC++ stack")
        self.calls.append(enabled)

    def _dump_snapshot(self, file: str) -> None:
        if self.wrong == "dump":
            raise RuntimeError("no snapshot")
        Path(file).write_bytes(b"snapshot")


@pytest.mark.parametrize(
    ("wrong", "reason"), [("", ""), ("record", "this allocator records nothing"), ("dump", "no snapshot")]
)
def test_a_snapshot_is_written_or_a_reason_returned_and_the_steps_run_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, reason: str
) -> None:
    memory, ran, file = Memory(wrong), list[int](), tmp_path / "x_rank_0_memory.pickle"
    monkeypatch.setattr(torch.cuda, "memory", memory)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    told = write_snapshot(lambda: ran.append(1), 2, torch.device("cuda"), file)
    assert (told, len(ran), file.exists()) == (reason, 2, not wrong)
    assert memory.calls == ([] if wrong == "record" else ["all", None])
