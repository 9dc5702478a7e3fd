"""Changes of counts in words: in each step, or in some of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.rhythm import rhythm_of
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.count_changes import difference_text

Steps = tuple[float, ...]
TENTH = (41.0, *(1.0,) * 9)


def counted(metric: str, **steps: Steps) -> Counts:
    """Counts of a step whose parts have these values in the steps of a period."""
    means = {part: sum(values) / len(values) for part, values in steps.items()}
    varying = {part: (2 * values,) for part, values in steps.items() if len(set(values)) > 1}
    whole = tuple(found for (found,) in varying.values())
    return Counts(
        totals={metric: sum(means.values())},
        details={metric: means},
        unstable={},
        varying={metric: {"": whole, **varying}} if varying else {},
    )


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ((1.0,), (2.0,), "1 -> 2 calls per step (+1)"),
        ((1.0,), TENTH, "1 -> 41 calls in 1 of 10 steps (+40)"),
        (TENTH, (1.0,), "41 -> 1 calls in 1 of 10 steps (-40)"),
        ((0.0,), (0.0, 1.0, 0.0), "0 -> 1 calls in 1 of 3 steps (+1)"),
        ((2.0,), (1.0, 2.0, 2.0), "2 -> 1 calls in 1 of 3 steps (-1)"),
        ((1.0,), (3.0, 2.0, 2.0), "1 -> 2 calls per step (+1), 3 in 1 of 3 steps"),
        ((3.0, 2.0, 2.0), (1.0,), "2 -> 1 calls per step (-1), before 3 in 1 of 3 steps"),
        ((2.0, 1.0, 1.0), (4.0, 1.0, 1.0), "2 -> 4 calls in 1 of 3 steps (+2)"),
        ((2.0, *(1.0,) * 4), (2.0, 1.0, 1.0), "2 calls in 1 of 5 steps -> 2 in 1 of 3 steps, 1 in others"),
        ((1.0, *(0.0,) * 4), (1.0, 0.0), "in 1 of 5 steps -> in 1 of 2 steps"),
        ((4096.0,), (8192.0, 4096.0), "4.00 KiB -> 8.00 KiB in 1 of 2 steps (+4.00 KiB, +100 %)"),
        ((4096.0,), (65536.0,), "4.00 KiB -> 64.0 KiB per step (+60.0 KiB)"),  # a multiple has no percentage
    ],
)
def test_work_of_some_steps_is_reported_with_their_share(then: Steps, now: Steps, told: str) -> None:
    metric = "collective_bytes" if "KiB" in told else "collective_calls"
    (line,) = difference_text(metric, counted(metric, all=then), counted(metric, all=now))
    assert line == f"all {told}"


def test_the_only_part_of_a_count_has_the_rhythm_of_the_whole() -> None:
    then, now = counted("synchronisations", item=(1.0, 0.0)), counted("synchronisations", item=(1.0,))
    then = replace(then, varying={"synchronisations": {"": ((1.0, 0.0) * 2,)}})
    assert difference_text("synchronisations", then, now) == [
        "item 0 -> 1 waits for the device per step (+1), before 1 in 1 of 2 steps"
    ]


def test_a_mean_that_is_a_sum_of_fractions_leaves_nothing_in_other_steps() -> None:
    """Three barriers in 1 of 5 steps; 0.2 + 0.4 is 0.6000000000000001."""
    now = counted("collective_calls", barrier=(3.0, *(0.0,) * 4))
    metric, mean = "collective_calls", 0.2 + 0.4
    sites = tuple(CallSite(part="barrier", file="fit.py", line=line, value=line / 5) for line in (1, 2))
    now = replace(now, totals={metric: mean}, details={metric: {"barrier": mean}}, sites={metric: sites})
    assert difference_text(metric, counted(metric, barrier=(0.0,)), now) == [
        "barrier 0 -> 3 calls in 1 of 5 steps (+3): 2 new ones at fit.py:2, the new one at fit.py:1"
    ]


def test_operators_that_one_rhythm_adds_have_that_rhythm_each() -> None:
    """Operators have a rhythm together, not one each."""
    then, now = counted("operators", mul=(9.0,), add=(4.0,)), counted("operators", mul=(29.0, 9.0), add=(14.0, 4.0))
    rare = (30.0, 0.0) * 2
    now = replace(now, varying={"operators": {"": (rare,)}})
    assert rhythm_of(rare).mean + then.totals["operators"] == now.totals["operators"]
    assert difference_text("operators", then, now) == [
        "mul 9 -> 29 in 1 of 2 steps (+20)",
        "add 4 -> 14 in 1 of 2 steps (+10)",
    ]


def test_lines_of_work_of_some_steps_add_up_to_the_work_of_these_steps() -> None:
    def at(line: int, value: float) -> CallSite:
        return CallSite(part="all", file="train.py", line=line, function="f", source=str(line), value=value)

    then, now = counted("collective_calls", all=(1.0,)), counted("collective_calls", all=TENTH)
    then, now = (
        replace(counts, sites={"collective_calls": sites})
        for counts, sites in ((then, (at(1, 1.0),)), (now, (at(1, 1.0), at(7, 4.0))))
    )
    assert difference_text("collective_calls", then, now) == [
        "all 1 -> 41 calls in 1 of 10 steps (+40): 40 new ones at train.py:7 in f"
    ]
