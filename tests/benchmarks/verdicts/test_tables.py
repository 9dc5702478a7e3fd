"""Tables of real runs: counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.verdicts.outcomes import Outcome, SuiteOutcome
from benchmarks.verdicts.tables import (
    agreement_lines,
    goal_lines,
    notable_lines,
    notable_suite_lines,
    report,
    suite_table,
    table,
)

OUTCOME = Outcome("pauses-busy", 0, "3f2a1c0", "cpu-2c", "2026-01-12T10:00:00+00:00", 80.0, verdict="regressed")


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


def suite(cell: str, number: int, red: int = 0, green: int = 0, inconclusive: int = 0, **fields: Any) -> SuiteOutcome:
    """A run that took 310 s of 320 s in all; benchmarks are named by number, the red ones first."""
    words = ["regressed"] * red + ["unchanged"] * green + ["inconclusive"] * inconclusive
    verdicts = {f"b{place}": word for place, word in enumerate(words)}
    made = SuiteOutcome(cell, number, "3f2a1c0", "cpu-2c", OUTCOME.began, 320.0, verdicts=verdicts, took=310.0)
    return replace(made, **fields)


PLANTED = {"test_small[naive]": "regressed", "test_small[ddp]": "regressed", "test_larger": "regressed"}
SUITES = [
    suite("suite-same", 0, green=19, inconclusive=1, others=0.02),
    suite("suite-same", 1, red=1, green=18, inconclusive=1, took=330.0, seconds=340.0, said="b0: step_time +0.1"),
    suite("suite-same", 2, red=20, left_out="not quiet"),
    suite("suite-10%", 0, green=17, planted=PLANTED, true={"test_larger": 0.11, "test_small[ddp]": 0.08}),
    suite("suite-10%", 1, green=17, planted={**PLANTED, "test_larger": "ok"}, true={"test_larger": 0.05}),
    suite("suite-10%", 2, planted=dict.fromkeys(PLANTED, "none"), took=None, said="pytest ended\nINTERNALERROR"),
]


def test_suites_are_counted_by_benchmark() -> None:
    """Planted: three and two of nine were found. Medians of 310 and 330 s, and of 320 and 340 s."""
    same, planted = suite_table(SUITES).rows
    assert same[:8] == ("suite-same", "2", "10", "1", "1", "37", "2", "-")
    assert same[8:] == ("-", "-", "320", "330", "2%", "330")
    assert planted[:8] == ("suite-10%", "3", "20", "0", "0", "34", "0", "5 of 9")
    assert planted[8:] == ("+5.0%", "+11.0%", "310", "310", "-", "320")


def test_goals_of_suites_are_meant_of_benchmarks_tests_and_runs() -> None:
    """Of 40 benchmarks in two runs 37 were green; a run without results counts as one that is neither red nor green."""
    text = goal_lines(SUITES)
    assert [line.rpartition(" [")[0] for line in text] == [
        "goal, suite-same: red never: 1 of 40, 2.5 %",
        "goal, suite-same: green at least 95%: 37 of 40, 92.5 %",
        "goal, suite-same: ended within 320 s always: 1 of 2, 50.0 %",
        "goal, suite-10%: red never: 0 of 35, 0.0 %",
        "goal, suite-10%, test_small[naive]: red at least 95%: 2 of 3, 66.7 %",
        "goal, suite-10%, test_small[ddp]: red at least 95%: 2 of 3, 66.7 %",
        "goal, suite-10%, test_larger: red at least 95%: 1 of 3, 33.3 %",
    ]
    assert text[0].endswith("[0 .. 13], missed, 8 runs to come")
    assert text[3].endswith("[0 .. 10], reached, 17 runs to come")


def test_false_alarms_and_misses_of_suites_are_shown_and_what_is_open_most_often() -> None:
    assert notable_suite_lines(SUITES)[1:] == [
        f"  suite-same #1, {OUTCOME.began}: b0: step_time +0.1",
        "  suite-same, open most often: b19 (2 of 2)",
        f"  suite-10% #1, {OUTCOME.began}: missed test_larger",
        f"  suite-10% #2, {OUTCOME.began}: {'; '.join(f'missed {test}' for test in PLANTED)}; INTERNALERROR",
    ]
    assert notable_suite_lines(SUITES[:0]) == []


def test_both_kinds_of_runs_have_a_table_of_their_own() -> None:
    text = report([*RUNS, *SUITES])
    assert "11 runs by tree 3f2a1c0 on cpu-2c" in text
    assert text.index("pauses-busy") < text.index("suite-same")
    alone = report(SUITES)
    assert "its own step times" not in alone
    assert "truly slower" in alone
