"""What is not as expected, in words; the numbers are small enough to be read off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.judge.expectations import misnamed, require_counts, unexpected, unsaid
from pytest_ddpperf.records.counts import COLLECTIVES
from pytest_ddpperf.records.ranks import merged
from tests.factories import make_counts, make_measurement


@pytest.mark.parametrize(
    ("collectives", "totals", "reason"),
    [
        (None, {}, "nothing is expected; name counts, such as optimizer_steps=1"),
        ({}, {}, None),  # no collectives at all is something to expect
        ({"all_reduce": 1}, {"flops": 2.5}, None),
        ({"all_reduce": "1"}, {}, "all_reduce is expected to be '1', which is not a number"),
        (
            None,
            {"calls": {"all_reduce": 1}},
            "a count calls is one number; expect calls of several collectives as collectives={'all_reduce': 1}",
        ),
        (["all_reduce"], {}, "collectives=['all_reduce']: expected calls by collective, such as {'all_reduce': 3}"),
        (None, {"flops": None}, "flops is expected to be None, which is not a number"),
        (None, {"flops": True}, "flops is expected to be True, which is not a number"),
    ],
)
def test_what_cannot_be_held_against_counts_is_told(
    collectives: object, totals: Mapping[str, object], reason: str | None
) -> None:
    assert unsaid(collectives, totals) == reason


@pytest.mark.parametrize("collectives", [["all_reduce"], 5])
def test_collectives_without_their_numbers_are_refused(collectives: Any) -> None:
    measured = make_measurement(counts=make_counts({"collective_calls": {"all_reduce": 3}}))
    with pytest.raises(SettingError, match=r"^ddpperf.expect: collectives=.*: expected calls by collective, such as"):
        require_counts([measured], collectives, {})


def test_misnamed_expectations_are_told_with_what_was_meant() -> None:
    known = make_counts({"collective_calls": {"all_reduce": 3}}, flops=1e6)
    assert misnamed(known, ["all_reduce", "send"], ["flops"]) is None
    listed = f"There are {', '.join(COLLECTIVES)}"
    assert misnamed(known, ["allreduce"], []) == f"there is no collective allreduce; did you mean all_reduce? {listed}"
    found = misnamed(known, [], ["collective"])
    assert found == "there is no count collective; did you mean collectives? There are collective_calls, flops"


def test_what_is_as_expected_gives_no_line() -> None:
    found = make_counts({"collective_calls": {"all_reduce": 3.0}, "optimizer_steps": {"SGD": 1.0}})
    assert unexpected(found, {"all_reduce": 3}, {"optimizer_steps": 1}) == []
    assert unexpected(found, {"all_reduce": 2}, {"optimizer_steps": 2}) == [
        "expected 2 all_reduce calls per step, counted 3",
        "expected optimizer_steps 2 per step, counted 1 (SGD 1)",
    ]


def test_what_is_expected_is_expected_of_every_rank() -> None:
    first = make_counts({"collective_calls": {"all_reduce": 3.0}, "optimizer_steps": {"SGD": 1.0}})
    second = make_counts({"collective_calls": {"all_reduce": 2.0}, "optimizer_steps": {}}, optimizer_steps=0.0)
    assert unexpected(merged([first, first]), {"all_reduce": 3}, {"optimizer_steps": 1}) == []
    assert unexpected(merged([first, second]), {"all_reduce": 3}, {"optimizer_steps": 1}) == [
        "expected collective_calls 3 per step on every rank, counted rank 1: 2",
        "expected optimizer_steps 1 per step on every rank, counted rank 1: 0",
    ]
    assert unexpected(merged([first, second]), None, {}) == []
    assert unexpected(merged([first, *[second] * 7]), None, {"optimizer_steps": 1}) == [
        (
            "expected optimizer_steps 1 per step on every rank, "
            "counted rank 1: 0, rank 2: 0, rank 3: 0, rank 4: 0, rank 5: 0, 2 more"
        )
    ]


def test_what_is_not_the_same_in_every_step_is_not_as_expected() -> None:
    """Though the step with the most does what is expected; what nobody asked for may differ."""
    reason = "all_reduce 2 in one step, 3 in the next"
    restless = {"collective_calls": reason, "operators": "aten.mm 1 in one step, 2 in the next"}
    found = make_counts({"collective_calls": {"all_reduce": 3.0}, "operators": {"aten.mm": 2.0}}, restless)
    told = [f"expected collective_calls to be the same in every step: {reason}"]
    assert unexpected(found, {"all_reduce": 3}, {}) == told
    assert unexpected(found, None, {"collective_calls": 2}) == told
    assert unexpected(found, None, {}) == []
