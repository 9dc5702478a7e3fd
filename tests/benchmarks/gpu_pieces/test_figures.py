"""What pieces make of what they measured, by numbers worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_pieces import clocks, failures, launches, several, turns, verdicts
from benchmarks.gpu_pieces.failures import reported
from benchmarks.gpu_pieces.profiles import event_data, summary
from benchmarks.gpu_pieces.pytest_runs import outcome_lines, read_junit
from pytest_ddpperf.against.git import git
from pytest_ddpperf.errors import RankFailed


def test_steps_after_a_warm_up_are_held_against_the_last_half() -> None:
    """100 steps of 20 ms, the first ten of 40 ms: 12 steps take 0.44 s, and half a second is over after 15 steps."""
    steps = [0.04] * 10 + [0.02] * 90
    assert clocks.after_warmup(steps, 5, 0.0) == 1.0  # 15 of these 20 are as fast
    assert clocks.after_warmup([0.04] * 30 + [0.02] * 90, 12, 0.0) == 2.0
    assert clocks.after_warmup([0.04] * 30 + [0.02] * 90, 12, 1.2) == 1.0
    assert clocks.after_warmup(steps, 5, 60.0) is None


def test_clocks_are_compared_block_by_block() -> None:
    found = {"small": {"steps": [[0.1, *[0.02] * 99]], "blocks": [{"2": [[0.04, 0.04], [0.04, 0.05]]}]}}
    text = "\n".join(clocks.lines(found))
    assert "small, waits for the host: first step 100.0 ms, the last half 20.000 ms a step" in text
    assert "blocks of 2 steps: events tell 0.9000 of the wall clock (0.8000 .. 1.0000); 1 of 2 apart by over 5%" in text


def pair(difference: float, seconds: float, blocks: tuple[float, ...] = ()) -> dict[str, Any]:
    return {"difference": difference, "seconds": seconds, "blocks": list(blocks)}


def test_the_kind_of_pairs_that_takes_least_is_named() -> None:
    """Twice the seconds, a third of the scatter: 2/9 of the time for the same certainty."""
    alternating, in_turns = [pair(0.03, 4.0)] * 6, [pair(0.01, 8.0, (0.02, -0.02))] * 6
    assert turns.costs(in_turns) / turns.costs(alternating) == pytest.approx(2 / 9)
    found = {"steps": 50, "pairs": {turns.ALTERNATING: alternating, turns.IN_TURNS: in_turns}}
    *_, of_turns, last = turns.lines(found)
    assert "takes 0.22; by their blocks alone apart by 2.0%" in of_turns
    assert last == "the same certainty takes least where sides take turns in blocks"
    few = {"steps": 50, "pairs": {turns.ALTERNATING: alternating[:3], turns.IN_TURNS: in_turns[:3]}}
    assert turns.lines(few)[-1] == "too few pairs to decide"


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """Of 4 ranks an all-reduce moves each byte 2 x 3/4 times over the slowest link, a gather 3/4 times."""
    assert several.bus_bandwidth("all_reduce", 1e9, 4, 0.01) == pytest.approx(150e9)
    assert several.bus_bandwidth("all_gather", 1e9, 4, 0.01) == pytest.approx(75e9)
    assert several.bus_bandwidth("broadcast", 1e9, 4, 0.01) == pytest.approx(100e9)
    (line,) = several.bandwidth_lines({"ranks": 4, "sizes": {str(2**20): {"all_reduce": 1e-4}}})
    assert line == "     1 MiB, 4 ranks: all_reduce 100 us, 15.7 GB/s"


def test_efficiency_is_told_by_both_maxima() -> None:
    """Ranks whose steps scatter: their maxima add up to 1.25 times the block of the slowest one."""
    found = {"small 1": [{"of steps": 1.0, "of blocks": 1.0}], "small 2": [{"of steps": 1.25, "of blocks": 1.0}]}
    assert several.scaling_lines(found)[2] == "  2 ranks: 0.800, 1.000; 1000.000 ms a step"


def test_the_parts_of_a_launch_are_told_with_the_first_apart() -> None:
    parts = [{"fork": 0.5, "end": 0.1}, {"fork": 0.1, "end": 0.1}, {"fork": 0.3, "end": 0.1}]
    whole = [{"whole": 3.0, "steps": 1.0, "worked": 1.5}]
    told = launches.lines({"zygote": 3.2, "parts": parts, "launches": {"small": whole}})
    assert told[0] == "torch is imported after 3.2 s, once"
    assert told[2].split()[-3:] == ["0.500", "0.200", "0.300"]
    assert told[-1].split() == ["small:", "all", "but", "10", "timed", "steps", "2.000"]  # there is no other launch


def run(verdict: str, change: float | None, share: float = 0.0, **more: Any) -> dict[str, Any]:
    kept = {"red": [], "findings": [], "launches": 6, "seconds": 10.0, "samples": [0.99, 1.01], "bound": 0.08}
    return {**kept, "verdict": verdict, "change": change, "share": share, **more}


def test_verdicts_are_told_by_share() -> None:
    runs = [run("regressed", 0.02, red=["step_time"]), run("ok", 0.01), *[run("regressed", 0.1, 0.1)] * 2]
    told = verdicts.lines({"runs": runs})
    assert told[0].startswith("+0%: red in 50.0 % [")
    assert told[0].endswith("], changed by +1.5%, at most +8.0% (medians): 1 regressed, 1 ok")
    assert told[1:3] == ["  launches scatter by 1.4%, 6 a side", "  RED: step_time"]
    assert told[3].startswith("+10%: red in 100.0 % [")
    assert told[3].endswith("changed by +10.0%, at most +8.0% (medians): 2 regressed")


def test_each_share_has_a_branch_that_differs_from_the_base(tmp_path: Path) -> None:
    verdicts.make_project(tmp_path / "project", [0.0, 0.1], batch=2)
    for share, changed in ((0.0, "2\t0\twork.py"), (0.1, "3\t1\twork.py")):
        assert git(tmp_path / "project", "diff", "--numstat", verdicts.BASE, verdicts.branch_of(share)) == changed


def test_an_error_is_kept_in_words() -> None:
    def fails() -> None:
        raise RankFailed("rank 1 of 2 ran out of memory", rank=1, out_of_memory=True)

    error = reported(fails)
    assert (error["type"], error["rank"], error["memory"]) == ("RankFailed", 1, True)
    assert reported(lambda: None)["type"] == ""
    case = {"title": "out of memory", "right": False, "error": error, "late": None, "next": "", "next_seconds": 0.25}
    told = failures.lines(
        {"cases": [case], "free": 0.98, "hidden": {"is empty": {"cuda": "LaunchError: no", "cpu": ""}}}
    )
    assert told[0].startswith("out of memory: NOT AS IT SHOULD, ")
    assert told[1:3] == ["  RankFailed: rank 1 of 2 ran out of memory", "  the next launch works, 0.2 s"]
    assert told[-3:] == ["CUDA_VISIBLE_DEVICES is empty:", "  cuda: LaunchError: no", "  cpu: works"]


JUNIT = """<testsuites><testsuite>
<testcase classname="t" name="a"/>
<testcase classname="t" name="b"><skipped message="needs a GPU"/></testcase>
<testcase classname="t" name="c"><failure message="assert 1 == 2&#10;more">text</failure></testcase>
<testcase classname="t" name="d"><error message="boom">text</error></testcase>
</testsuite></testsuites>"""


def test_what_became_of_tests_is_read_from_junit() -> None:
    found = read_junit(JUNIT)
    assert found == {"passed": 1, "failed": {"t::c": "assert 1 == 2", "t::d": "boom"}, "skipped": {"needs a GPU": 1}}
    told = outcome_lines({**found, "status": 1, "seconds": 3.2, "said": []})
    assert told[0] == "1 passed, 2 failed, 1 skipped in 3 s"
    assert outcome_lines({"status": 4, "said": ["no such file"]})[0] == "pytest ended with status 4"


def test_events_are_kept_with_all_that_they_tell() -> None:
    event = SimpleNamespace(
        name=lambda: "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        device_type=lambda: SimpleNamespace(name="CUDA"),
        is_user_annotation=lambda: False,
        start_ns=lambda: 1500,
        end_ns=lambda: 2500,
        correlation_id=lambda: 7,
        linked_correlation_id=lambda: 3,
        shapes=lambda: [[8]],
        dtypes=lambda: ["float"],
    )
    data = event_data(event, began=1000)
    assert (data["activity"], data["start_ns"], data["end_ns"]) == ("kernel", 500, 1500)
    assert json.loads(json.dumps(data)) == data
    found = summary([data, {**data, "activity": "cpu_op", "name": "aten::mm"}])
    assert found["activities"] == {"kernel": 1, "cpu_op": 1}
    assert found["names"] == {"kernel: ncclDevKernel_AllReduce_Sum_f32_RING_LL": 1}
