"""Where seconds go: spans of launches that overlap, counted by hand."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from benchmarks import time_spent
from benchmarks.time_spent import CASES, ROWS, Launched, Span, Spent, at, measured, parts, spent, table, union
from pytest_ddpperf.reports.table import render


def launched(*spans: tuple[str, float, float], timed: float = 0.0, measuring: bool = True) -> Launched:
    return Launched(measuring, tuple(Span(*span) for span in spans), timed)


ALONE = launched(
    *(("launch", 0.0, 10.0), ("rank", 1.0, 9.5), ("build", 1.0, 2.0), ("warm-up", 2.0, 4.0), ("timed", 4.0, 7.0)),
    *(("growth", 7.5, 8.0), ("diagnosis", 8.0, 9.5)),
    timed=2.75,
)


def test_of_calls_within_calls_the_innermost_counts() -> None:
    """From 7 to 7.5 s the rank does what has no name; from 0 to 1 and 9.5 to 10 s it starts and ends."""
    found = {kind: seconds for kind, seconds in at([ALONE]).items() if seconds}
    assert found == {
        "launch": 1.5,
        "rank": 0.5,
        "build": 1.0,
        "warm-up": 2.0,
        "timed": 3.0,
        "growth": 0.5,
        "diagnosis": 1.5,
    }


def test_of_launches_that_take_turns_the_one_that_is_at_work_counts() -> None:
    """Both wait for a quarter of a second at the hand-over, and one while the other is still warming up."""
    all_along = ("launch", 0.0, 6.0)
    first = launched(
        *(all_along, ("warm-up", 0.0, 1.0), ("timed", 1.0, 6.0), ("waiting", 1.0, 2.0), ("waiting", 4.0, 6.0))
    )
    other = launched(all_along, ("warm-up", 0.0, 2.0), ("timed", 2.0, 6.0), ("waiting", 2.0, 4.25))
    found = {kind: seconds for kind, seconds in at([first, other]).items() if seconds}
    assert found == {"warm-up": 2.0, "timed": 3.75, "waiting": 0.25}


def test_all_parts_together_are_the_whole() -> None:
    """A second passes between the launches, in which results are judged; 0.25 s of 3 s of timing were no steps."""
    later = launched(("launch", 11.0, 12.0))
    found = parts([later, ALONE], 12.0)
    assert found["timed steps"] == 2.75
    assert found["turns, waiting"] == 0.25
    assert found["other"] == 0.5 + 1.0
    assert found["start and end of ranks"] == 2.5
    assert sum(found.values()) == pytest.approx(12.0)
    assert parts([], 0.0) == dict.fromkeys(ROWS.values(), 0.0)


def test_time_counts_once_however_many_launches_there_were() -> None:
    spans = [Span("launch", *ends) for ends in ((5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.75))]
    assert union(spans) == 4.0
    assert union([]) == 0.0


def lines() -> list[str]:
    timed = {"spans": [("launch", 3.0, 5.0), ("timed", 3.5, 5.0)], "missing": ["_diagnosis"], "timed": 1.5}
    noted: list[dict[str, Any]] = [
        {
            "function": "verify_launch",
            "variant": "ddp",
            "other": False,
            "spans": [("launch", 0.0, 1.0)],
            "checked": 0.5,
        },
        {"function": "any", "variant": "ddp", "other": False, "spans": [("launch", 0.5, 2.0)], "checked": 0.25},
        {"function": "run_launch", "variant": "ddp", "other": False, **timed},
        {"test": "perf/test_training.py::test_step", "seconds": 7.0},
    ]
    return [json.dumps(line) for line in noted]


def test_what_is_not_timed_prepares() -> None:
    found = spent(lines())
    assert (found.test, found.preparing, found.checking, found.measuring) == (7.0, 2.0, 0.75, 2.0)
    assert found.launches == (2, 1)
    assert (found.parts["timed steps"], found.parts["start and end of ranks"]) == (1.5, 0.5)
    assert found.missing == ("_diagnosis",)


def test_seconds_are_printed_with_their_shares() -> None:
    text = render(table(dict.fromkeys(CASES, spent(lines())), "a step of 60ms, 2 ranks", 20.0))
    assert text.startswith("a step of 60ms, 2 ranks, max_time 20 s;")
    rows = {line[:26].strip(): line[26:].split() for line in text.splitlines()}
    assert rows["preparing"] == ["2.0", "10%"] * 2
    assert rows["verifying and counting"] == ["0.8", "4%"] * 2
    assert rows["measuring"] == ["2.0", "10%", "100%"] * 2
    assert rows["timed steps"] == ["1.5", "8%", "75%"] * 2
    assert rows["launches"] == ["2+1"] * 2
    assert "not told apart, for the plugin has none: _diagnosis" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_benchmark_that_was_not_measured_has_no_shares() -> None:
    nothing = Spent(1.0, 0.5, 0.0, 0.0, dict.fromkeys(ROWS.values(), 0.0), (1, 0))
    assert "0.5" in render(table({"alone": nothing}, "a step", 20.0))


class Worker:
    def work(self, seconds: float) -> float:
        return seconds


def test_calls_are_noted_where_there_is_such_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("workers")
    module.Worker = Worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workers", module)
    monkeypatch.setattr(Worker, "work", Worker.work)  # is put back
    noted = [
        ("workers", "Worker.work", "timed"),
        ("workers", "Worker.rest", "waiting"),
        ("workers", "no.such", "build"),
    ]
    monkeypatch.setattr(time_spent, "FUNCTIONS", noted)
    value, spans, missing = time_spent.on_rank(None, lambda _, worker: worker.work(2.0), Worker())
    assert value == 2.0
    assert missing == ["Worker.rest", "no.such"]
    (rank, start, end), (kind, began, ended) = spans
    assert (rank, kind) == ("rank", "timed")
    assert start <= began <= ended <= end


@pytest.mark.slow
def test_a_real_benchmark_is_taken_apart() -> None:
    found = measured("4ms", 4.0, 2)
    assert [*found] == [*CASES]
    for case in found.values():
        assert case.missing == ()
        assert case.launches[1] >= 2
        assert 0 < case.parts["timed steps"] < case.measuring < case.test
        assert sum(case.parts.values()) == pytest.approx(case.measuring)
        assert min(case.parts.values()) > -0.01 * case.measuring
