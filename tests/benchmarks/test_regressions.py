"""The corpus of public regressions is well-formed, its page is what its results say, and two of its cases are red."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from benchmarks.regressions import run
from benchmarks.regressions.case import Case, CaseError, all_cases, changed
from benchmarks.regressions.page import PAGE, page
from benchmarks.regressions.run import Judged
from pytest_ddpperf.records.counts import COUNTS

CASES = all_cases()
SHOWN = [case for case in CASES.values() if not case.left_out]
LOST = Case(
    number=1,
    name="lost",
    title="a line is lost",
    threads=("owner/repository#1",),
    program="first()\nsecond()\n",
    worse=(("second()", "third()"),),
    line="third()",
    red=frozenset({"collective_calls"}),
    same=frozenset({"flops"}),
    cause="all_reduce 1 -> 2",
)


@pytest.mark.parametrize("number", CASES)
def test_a_case_names_its_thread_and_has_a_title(number: int) -> None:
    case = CASES[number]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in case.threads)
    assert case.threads
    assert case.title


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case.name)
def test_a_case_has_two_versions_a_guilty_line_and_metrics_that_have_to_be_red(case: Case) -> None:
    better, worse = case.better_text(), case.worse_text()
    assert better != worse
    for text in (better, worse, case.twin_text()):
        compile(text, case.name, "exec")
    assert case.line in worse.splitlines()[case.guilty() - 1]
    assert case.cause
    assert case.red or case.verdict == "broken"
    assert not case.red & case.same
    assert case.blind or case.red | case.same | case.trade <= {"step_time"} | set(COUNTS)
    assert case.clock is ("step_time" in case.red)


def test_there_are_enough_cases_and_a_third_has_a_harmless_variant() -> None:
    assert len(SHOWN) >= 40
    assert sum(case.twin_text() != case.better_text() for case in SHOWN) >= len(SHOWN) / 3


@pytest.mark.parametrize(("text", "times"), [("", 0), ("x = 1\nx = 1\n", 2)])
def test_a_change_has_exactly_one_place(text: str, times: int) -> None:
    with pytest.raises(CaseError, match=f"occurs {times} times"):
        changed(text, (("x = 1", "x = 2"),))


def judged(said: str = "", red: Sequence[str] = (), better: Sequence[str] = (), verdict: str = "regressed") -> Judged:
    return Judged(verdict=verdict, red=tuple(red), better=tuple(better), said=said, seconds=1.0)


def test_a_row_says_which_expectations_hold() -> None:
    line = LOST.guilty()
    said = f"collective_calls regressed, counted: all_reduce\n  1 -> 2 calls per step: the new one at lost.py:{line}"
    right = run.row(LOST, judged(said, ["collective_calls"]), judged(verdict="improved"), None)
    assert (right.lacking, right.moved, right.cause, right.line, right.both) == ((), (), True, True, True)
    wrong = run.row(LOST, judged(f"at lost.py:{line}0", ["flops"]), judged(verdict="improved"), None)
    assert (wrong.lacking, wrong.moved, wrong.cause, wrong.line) == (("collective_calls",), ("flops",), False, False)


def test_the_page_is_written_from_the_results() -> None:
    again = "python benchmarks/regressions/run.py --page writes it again"
    assert PAGE.read_text() == page(CASES, list(run.kept().values())), again


@pytest.mark.slow
def test_two_cases_are_red_and_their_harmless_variants_are_not() -> None:
    rows = run.run([CASES[3], CASES[7]])
    assert [(row.verdict, row.lacking, row.moved, row.cause, row.line) for row in rows] == [
        ("regressed", (), (), True, True)
    ] * 2
    assert [(row.twin, row.back) for row in rows] == [("unchanged", "improved")] * 2
