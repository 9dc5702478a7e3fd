"""Traces of real ranks: what is in them, how they are merged, and what a run writes and tells."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ddpperf.analysis.traces.reading import times_of
from pytest_ddpperf.errors import TraceError
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.communication import merged
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.phases import CommunicationProfile
from pytest_ddpperf.run.call import traces
from pytest_ddpperf.run.call.traces import file_name, groups_of, pairs_of, read_traces, write_beside
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob, TraceJob, rank_file
from pytest_ddpperf.training.preparing import profile_launch
from pytest_ddpperf.training.subject import Workload
from tests.factories import make_variant

WORKLOAD = Workload(
    model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)),
    batch=lambda: (torch.rand(8, 64), torch.zeros(8, 64)),
    loss=torch.nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
    samples_per_step=8,
)

ROUNDING = 2e-3  # microseconds
PARTS = [
    "zero_grad",
    "forward_pass",
    "backward_pass",
    "gradient_sync",
    "gradient_clipping",
    "optimizer_step",
    "lr_scheduling",
]


def profiled(
    launcher: Launcher,
    folder: Path,
    name: str,
    subject: Any,
    *,
    ranks: int = 2,
    strategy: str | None = None,
    **given: Any,
) -> CommunicationProfile:
    """Profiles a subject on real ranks, which write their traces."""
    resolved = None if strategy is None else resolve(strategy)
    job = LaunchJob(subject, resolved, Settings(**given), Plan(warmup=3, steps=1), samples_per_step=8)
    trace = TraceJob(str(folder), name)
    found = launcher.run(profile_launch, job, trace, world_size=ranks, backend="gloo", device="cpu").values
    return merged(found)


@pytest.fixture(scope="module")
def ddp(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommunicationProfile]:
    """The folder with the traces of four ranks, and what the run tells of the same steps."""
    folder = tmp_path_factory.mktemp("traces") / "made"
    given = {"clip_grad_norm": 1.0, "profile_steps": 4, "profile_warmup": 2}
    return folder, profiled(launcher, folder, "ddp", WORKLOAD, ranks=4, strategy="ddp", **given)


def document(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / rank_file("ddp", rank)).read_text())
    return found


@pytest.mark.parametrize("rank", [0, 3])
def test_each_rank_has_a_trace_whose_steps_and_their_parts_are_named_ranges(ddp: tuple[Path, Any], rank: int) -> None:
    events = [event for event in document(ddp[0], rank)["traceEvents"] if event.get("cat") == "user_annotation"]
    steps = [event for event in events if event["name"] in {"warmup_step", "step", "last_step"}]
    steps.sort(key=lambda event: event["ts"])
    assert [event["name"] for event in steps] == ["warmup_step"] * 2 + ["step"] * 4 + ["last_step"]
    for step in steps:
        inside = [event for event in events if step["ts"] < event["ts"] < step["ts"] + step["dur"]]
        inside.sort(key=lambda event: event["ts"])
        names = [event["name"] for event in inside if not re.search("[.:]", event["name"])]
        assert list(dict.fromkeys(names)) == PARTS  # of which the model and the loss are two ranges


@pytest.mark.parametrize("file", ["ddp_rank_0_trace.json", "ddp_merged_trace.json"])
def test_a_trace_keeps_the_rules_of_its_format(ddp: tuple[Path, Any], file: str) -> None:
    """Perfetto drops what breaks them: each event needs a time and a process, and those of a thread nest."""
    write_beside(ddp[0], "ddp", 4)
    threads: dict[tuple[Any, Any], list[tuple[float, float]]] = defaultdict(list)
    events = json.loads((ddp[0] / file).read_text())["traceEvents"]
    assert {event["ph"] for event in events} <= set("XMCisf")
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], (int, str))
        assert event["ph"] == "M" or isinstance(event["ts"], (int, float))
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    flows = Counter((event["id"], event["ph"]) for event in events if event["ph"] in "sf" and event["cat"] == "fwdbwd")
    assert flows
    assert set(flows.values()) == {1}
    for spans in threads.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            around = [outer for outer in around if outer > start + ROUNDING]
            assert not around or end <= around[-1] + ROUNDING
            around.append(end)


def test_the_learning_rate_is_a_counter_with_a_value_for_each_step(ddp: tuple[Path, Any]) -> None:
    events = document(ddp[0], 1)["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    steps = [event for event in events if event.get("name") in {"warmup_step", "step", "last_step"}]
    assert [event["args"]["group 0"] for event in counters] == [0.1 * 0.5**number for number in range(3, 10)]
    for counter, step in zip(counters, sorted(steps, key=lambda event: event["ts"]), strict=True):
        assert step["ts"] <= counter["ts"] <= step["ts"] + step["dur"]


def test_the_summary_agrees_with_the_profile_of_the_run(ddp: tuple[Path, CommunicationProfile]) -> None:
    folder, profile = ddp
    times = [times_of(trace) for trace in read_traces(sorted(folder.glob("ddp_rank_*")))]
    assert [each.rank for each in times] == [0, 1, 2, 3]
    assert sum(each.communicated for each in times) / 4 == pytest.approx(profile.busy, rel=1e-3)
    assert sum(each.overlapped for each in times) / 4 == pytest.approx(profile.overlapped, rel=1e-3, abs=2e-8)
    assert sum(each.step for each in times) / 4 == pytest.approx(profile.step, rel=1e-3)


def test_traces_of_four_ranks_are_aligned_within_the_reported_uncertainty(ddp: tuple[Path, Any]) -> None:
    """All ranks are on one machine here, whose clock they share: whatever they are moved by is an error."""
    folder = ddp[0]
    told = write_beside(folder, "ddp", 4)
    assert told[0].startswith(
        "merged on the clock of rank 0, aligned by the ends of 4 common collectives; moved: rank 1 by "
    )
    written = json.loads((folder / "ddp_merged_trace.json").read_text())
    clocks = written["ddpperf"]["clocks"]
    assert [each["rank"] for each in clocks] == [0, 1, 2, 3]
    for each in clocks[1:]:
        assert abs(each["clock_ahead_s"]) <= each["uncertainty_s"] + 20e-6  # how exactly kineto converts its clock
        assert 0 < each["uncertainty_s"] < 1
    processes = Counter(event["pid"] // 1000 for event in written["traceEvents"])
    assert sorted(processes) == [0, 1, 2, 3]
    assert (folder / "ddp_summary.txt").read_text() == "\n\n".join(told) + "\n"


def test_traces_are_compared_with_the_reference_even_if_clocks_differ(ddp: tuple[Path, Any], tmp_path: Path) -> None:
    """In the later ones the clock of rank 1 is ahead, and an operator has another name."""
    ahead = 0.25
    for name, other in (("before", "aten::addmm"), ("after", "aten::sort")):
        for rank in (0, 1):
            changed = document(ddp[0], rank)
            changed["distributedInfo"]["world_size"] = 2
            for event in changed["traceEvents"]:
                event["name"] = other if event["name"] == "aten::addmm" else event["name"]
                event["ts"] = event.get("ts", 0) + ahead * 1e6 * (rank == 1 and name == "after")
            (tmp_path / rank_file(name, rank)).write_text(json.dumps(changed))
    told = write_beside(tmp_path, "after", 2, "before")
    _, second = json.loads((tmp_path / "after_merged_trace.json").read_text())["ddpperf"]["clocks"]
    assert abs(second["clock_ahead_s"] - ahead) <= second["uncertainty_s"] + 20e-6
    assert told[-1].startswith("A: the reference; B: this checkout\n")
    assert re.search("^aten::sort +operator .* added$", told[-1], re.MULTILINE)
    ((before, after),) = pairs_of(tmp_path / "before", tmp_path / "after")
    assert [len(files) for _, files in (before, after)] == [2, 2]


def test_a_rank_whose_trace_is_on_another_node_is_named(ddp: tuple[Path, Any], tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / rank_file("ddp", rank)).write_text(json.dumps(document(ddp[0], rank)))
    (tmp_path / "gone_merged_trace.json").touch()
    told = write_beside(tmp_path, "ddp", 4)
    assert told[0] == "the traces of ranks 1, 3 are on other nodes, in a folder of the same name"
    assert "stragglers: unknown, because a rank is missing" in told[-1]
    assert write_beside(tmp_path, "gone", 2) == [
        f"this node has no trace of gone in {tmp_path}; look into the same folder on other nodes"
    ]
    assert not (tmp_path / "gone_merged_trace.json").exists()  # of an earlier run


def variant(name: str, *, reference: bool = False) -> Variant:
    return make_variant(name, of_reference=reference)


@pytest.mark.parametrize(
    ("test", "name", "file"),
    [
        ("perf/test_text.py::test_step[bf16-ddp]", "ddp", "perf.test_text.test_step-bf16-ddp.ddp.w2"),
        ("t.py::Test::test_x", "ddp[bucket_cap_mb=5]", "t.Test.test_x.ddp-bucket_cap_mb=5.w2"),
        ("../t.py::test_x", "weak", "t.test_x.weak.w2"),
    ],
)
def test_the_name_of_a_file_has_the_test_and_the_benchmark(test: str, name: str, file: str) -> None:
    assert file_name(test, variant(name)) == file
    assert file_name(test, variant(name, reference=True)) == f"{file}.reference"


@pytest.mark.parametrize("parameter", ["../../etc/passwd", "a\0b", "é", "..", "x" * 500])
def test_names_of_traces_stay_in_their_folder_and_are_unique(parameter: str, tmp_path: Path) -> None:
    name = file_name(f"t.py::test[{parameter}]", variant("ddp"))
    file = (tmp_path / rank_file(name, 0)).resolve()
    file.touch()
    assert file.parent == tmp_path.resolve()
    assert re.fullmatch(r"[A-Za-z0-9_.,=+-]{1,200}", name)
    assert not name.startswith((".", "-"))
    others = {
        file_name(f"t.py::test[{each}]", variant("ddp")) for each in (f"{parameter}?", f"{parameter}!", parameter)
    }
    assert len(others) == 3


def test_trace_files_are_grouped_by_benchmark(tmp_path: Path) -> None:
    for folder in ("A", "B"):
        (tmp_path / folder).mkdir()
        for name in ("x_rank_0_trace.json", "x_rank_1_trace.json", "y_rank_0_trace.json.gz", "x_merged_trace.json"):
            (tmp_path / folder / name).touch()
    a, b = tmp_path / "A", tmp_path / "B"
    os.mkfifo(a / "x_rank_2_trace.json")  # for whose writer nobody waits
    assert {Path(name).name: len(files) for name, files in groups_of([a]).items()} == {"x": 2, "y": 1}
    assert [len(files) for files in groups_of([a / "x", b / "x_rank_1_trace.json"]).values()] == [2, 1]
    (tmp_path / "other.json").touch()
    assert list(groups_of([tmp_path / "other.json"])) == [str(tmp_path)]
    with pytest.raises(TraceError, match=r"there is no trace at .*/z: name a folder"):
        groups_of([a / "z"])
    (a / "y_rank_0_trace.json.gz").unlink()
    (b / "x_rank_0_trace.json").unlink()
    (b / "x_rank_1_trace.json").rename(b / "z_rank_1_trace.json")
    (a / "w_rank_1_trace.json").touch()
    with pytest.raises(TraceError, match=r"have no benchmark of the same name: .* of each folder, such as .*/A/"):
        pairs_of(a, b)


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"x" * 1000)
    files = {
        "bad.json": b"{",
        "bad.json.gz": b"no gzip",
        "list.json": b"[]",
        "deep.json": b"[" * 200_000,
        "torn.json.gz": packed[:12],
        "garbled.json.gz": packed[:10] + b"\xff" * 20,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match=rf"/{name} (is not a Chrome trace|cannot be read): "):
            read_traces([tmp_path / name])


@pytest.mark.parametrize("name", ["large.json", "large.json.gz"])
def test_a_trace_of_many_bytes_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(traces, "MOST_BYTES", 1000)
    content = b" " * 1001
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(TraceError, match=rf"/{name} has more than 1e\+03 bytes: trace fewer steps$"):
        read_traces([tmp_path / name])


SUITE = """
import pytest
import torch
from pytest_ddpperf import Workload

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=0.2, tolerance="1000%", backend="gloo", device="cpu",
    verify=False, communication=False,
)
workload = Workload(
    model=lambda: torch.nn.Linear(8, 4),
    batch=lambda: (torch.randn(6, 8), torch.zeros(6, 4)),
    loss=torch.nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=6,
)


def test_traced(ddpperf):
    measured = ddpperf.check(workload, strategy="ddp")
    assert measured.profile.busy > 0
"""


def test_a_run_writes_traces_into_the_folder_and_prints_their_paths(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_suite=SUITE)
    run = inner.runpytest("--ddpperf-profile=made/traces", "test_suite.py")
    run.assert_outcomes(passed=1)
    folder, name = inner.path / "made" / "traces", "test_suite.test_traced.ddp.w2"
    assert {file.name for file in folder.iterdir()} == {
        f"{name}_{end}" for end in ("rank_0_trace.json", "rank_1_trace.json", "merged_trace.json", "summary.txt")
    }
    run.stdout.fnmatch_lines(
        [f"made/traces/{name}_summary.txt: merged on the clock of rank 0, aligned by the ends of 5 common *"]
    )
    assert [path.name for path in (inner.path / "made").iterdir()] == ["traces"]
