"""``ddpperf trace`` on traces made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from tests.analysis.traces.made_traces import collective, document, event, step
from tests.cli.running import Run

MS = 1000.0


def write(folder: Path, name: str, product: float, *, more: bool = False) -> None:
    """Two ranks, of which the second one comes 1 ms later to an all-reduce."""
    folder.mkdir(exist_ok=True)
    for rank in (0, 1):
        extra = [event("aten::sort", 8 * MS, 9 * MS), collective(9 * MS, 9.5 * MS, 1)] if more else []
        events = [step(0, 10 * MS), event("aten::mm", 0, product), collective((3 + rank) * MS, 5 * MS, 250), *extra]
        (folder / f"{name}_rank_{rank}_trace.json").write_text(json.dumps(document(rank, 2, *events)))


def test_a_summary_has_each_rank_and_who_comes_last(tmp_path: Path, printed: Run) -> None:
    write(tmp_path / "A", "x", 4 * MS)
    lines = printed("trace", "summary", tmp_path / "A", "--merge", tmp_path / "all.json").splitlines()
    assert lines[0] == f"{tmp_path}/A/x: 2 ranks, 1 step"
    rows = [line.split() for line in lines if line.split()[:1] in (["0"], ["1"])]
    assert rows == [
        ["0", "10.0", "4.00", "(40", "%)", "2.00", "(20", "%)", "50", "5.00", "(50", "%)"],
        ["1", "10.0", "4.00", "(40", "%)", "1.00", "(10", "%)", "0", "5.00", "(50", "%)"],
    ]
    waits = "a rank waits 500 us of a step for the last rank, and the transfer takes 1.00 ms"
    assert f"rank 1 came last to 100 % of the collectives; {waits}" in lines
    assert lines[-1] == (
        "merged on the clock of rank 0, aligned by the ends of 1 common collective; moved: rank 1 by 0 s +- 2.00 ms"
    )
    assert {each["pid"] // 1000 for each in json.loads((tmp_path / "all.json").read_text())["traceEvents"]} == {0, 1}


def test_a_difference_has_totals_and_names_what_changed(tmp_path: Path, printed: Run) -> None:
    write(tmp_path / "A", "x", 4 * MS)
    write(tmp_path / "B", "x", 6 * MS, more=True)
    lines = printed("trace", "diff", tmp_path / "A", tmp_path / "B").splitlines()
    assert lines[:4] == [f"A: {tmp_path}/A/x", f"B: {tmp_path}/B/x", "", "a step: 10.0 ms -> 10.0 ms, +0.0 %"]
    assert [line.split() for line in lines[7:12]] == [
        ["all", "operator", "1", "2", "4.00", "7.00", "total"],
        ["all", "collective", "1", "2", "1.50", "2.00", "total"],
        ["aten::sort", "operator", "-", "1", "-", "1.00", "added"],
        ["all_reduce", "of", "4", "B", "collective", "-", "1", "-", "0.500", "added"],
        ["aten::mm", "operator", "1", "1", "4.00", "6.00", "slower"],
    ]
    assert "2 more changes not shown" in printed("trace", "diff", tmp_path / "A", tmp_path / "B", "--most", "1")
    assert "aten::mm" not in printed("trace", "diff", tmp_path / "A", tmp_path / "B", "--least", "30%")


def test_what_cannot_be_shown_is_named(tmp_path: Path, complaint: Run) -> None:
    write(tmp_path / "A", "x", 4 * MS)
    write(tmp_path / "A", "y", 4 * MS)
    assert f"--merge: {tmp_path} cannot be written: " in complaint(
        "trace", "summary", tmp_path / "A" / "x", "--merge", tmp_path
    )
    assert complaint("trace", "summary", tmp_path / "gone").startswith(
        f"ddpperf: error: there is no trace at {tmp_path}/gone: name a folder"
    )
    assert "--merge=all.json merges traces of one benchmark, not of 2: name one" in complaint(
        "trace", "summary", tmp_path / "A", "--merge", "all.json"
    )
    (tmp_path / "A" / "x_rank_0_trace.json").write_text("{")
    assert "x_rank_0_trace.json is not a Chrome trace: " in complaint(
        "trace", "diff", tmp_path / "A" / "x", tmp_path / "A" / "y"
    )
