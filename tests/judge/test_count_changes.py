"""Counts judged one by one; the numbers are small enough to be read off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import Counts, merged
from pytest_ddpperf.records.verdict import Verdict

BUCKETS = {"bucket 0": 1.0, "bucket 1": 25.0, "bucket 2": 4.0}


def counts(metric: str, parts: Mapping[str, float]) -> Counts:
    total = float(len(parts)) if metric == "ddp_buckets" else sum(parts.values())
    return Counts(totals={metric: total}, details={metric: parts}, unstable={})


@pytest.mark.parametrize(
    ("metric", "then", "now", "verdict"),
    [
        ("operators", {"aten.mm": 2.0}, {"aten.mm": 2.0}, Verdict.UNCHANGED),
        ("operators", {"aten.mm": 2.0}, {"aten.mm": 3.0}, Verdict.REGRESSED),
        ("operators", {"aten.mm": 2.0}, {"aten.mm": 1.0}, Verdict.IMPROVED),
        ("collective_calls", {"all_reduce": 1.0}, {"broadcast": 1.0}, Verdict.REGRESSED),
        ("collective_bytes", {"all_reduce": 8.0, "send": 2.0}, {"all_reduce": 2.0, "send": 8.0}, Verdict.REGRESSED),
        ("collective_calls", {"all_reduce": 3.0}, {"broadcast": 2.0}, Verdict.IMPROVED),  # fewer in all
        ("optimizer_steps", {"SGD": 1.0}, {"Adam": 1.0}, Verdict.REGRESSED),
        ("ddp_buckets", BUCKETS, {"bucket 0": 1.0, "bucket 1": 20.0, "bucket 2": 9.0}, Verdict.REGRESSED),
        ("ddp_buckets", BUCKETS, {"bucket 0": 1.0, "bucket 1": 20.0, "bucket 2": 4.0}, Verdict.IMPROVED),
        ("ddp_buckets", BUCKETS, {**BUCKETS, "bucket 3": 1.0}, Verdict.REGRESSED),
        ("collective_bytes", {"all_reduce": 8.0, "barrier": 0.0}, {"all_reduce": 8.0}, Verdict.UNCHANGED),
    ],
)
def test_more_and_something_else_are_worse_and_less_is_better(
    metric: str, then: dict[str, float], now: dict[str, float], verdict: Verdict
) -> None:
    assert decide_count(metric, counts(metric, then), counts(metric, now)) is verdict


@pytest.mark.parametrize("metric", ["flops", "flops_forward", "graph_breaks"])
def test_another_name_of_a_module_is_no_change(metric: str) -> None:
    assert decide_count(metric, counts(metric, {"head": 8.0}), counts(metric, {"result": 8.0})) is Verdict.UNCHANGED


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        ((3, 0), (3, 2), Verdict.REGRESSED),
        ((3, 0), (3, 3), Verdict.REGRESSED),
        ((3, 0), (2, 1), Verdict.REGRESSED),  # though the most of all ranks fell
        ((3, 2), (3, 0), Verdict.IMPROVED),
        ((3, 3), (3, 0), Verdict.IMPROVED),
        ((3, 2), (3, 2), Verdict.UNCHANGED),
        ((3, 2), (3, 2, 9), Verdict.REGRESSED),  # of another world size; no reason to fail
    ],
)
def test_a_rank_that_does_more_is_worse_though_another_does_most(
    then: tuple[float, ...], now: tuple[float, ...], verdict: Verdict
) -> None:
    before, after = (merged([counts("operators", {"aten.mm": times}) for times in ranks]) for ranks in (then, now))
    assert decide_count("operators", before, after) is verdict


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (("all_reduce", "all_reduce"), ("all_reduce", "send"), Verdict.REGRESSED),
        (("all_reduce", "send"), ("all_reduce", "recv"), Verdict.REGRESSED),
        (("all_reduce", "send"), ("all_reduce", "all_reduce"), Verdict.REGRESSED),
        (("all_reduce", "send"), ("all_reduce", "send"), Verdict.UNCHANGED),
    ],
)
def test_another_collective_on_a_rank_that_is_not_the_first_is_worse(
    then: tuple[str, ...], now: tuple[str, ...], verdict: Verdict
) -> None:
    before, after = (merged([counts("collective_calls", {name: 1.0}) for name in names]) for names in (then, now))
    assert decide_count("collective_calls", before, after) is verdict


def test_a_baseline_from_before_details_were_told_by_rank_is_as_good_as_it_was() -> None:
    now = merged([counts("collective_bytes", {"broadcast": size}) for size in (100.0, 80.0)])
    before = replace(now, details_by_rank={})
    assert decide_count("collective_bytes", before, now) is Verdict.UNCHANGED
