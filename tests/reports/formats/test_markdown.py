from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.formats.markdown import MARK, code, markdown, plain
from tests.reports.failing import TIMES
from tests.reports.formats.samples import BROKEN, HOSTILE, REGRESSED, UNCHANGED
from tests.reports.made import make_document


def html(text: str) -> str:
    """The text as GitHub renders it, as far as its tables and folds go."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py renders Markdown")
    return str(markdown_it.MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text))


AGAINST = r"\| against the baseline of 3f2a1c0"


def test_nothing_worse_is_said_in_one_line() -> None:
    text = markdown(make_document(UNCHANGED))
    assert text.startswith(
        f"{MARK}\n\n## ddpperf: PASSED: 1 \\| against the baseline of 3f2a1c0\n\n"
        "passed: none slower by more than 0.4 % "
    )
    assert "**" not in text


def test_a_run_that_ended_early_says_so() -> None:
    assert "the run ended before all its tests had run: stopping\\<" in markdown(
        make_document(UNCHANGED, interrupted="stopping<")
    )


def test_names_are_shown_as_they_are() -> None:
    page = html(markdown(make_document(BROKEN, replace(BROKEN, verdict=Verdict.INCONCLUSIVE))))
    assert "<script>" not in page
    assert page.count("<table>") == 1
    assert not re.search("<(em|del|a|h1)\\b", page)
    shown = re.sub("\u200b", "", page)
    assert "rank 1 raised &lt;script&gt;|_&amp;*x*\\n`y`~[z](u)@me #1" in shown
    assert "@me" not in re.sub("<code>.*?</code>", "", page)  # which would be told of it
    assert page.count("<code>t.py::test_c[&lt;script&gt;|_&amp;*x*\\n`y`~[z](u)@me #1]") == 1


@pytest.mark.parametrize("text", ["a", "`", "``a`", " a", HOSTILE.replace("\n", " ")])
def test_a_span_of_code_is_the_text(text: str) -> None:
    (found,) = re.findall("<code>(.*?)</code>", html(code(text)))
    assert found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


@pytest.mark.parametrize("text", ["- a", "# a", "1. a", "1) a", "> a", "+ a", "= a", "__init__ and _b_", "a_b *c*"])
def test_a_sentence_is_no_markup(text: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert html(plain(text)) == f"<p>{escaped}</p>\n"
    assert html(f"- {plain(text)}") == f"<ul>\n<li>{escaped}</li>\n</ul>\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # Folders of a machine are not shown.
        ("no file '/home/me/data/x.bin'", "no file '.../x.bin'"),
        ("at ~/code/a.py:3 in f", "at .../a.py:3 in f"),
        ("at src/code/a.py:3, 2 samples/s, 1/2", "at src/code/a.py:3, 2 samples/s, 1/2"),
        ("https://host/a/b", "https://\u200bhost/a/b"),
        # GitHub links what begins so and goes on with the name of a host: here there is a character between them.
        *((f"see {start}evil", f"see {start}\u200bevil") for start in ("https://", "ftp://", "www.", "WWW.")),
        # Dollars are no mathematics.
        ("$x$ of $2", "<span>$</span>x<span>$</span> of <span>$</span>2"),
    ],
)
def test_a_sentence_has_no_folders_links_or_formulas(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_slowdown_that_no_count_explains_has_the_parts_of_the_step() -> None:
    assert (
        "\n  - cause: backward +5.10 ms \\[95 % CI +4.00 ms .. +6.20 ms\\]\n  - step_time: 41.8 ms -> 47.3 ms, "
        in markdown(make_document(TIMES))
    )


@pytest.mark.parametrize(("number", "red"), [(26, 0), (26, 1), (80, 20)])
def test_a_comment_is_short_however_many_benchmarks_failed(*, number: int, red: int) -> None:
    step = replace(UNCHANGED.comparisons[0], verdict=Verdict.INCONCLUSIVE, bound=2.11)
    undecided = replace(UNCHANGED, verdict=Verdict.INCONCLUSIVE, comparisons=(step,))
    several = [REGRESSED, *[BROKEN] * (red - 1)][:red]
    others = [undecided] * 6 + [UNCHANGED] * (number - red - 6)
    text = markdown(make_document(*others, *several, interrupted="stopping after 20 failures"))
    assert 30 < text.count("\n") <= 40
    assert re.search(rf"<summary>\d+ of \d+ {'other ' if red else ''}benchmarks</summary>", text)
    assert "and 3 more: step_time could be" in text  # that are undecided
    assert len(re.findall(r"^- \*\*broken\*\*", text, re.MULTILINE)) >= min(4, red - 1)
    assert text.count("| inconclusive |") >= (3 if red < 20 else 0)


def test_each_note_names_its_benchmarks() -> None:
    """Also if they were read from a file, which has sentences alone."""
    noted = [
        replace(UNCHANGED, test=f"t.py::test_{i}", findings=(Finding(f"only {i} of 8 launches ran alone"),))
        for i in range(4)
    ]
    other = replace(UNCHANGED, test="t.py::test_d", findings=(Finding("the machine was hot"),))
    text = markdown(make_document(*noted, other))
    assert "- 4 of 5 benchmarks, such as test_0 bucketed: only 0 of 8 launches ran alone\n" in text
    assert "- test_d bucketed: the machine was hot\n" in text


def test_a_benchmark_that_fails_its_test_is_listed_first_whatever_its_verdict() -> None:
    faster = replace(UNCHANGED, failure="step_time improved: 40 ms -> 30 ms")
    text = markdown(make_document(REGRESSED, faster))
    assert text.startswith(
        f"{MARK}\n\n## ddpperf: FAILED: 1 failed (unchanged), 1 regressed (does not fail) {AGAINST}\n\n"
        "- **unchanged**: `t.py::test_b bucketed`\n  - step_time improved: 40 ms -> 30 ms\n- **regressed**: "
    )
