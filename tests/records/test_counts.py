"""Counts of several ranks in one; the numbers are small enough to be read off."""

from __future__ import annotations

from pytest_ddpperf.records.ranks import merged
from tests.factories import make_counts

MIB = 2.0**20


def test_equal_ranks_are_merged_into_the_same_counts() -> None:
    one = make_counts({"operators": {"aten.mm": 3.0}}, {"operators": "aten.mm 3 in one step, 4 in the next"})
    assert merged([one, one]) == one


def test_of_unequal_ranks_the_largest_count_is_taken_and_all_are_kept() -> None:
    small = make_counts({"operators": {"aten.mm": 3.0}, "flops": {"model": 8.0}})
    large = make_counts({"operators": {"aten.mm": 4.0}, "flops": {"model": 8.0}})
    both = merged([small, large, small])
    assert both.totals == {"operators": 4.0, "flops": 8.0}
    assert both.details["operators"] == {"aten.mm": 4.0}
    assert both.by_rank == {"operators": (3.0, 4.0, 3.0)}


def test_a_metric_that_one_rank_lacks_is_a_difference() -> None:
    both = merged([make_counts({"operators": {}}), make_counts({"operators": {}, "flops": {"model": 8.0}})])
    assert both.by_rank == {"flops": (0.0, 8.0)}
    assert both.details["flops"] == {"model": 8.0}


def test_a_metric_that_the_profiler_of_one_rank_could_not_count_is_omitted() -> None:
    seen = make_counts({"operators": {}, "kernel_launches": {"gemm": 2.0}})
    assert merged([seen, seen]).totals["kernel_launches"] == 2.0
    assert merged([seen, make_counts({"operators": {}})]).totals.keys() == {"operators"}


def test_a_count_that_is_unstable_on_one_rank_is_unstable_and_names_the_rank() -> None:
    steady = make_counts({"operators": {"aten.mm": 3.0}})
    restless = make_counts({"operators": {"aten.mm": 3.0}}, {"operators": "aten.mm 2 in one step, 3 in the next"})
    assert merged([steady, restless]).unstable == {"operators": "rank 1: aten.mm 2 in one step, 3 in the next"}


def test_the_repr_of_counts_is_a_line_with_the_most_important_ones() -> None:
    several = make_counts(
        {"operators": {"aten.mm": 3.0}, "collective_bytes": {"all_reduce": 4 * MIB}, "ddp_buckets": {}}
    )
    assert repr(several) == "<Counts collective_bytes 4.00 MiB, operators 3, 1 more>"
    assert repr(make_counts({"operators": {"aten.mm": 3.0}})) == "<Counts operators 3>"
    assert repr(make_counts({})) == "<Counts of nothing>"
