"""What whole runs end with, as files to look at: DDPPERF_GOLDEN=write pytest tests/reports.

From each file alone a reader has to be able to answer four questions. Did the run pass? What got worse? By how much?
What do I do now?
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import columns
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.summary import summary_parts
from tests.factories import failure_text
from tests.reports.failing import FAILURES
from tests.reports.golden_runs import GOLDEN, NEW, RUNS, SCREENS, UNCHANGED, UNDECIDED, golden, result

WIDTH = 100


def text_of(made: Outputs, width: int | None, verbosity: int = 0) -> str:
    """The parts with their titles, as pytest separates them."""
    parts = summary_parts(made, width, verbosity=verbosity)
    return "\n".join(f"{f' {title} ':=^{width or 80}}\n{text}" for title, text in parts) + "\n"


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_reads_as_before(kind: str) -> None:
    text = FAILURES[kind]() + "\n"
    assert text == golden(f"failure_{kind}.txt", text)


@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_reads_as_before(name: str) -> None:
    text = text_of(SCREENS[name], WIDTH)
    assert text == golden(f"{name}.txt", text)
    assert len(text.splitlines()) <= 45


def test_the_screen_of_the_docs_is_one_of_these() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reports.md").read_text()
    ((name, block),) = re.findall(r"<!-- summary: (\w+) -->\n```text\n(.*?)```", page, flags=re.DOTALL)
    assert block == (GOLDEN / f"{name}.txt").read_text()


def test_26_green_benchmarks_take_a_screen_and_beyond_30_they_are_summed_up() -> None:
    green = SCREENS["green"].results
    assert len(green) == 26
    more = [replace(one, test=f"{one.test.partition('[')[0]}[{i}]") for i in range(10) for one in green]
    text = text_of(Outputs(results=more), WIDTH)
    assert len(text.splitlines()) <= 60
    assert "PASSED: 260 |" in text
    assert re.search(r"\n  \d+ more: \d+ passed; none slower by more than ", text)


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
@pytest.mark.parametrize("width", [40, 79, 80, 120])
@pytest.mark.parametrize("benchmarks", list(RUNS))
def test_no_line_is_wider_than_the_terminal_and_no_number_is_rounded_to_nothing(
    benchmarks: int, width: int, verbosity: int
) -> None:
    text = text_of(RUNS[benchmarks], width, verbosity)
    assert not [line for line in text.splitlines() if len(line) > width]
    assert not re.findall(r"(?<![\d.])0\.00+(?![\d.])", text)


LETTERS = st.sampled_from("abcxyz_\u00e4\u00f6\u03b1\u901f\u5ea6\u0301")
NAMES = st.tuples(st.text(LETTERS, min_size=1, max_size=90), st.text(LETTERS, max_size=90))


@settings(max_examples=30, deadline=None)
@given(
    names=st.lists(NAMES, min_size=1, max_size=5, unique=True), width=st.integers(60, 200), verbosity=st.integers(-1, 1)
)
def test_names_of_any_length_and_script_are_whole_and_fit(
    names: list[tuple[str, str]], width: int, verbosity: int
) -> None:
    kinds = (UNCHANGED, UNDECIDED, NEW, RUNS[6].results[1])
    named = [
        replace(kinds[i % len(kinds)], test=f"t.py::test_{name}" + (f"[{parameters}]" if parameters else ""))
        for i, (name, parameters) in enumerate(names)
    ]
    lines = text_of(Outputs(results=named), width, verbosity).splitlines()
    assert not [line for line in lines if columns(line) > width]
    told = "".join(line.strip() for line in lines)
    for one in named:
        if verbosity >= 0 or one.red:
            function, _, parameters = one.test.partition("::")[2].partition("[")
            assert function in told
            assert parameters in told


def test_with_option_q_only_the_verdict_and_red_benchmarks_are_shown() -> None:
    text = text_of(RUNS[7], WIDTH, verbosity=-1)
    assert len(text.splitlines()) == 6  # verdict, two lines of headers, a rule, the row and what else got worse
    assert "1 regressed, 1 inconclusive (does not fail), 5 passed" in text
    assert "test_step[bucketed]" not in text


def test_a_red_benchmark_is_reported_once_and_its_background_needs_option_v() -> None:
    text, more = text_of(RUNS[7], WIDTH), text_of(RUNS[7], WIDTH, verbosity=1)
    assert text.count("all_reduce") == 1
    for part in ("ddpperf phases", "ddpperf communication", "memory: peak resident"):
        assert part not in text
        assert part in more


def test_names_and_messages_cannot_write_to_the_terminal() -> None:
    """An escape sequence, a new line and 5,000 characters, in a name and in what a rank says."""
    evil = "\x1b]0;title\x07\x1b[2J\nfake [100%] PASSED"
    first = RUNS[6].results[0]
    named = replace(
        first,
        test=f"t.py::test_a[{evil}{'x' * 5000}]",
        findings=(Finding("not_diagnosed", {"reason": evil}), Finding("broken", {"reason": evil})),
    )
    broken = replace(named, verdict=Verdict.BROKEN)
    for width in (80, 160):
        told = Outputs(
            results=[first, named, broken],
            complaints=[evil],
            stored=Stored(unfit=[named], failed={f"t.py::{evil}"}),
            recorded=evil,
        )
        text = "\n".join(text for _, text in summary_parts(told, width))
        assert all(line.isprintable() and len(line) <= width for line in text.split("\n"))
        assert "\\x1b]0;title" in text
    assert failure_text(broken, accept="").replace("\n", "").isprintable()


def test_a_run_without_benchmarks_has_no_summary() -> None:
    assert summary_parts(Outputs()) == []


def test_each_part_that_has_anything_to_say_is_shown() -> None:
    told = Outputs(
        results=[result("t.py::test_a", Verdict.OK, 0.02, 0.004)],
        complaints=["no commit is known"],
        stored=Stored(failed={"t.py::test_b"}),
        recorded="this run is number 3 of h.sqlite",
        traces=[("t.py::test_a", "traces in folder")],
        added=[("of a hook", "42")],
    )
    (title, text), *others = summary_parts(told, 80)
    assert title == "ddpperf: PASSED: 1 | against the baseline of 3f2a1c0"
    assert text.startswith("WARNING no commit is known\n")
    for line in ("failed, so not stored: test_b", "this run is number 3 of h.sqlite", "traces in folder"):
        assert line in text.splitlines()
    assert others == [("of a hook", "42")]
