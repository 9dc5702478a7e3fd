"""What is set up otherwise explains a count in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.sites import SETTINGS, CallSite
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.causes import causes
from pytest_ddpperf.reports.count_changes import difference_text
from pytest_ddpperf.reports.setup_changes import setup_changes
from tests.reports.made import counted, make_result

DDP, UNUSED = "DistributedDataParallel", "DistributedDataParallel: find_unused_parameters=True"
BLOCKS, HEAD = "fully_shard of Block", "fully_shard of Head"
SGD, ADAM, MOMENTUM = "optimizer SGD", "optimizer Adam", "optimizer SGD: momentum=0.9"
CHECKPOINTS = "activation checkpointing"
CALLS, PEAK, STATE = "collective_calls", "peak_tensor_bytes", "model_state_bytes"
SENT = "collective_send_bytes"
MIB = 2.0**20


def site(part: str, line: int = 7, value: float = 1.0) -> CallSite:
    return CallSite(part=part, file="train.py", line=line, function="build", source=f"line {line}", value=value)


def counts(*parts: str | CallSite, details: Any = None, **totals: float) -> Counts:
    """Counts of a training that is set up with these."""
    sites = tuple(site(each) if isinstance(each, str) else each for each in parts)
    every = {CALLS: 1.0, "optimizer_steps": 1.0, PEAK: 9 * MIB, STATE: MIB, **totals}
    made_of = {CALLS: {"all_reduce": every[CALLS]}, "optimizer_steps": {"SGD": 1.0}, **(details or {})}
    return Counts(totals=every, details=made_of, unstable={}, sites={SETTINGS: sites} if sites else {})


@pytest.mark.parametrize(
    ("metric", "then", "now", "told"),
    [
        (
            CALLS,
            counts(DDP),
            counts(DDP, UNUSED, collective_calls=2.0),
            ["DistributedDataParallel has find_unused_parameters=True now: made at train.py:7 in build"],
        ),
        (
            CALLS,
            counts(DDP, UNUSED, collective_calls=2.0),
            counts(DDP),
            ["DistributedDataParallel has no find_unused_parameters=True any more: made at train.py:7 in build"],
        ),
        (
            PEAK,
            counts(DDP, f"{DDP}: bucket_cap_mb=5"),
            counts(DDP, f"{DDP}: bucket_cap_mb=50", peak_tensor_bytes=10 * MIB),
            ["DistributedDataParallel has bucket_cap_mb=50 now, 5 before: made at train.py:7 in build"],
        ),
        (
            PEAK,
            counts(site(BLOCKS, value=6.0), "fully_shard of Model"),
            counts("fully_shard of Model", peak_tensor_bytes=10 * MIB),
            ["fully_shard of 6 Block modules is lost: previously created at train.py:7 in build"],
        ),
        (
            STATE,
            counts(SGD),
            counts(ADAM, model_state_bytes=2 * MIB),
            ["the optimizer is Adam, SGD before: made at train.py:7 in build"],
        ),
        (
            STATE,
            counts(SGD),
            counts(SGD, MOMENTUM, model_state_bytes=2 * MIB),
            ["SGD has momentum=0.9 now: made at train.py:7 in build"],
        ),
        (
            SENT,
            counts(BLOCKS, f"{BLOCKS}: mesh=(1, 2)", collective_calls=20.0, collective_send_bytes=3 * MIB),
            counts(
                BLOCKS,
                f"{BLOCKS}: mesh=(2, 1)",
                collective_calls=5.0,
                collective_send_bytes=4 * MIB,
                model_state_bytes=2 * MIB,
            ),
            ["fully_shard of Block has mesh=(2, 1) now, (1, 2) before: made at train.py:7 in build"],
        ),
        (
            SENT,
            counts(BLOCKS, HEAD, *(f"{kind}: mesh=(1, 2)" for kind in (BLOCKS, HEAD)), collective_send_bytes=3 * MIB),
            counts(BLOCKS, HEAD, *(f"{kind}: mesh=(2, 1)" for kind in (BLOCKS, HEAD)), collective_send_bytes=4 * MIB),
            ["fully_shard of Block and Head have mesh=(2, 1) now, (1, 2) before: made at train.py:7 in build"],
        ),
        (
            PEAK,
            counts(SGD),
            counts(SGD, "backward: retain_graph=True", peak_tensor_bytes=10 * MIB),
            ["backward has retain_graph=True now: at train.py:7 in build"],
        ),
        (
            CALLS,
            counts(DDP),
            counts(DDP, site(DDP, 9), collective_calls=2.0),
            ["DistributedDataParallel is new: made at train.py:9 in build"],
        ),
        (PEAK, counts(BLOCKS), counts("fully_shard of Renamed", peak_tensor_bytes=10 * MIB), []),
        (CALLS, counts(DDP), counts(DDP, f"{DDP}: gradient_as_bucket_view=True", collective_calls=2.0), []),
        (CALLS, counts(DDP), counts(DDP, UNUSED), []),
        (CALLS, counts(), counts(DDP, UNUSED, collective_calls=2.0), []),
    ],
    ids=[
        *("setting", "lost setting", "other value", "lost units", "another optimizer"),
        *("of an optimizer", "of a mesh", "of two kinds", "of backward", "of two wrappers"),
        *("renamed class", "moves another count", "moves nothing", "old baseline"),
    ],
)
def test_a_change_of_the_setup_explains_the_count_that_it_moves(
    metric: str, then: Counts, now: Counts, told: list[str]
) -> None:
    assert setup_changes(metric, then, now) == told


def recomputing(*modules: str, peak: float, line: int = 31, there: int = 6) -> Counts:
    """Counts of a model of blocks, of which these are recomputed."""
    parts = {f"blocks.{number}.up": 1e6 for number in range(there)}
    details = {"flops": parts, "flops_recomputed": dict.fromkeys(modules, 1e6), PEAK: {"activations": peak}}
    made = (site(CHECKPOINTS, line, len(modules)),) if modules else ()
    return counts(SGD, *made, details=details, peak_tensor_bytes=peak, flops=6e6)


def blocks(*numbers: int) -> list[str]:
    return [f"blocks.{number}.up" for number in numbers]


def test_batches_of_another_length_explain_the_flops() -> None:
    short, long = (
        counts(SGD, details={"batch_rows": {f"batches of 8 x {length}": 8.0}}, batch_rows=8.0, flops=64.0 * length)
        for length in (32, 48)
    )
    assert setup_changes("flops", short, long) == ["a step has batches of 8 x 48, batches of 8 x 32 before"]
    assert setup_changes("flops", long, short) == ["a step has batches of 8 x 32, batches of 8 x 48 before"]
    assert setup_changes("flops", long, long) == []


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (recomputing(peak=4 * MIB), "is lost: blocks.0, blocks.1, blocks.2 and 3 more are not recomputed any more"),
        (
            recomputing(*blocks(0, 1), peak=4 * MIB),
            "is lost in part: blocks.2, blocks.3, blocks.4 and 1 more are not recomputed any more",
        ),
        (
            recomputing(*blocks(0, 2, 3), peak=4 * MIB),
            "is lost in part: blocks.1, blocks.4, blocks.5 are not recomputed any more",
        ),
    ],
)
def test_lost_checkpoints_are_called_that_with_blocks_and_line(now: Counts, told: str) -> None:
    first, *others = difference_text(PEAK, recomputing(*blocks(*range(6)), peak=MIB), now)
    assert first == f"activation checkpointing {told}, as they were at train.py:31 in build"
    assert others == ["activations 1.00 MiB -> 4.00 MiB at the peak (+3.00 MiB, +300 %)"]


def test_checkpoints_that_save_more_activations_are_not_reported_as_lost() -> None:
    then, saving = recomputing(*blocks(0), peak=MIB, there=1), recomputing(peak=4 * MIB, there=1)
    now = replace(saving, sites=then.sites)
    assert setup_changes(PEAK, then, now) == [
        "activation checkpointing saves more: blocks.0 is not recomputed any more, checkpointed at train.py:31 in build"
    ]


def test_checkpoints_of_another_line_that_recompute_no_flops_are_not_called_lost() -> None:
    """As if parts of a block are checkpointed, and not the block."""
    then, now = recomputing(*blocks(0, 1), peak=MIB, there=2), recomputing(peak=4 * MIB, there=2)
    (site,) = [each for each in then.sites[SETTINGS] if each.part == CHECKPOINTS]
    moved = replace(site, line=40, source="other", value=8.0)
    now = replace(now, sites={SETTINGS: tuple(moved if each is site else each for each in then.sites[SETTINGS])})
    (told,) = setup_changes(PEAK, then, now)
    assert told.startswith("activation checkpointing is at train.py:40 in build now, and was at train.py:31 in build: ")
    assert told.endswith(": blocks.0, blocks.1 are recomputed without FLOPs")


def test_blocks_that_are_gone_have_not_lost_their_checkpoints() -> None:
    fewer = recomputing(*blocks(0, 1, 2), peak=4 * MIB, there=3)
    assert setup_changes(PEAK, recomputing(*blocks(*range(6)), peak=MIB), fewer) == []


def test_of_bytes_that_a_setting_explains_the_largest_part_is_named() -> None:
    then, now = (
        counts(DDP, *more, details={PEAK: dict.fromkeys("abc", size)}, peak_tensor_bytes=3 * size)
        for more, size in (((), MIB), ((f"{DDP}: static_graph=True",), 2 * MIB))
    )
    assert difference_text(PEAK, then, now) == [
        "DistributedDataParallel has static_graph=True now: made at train.py:7 in build",
        "a 1.00 MiB -> 2.00 MiB at the peak (+1.00 MiB, +100 %)",
        "and 2 smaller changes",
    ]


def test_lost_checkpoints_are_the_first_cause_also_if_another_count_grew() -> None:
    """Else the memory that they saved would only be a symptom of the other count."""
    then, now = recomputing(*blocks(0), peak=MIB), recomputing(peak=4 * MIB)
    now = replace(now, totals={**now.totals, CALLS: 2.0})
    heads = [
        replace(
            counted(metric, Verdict.REGRESSED),
            note=Finding("count_changed", {"metric": metric, "then": then, "now": now}),
        )
        for metric in (CALLS, PEAK)
    ]
    lost, other = causes(make_result(comparisons=tuple(heads)), heads)
    assert lost.startswith("activation checkpointing is lost: blocks.0 is not recomputed any more")
    assert other == "collective_calls 1 -> 2 calls per step (+1)"
