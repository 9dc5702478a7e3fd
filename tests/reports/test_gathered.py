"""Tests of remarks that several benchmarks share."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.reports.gathered import gathered, remark_of

MIB = 2**20


def told(code: str, *facts: dict[str, Any]) -> str:
    (note,) = gathered((f"test_{number}", remark_of(Finding(code, each))) for number, each in enumerate(facts))
    assert note.names == tuple(f"test_{number}" for number in range(len(facts)))
    return note.text


@pytest.mark.parametrize(
    ("code", "first", "second", "words"),
    [
        (
            "oversubscribed",
            {"ranks": 2, "threads": 2, "shared": 3, "resource": "core"},
            {"ranks": 2, "threads": 4, "shared": 3, "resource": "core"},
            (
                "oversubscribed: 2 ranks with 2 to 4 threads each are on 3 cores; step times say little about real "
                "hardware"
            ),
        ),
        (
            "oversubscribed",
            {"ranks": 2, "threads": 1, "shared": 1, "resource": "core"},
            {"ranks": 4, "threads": 1, "shared": 1, "resource": "core"},
            "oversubscribed: 2 to 4 ranks share 1 core; step times say little about real hardware",
        ),
        (
            "busy_baseline",
            {"lost": 0.5},
            {"lost": 0.25},
            (
                "the machine was busy while the baseline was saved (others took 25 % to 50 % of the cores): its times "
                "alone decide nothing; its commit is the reference"
            ),
        ),
        (
            "busy",
            {"now": None, "then": 0.2},
            {"now": 0.4, "then": 0.3},
            ("stored times decide nothing: others took 40 % of the cores and 20 % to 30 % when the baseline was saved"),
        ),
        (
            "not_gross",
            {"gross": 0.5},
            {"gross": 0.5},
            "slower than the stored times, and not shown to be by more than 50 %, which they could show",
        ),
        (
            "gpu_used_by_others",
            {"pid": 7, "nbytes": None, "seen": 1, "launches": 4},
            {"pid": 9, "nbytes": 3 * MIB, "seen": 2, "launches": 4},
            "process 7 used 3.00 MiB of a GPU of the ranks in 3 of 8 launches: outside_allocator is left out",
        ),
        (
            "unread_gpus",
            {"reasons": ("a: lost",), "seen": 1, "launches": 4},
            {"reasons": ("a: lost", "b: lost"), "seen": 2, "launches": 4},
            "clocks and other processes of GPUs are not known in 3 of 8 launches: a: lost; b: lost",
        ),
        (
            "memory_growth",
            {"device": "cpu", "least": MIB, "most": 2 * MIB, "ranks": (1,), "world_size": 2, "steps": 4, "launches": 2},
            {"device": "cpu", "least": MIB, "most": MIB, "ranks": (0, 1), "world_size": 4, "steps": 9, "launches": 2},
            (
                "memory grows by 1.00 MiB to 2.00 MiB a step on ranks 0 and 1, seen in 4 to 9 steps of each of 2 "
                "launches: something is kept from step to step"
            ),
        ),
        (
            "outlying_launches",
            {"outlying": ((1, 0.5),), "launches": 4},
            {"outlying": ((2, 0.5), (3, 0.7)), "launches": 4},
            "3 of 8 launches are far from the median step time",
        ),
    ],
)
def test_facts_of_several_benchmarks_are_told_at_once(
    code: str, first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    assert told(code, first, second) == words


def test_what_has_no_common_words_is_told_of_each_benchmark() -> None:
    notes = gathered((name, remark_of(Finding("cold_cache", {"misses": name}))) for name in ("a", "b"))
    assert [(note.text, note.names) for note in notes] == [
        ("cold_cache: misses=a", ("a",)),
        ("cold_cache: misses=b", ("b",)),
    ]
