"""The summary of whole runs, as files to look at: DDPPERF_GOLDEN=write pytest tests/reports/test_golden.py."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.summary import summary_parts
from tests.factories import failure_text
from tests.reports.golden_runs import RUNS

GOLDEN = Path(__file__).parent / "golden"


def summary(benchmarks: int, width: int | None) -> str:
    parts = summary_parts(RUNS[benchmarks], width)
    return "\n".join(f"{f' {title} ':=^{width or 80}}\n{text}" for title, text in parts) + "\n"


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("benchmarks", list(RUNS))
def test_the_summary_reads_as_before(benchmarks: int, width: int) -> None:
    file = GOLDEN / f"{benchmarks}_benchmarks_{width}_columns.txt"
    text = summary(benchmarks, width)
    if os.environ.get("DDPPERF_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_the_summary_of_the_docs_is_one_of_these() -> None:
    page = (Path(__file__).parents[2] / "docs" / "time-and-memory.md").read_text()
    ((name, block),) = re.findall(r"<!-- summary: (\w+) -->\n```text\n(.*?)```", page, flags=re.DOTALL)
    assert all(part in (GOLDEN / f"{name}.txt").read_text() for part in block.split("[...]\n"))


WIDTHS = (40, 60, 79, 80, 81, 100, 120, 160, 200)
RULE = re.compile(r"-+(  -+)+")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("benchmarks", list(RUNS))
def test_no_line_is_wider_than_the_terminal(benchmarks: int, width: int) -> None:
    too_wide = [line for line in summary(benchmarks, width).splitlines() if len(line) > width]
    assert not too_wide


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("benchmarks", list(RUNS))
def test_no_advice_is_cut_off(benchmarks: int, width: int) -> None:
    """Names may be cut in the middle; what a remark says to do stands at its end."""
    told = [text for title, text in summary_parts(RUNS[benchmarks], width) if title != "ddpperf baselines"]
    assert not re.findall(r"\.\.\.$", "\n".join(told), flags=re.MULTILINE)


@pytest.mark.parametrize("width", [width for width in WIDTHS if width >= 60])
def test_rows_are_told_apart_and_each_has_one_line(width: int) -> None:
    text = dict(summary_parts(RUNS[30], width))["ddpperf"]
    lines = text.splitlines()
    (start,) = [number for number, line in enumerate(lines) if RULE.fullmatch(line)]
    room = len(lines[start].split()[0])
    names = [line[:room].strip() for line in lines[start + 1 : start + 31]]
    assert len(set(names)) == 30
    assert min(map(len, names)) >= 12


def test_30_benchmarks_take_two_lines_each_beyond_their_tables_at_most() -> None:
    for width, run in itertools.product((80, 100, 160), (30, 31)):
        blocks = [block for _, part in summary_parts(RUNS[run], width) for block in part.split("\n\n")]
        assert sum(len(block.splitlines()) for block in blocks if not RULE.search(block)) <= 60


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("benchmarks", list(RUNS))
def test_no_number_is_rounded_to_nothing(benchmarks: int, width: int) -> None:
    assert not re.findall(r"(?<![\d.])0\.00+(?![\d.])", summary(benchmarks, width))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_what_is_red_and_why_stands_first(width: int) -> None:
    (_, text), *_ = summary_parts(RUNS[30], width)
    first, *_ = text.split("\n\n")
    for red in ("broken test_step[zero1]", "regressed test_step[naive]", "regressed test_activations ddp"):
        assert red in first
    assert "what to do: " in first


def test_names_and_messages_cannot_write_to_the_terminal() -> None:
    """An escape sequence, a new line and 5,000 characters, in a name and in what a rank says."""
    evil = "\x1b]0;title\x07\x1b[2J\nfake [100%] PASSED"
    result = RUNS[6].results[0]
    named = replace(
        result,
        test=f"t.py::test_a[{evil}{'x' * 5000}]",
        findings=(Finding("not_diagnosed", {"reason": evil}), Finding("broken", {"reason": evil})),
    )
    broken = replace(named, verdict=Verdict.BROKEN)
    for width in (80, 160):
        told = Outputs(
            results=[result, named, broken],
            complaints=[evil],
            stored=Stored(unfit=[named], failed={f"t.py::{evil}"}),
            recorded=evil,
        )
        text = "\n".join(text for _, text in summary_parts(told, width))
        assert all(line.isprintable() and len(line) <= width for line in text.split("\n"))
        assert "\\x1b]0;title" in text
        assert len(text.splitlines()) < 80
    assert failure_text(broken, accept="").replace("\n", "").isprintable()
