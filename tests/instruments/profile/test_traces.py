"""A profile as a file: complete, whole or not there, and of a snapshot's failure the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.profile.traces import completed, write_snapshot, write_trace

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


def test_a_process_has_the_name_of_its_rank_and_steps_have_the_names_that_other_tools_look_for(tmp_path: Path) -> None:
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
