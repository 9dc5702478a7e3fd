"""What differs between two runs is named, with numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.analysis.traces.difference import difference, usage
from pytest_ddpperf.analysis.traces.reading import RankTrace
from tests.analysis.traces.made_traces import collective, event, step, trace

US = 1e-6


def ranks(*events: dict[str, Any]) -> list[RankTrace]:
    """Two ranks that do the same."""
    return [trace(rank, 2, step(0, 1000), *events) for rank in (0, 1)]


BEFORE = ranks(event("aten::mm", 0, 100), event("aten::relu", 100, 150), collective(200, 300))


def test_the_time_of_an_operator_is_its_own() -> None:
    one = trace(
        0,
        1,
        step(0, 500),
        event("aten::linear", 0, 100),
        event("aten::t", 10, 20),
        event("aten::addmm", 20, 90),
        event("aten::empty", 30, 35),
        event("aten::linear", 100, 110),
        event("aten::add", 20, 60, tid=5),  # in another thread
        event("record_param_comms", 200, 300),
        event("aten::late", 500, 600),  # after the step
    )
    uses = usage([one])
    seconds = {name: use.seconds / US for (_, name), use in uses.items()}
    assert seconds == pytest.approx(
        {"aten::linear": 20 + 10, "aten::t": 10, "aten::addmm": 65, "aten::empty": 5, "aten::add": 40}
    )
    assert uses["operator", "aten::linear"].calls == 2


def test_calls_and_seconds_are_means_over_steps_and_ranks() -> None:
    first = trace(0, 2, step(0, 100), event("aten::mm", 0, 40), step(100, 200), event("aten::mm", 100, 120))
    second = trace(1, 2, step(0, 100), step(100, 200), event("aten::mm", 100, 120))
    use = usage([first, second])["operator", "aten::mm"]
    assert (use.calls, use.seconds) == pytest.approx((0.75, 20 * US))


def test_a_slower_operator_an_extra_collective_and_an_operator_that_is_gone_are_named() -> None:
    after = ranks(
        event("aten::mm", 0, 180),
        event("aten::gelu", 180, 200),
        collective(200, 300),
        collective(300, 345),
        collective(350, 360, floats=1),
    )
    found = difference(BEFORE, after)
    told = [(change.word, change.what, change.name, round(change.seconds / US)) for change in found.changes]
    assert told == [
        ("gone", "operator", "aten::relu", -50),
        ("more calls", "collective", "all_reduce of 40 B", 45),
        ("added", "operator", "aten::gelu", 20),
        ("added", "collective", "all_reduce of 4 B", 10),
        ("slower", "operator", "aten::mm", 80),
    ]
    totals = {change.what: (change.calls, round(change.seconds / US)) for change in found.totals}
    assert totals == {"operator": (0, 50), "collective": (2, 55)}
    assert found.steps == pytest.approx((1000 * US, 1000 * US))


def test_a_small_change_of_time_is_reported_if_it_is_asked_for() -> None:
    after = ranks(event("aten::mm", 0, 100), event("aten::relu", 100, 145), collective(200, 300))
    assert difference(BEFORE, after).changes == difference(BEFORE, BEFORE, least=1e-9).changes == ()
    (change,) = difference(BEFORE, after, least=0.004).changes
    assert (change.word, change.name) == ("faster", "aten::relu")


def test_fewer_calls_are_reported_although_they_take_longer() -> None:
    twice = ranks(event("aten::mm", 0, 10), event("aten::mm", 10, 20))
    once = ranks(event("aten::mm", 0, 900))
    (change,) = difference(twice, once).changes
    assert (change.word, change.calls) == ("fewer calls", -1)


def test_kernels_and_copies_are_distinguished() -> None:
    on_gpu = ranks(event("gemm", 0, 10, "kernel"), event("Memcpy HtoD", 0, 5, "gpu_memcpy"))
    uses = usage(on_gpu)
    assert set(uses) == {("kernel", "gemm"), ("copy", "Memcpy HtoD")}
