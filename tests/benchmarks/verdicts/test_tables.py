"""Tables of real runs: counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.verdicts.outcomes import Outcome
from benchmarks.verdicts.tables import agreement_lines, goal_lines, notable_lines, report, table

OUTCOME = Outcome("pauses-busy", 0, "3f2a1c0", "cpu-2c", "2026-01-12T10:00:00+00:00", 80.0, "regressed")


def run(verdict: str, number: int = 0, **fields: Any) -> Outcome:
    return replace(OUTCOME, verdict=verdict, number=number, **fields)


RUNS = [
    run("regressed", red=["step_time"], true=0.5, change=0.48, bound=0.7, steps=40, measuring=50.0, long=True),
    run("inconclusive", 1, true=0.2, change=0.25, bound=0.6, steps=20, measuring=60.0, apart=[0.001, 0.002]),
    run("ok", 2, true=0.3, change=0.3, bound=0.09, steps=30, measuring=58.0, apart=[0.0, 0.3]),
    run("none", 3, said="pytest ended with status 3\nINTERNALERROR"),
    run("regressed", 4, left_out="its mean step is +5.0%: it takes +10%"),
]


def test_runs_are_counted_by_cell() -> None:
    (row,) = table(RUNS).rows
    assert row[:10] == ("pauses-busy", "4", "40", "1, 1 red", "1", "1", "1", "0", "1", "25.0 % [1 .. 81]")
    assert row[10:] == ("+30.0%", "+30.0%", "5.0%", "+60.0%", "1", "20", "58", "80")


def test_goals_say_how_many_runs_are_to_come() -> None:
    assert goal_lines(RUNS) == [
        "goal, pauses-busy: red at least 95%: 1 of 4, 25.0 % [1 .. 81], missed, 36 runs to come",
        "goal, pauses-busy: green never: 1 of 4, 25.0 % [1 .. 81], missed, 36 runs to come",
    ]
    enough = [run("regressed", number) for number in range(40)]
    assert goal_lines(enough)[0] == "goal, pauses-busy: red at least 95%: 40 of 40, 100.0 % [91 .. 100], reached"


def test_what_is_told_is_held_against_the_steps_in_every_run() -> None:
    (line,) = agreement_lines(RUNS)
    assert line.startswith("step time and throughput lie within 1% of what the result's own step times say ")
    assert line.endswith(" in 1 of 2 runs; 30.00% apart at most")


def test_each_run_that_came_out_otherwise_is_shown() -> None:
    assert [line.split(",")[0] for line in notable_lines(RUNS)[1:]] == [
        f"  pauses-busy #{number}" for number in (1, 2, 3)
    ]
    assert notable_lines(RUNS)[-1].endswith(": none, truly - INTERNALERROR")
    same = [run("regressed", cell="same-20s-busy", red=["cpu_time"], true=0.01), run("ok", 1, cell="same-20s-busy")]
    assert notable_lines(same)[1:] == [
        "  same-20s-busy #0, 2026-01-12T10:00:00+00:00: regressed (cpu_time), truly +1.0% "
    ]


def test_trees_and_machines_have_tables_of_their_own() -> None:
    other = replace(RUNS[0], tree="0000000")
    text = report([*RUNS, other])
    assert "5 runs by tree 3f2a1c0 on cpu-2c" in text
    assert "1 runs by tree 0000000 on cpu-2c" in text
    assert "3f2a1c0" not in report([*RUNS, other], "0000000")
    assert report([]) == "there are no runs yet"
