from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.formats.markdown import MARK, code, markdown, plain
from tests.reports.formats.samples import HOSTILE, MakeDocument


def html(text: str) -> str:
    """The text as GitHub renders it, as far as its tables and folds go."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py renders Markdown")
    return str(markdown_it.MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text))


AGAINST = r"\| against the baseline of 3f2a1c0"


def test_a_comment_begins_with_what_is_red(make_document: MakeDocument, regressed: Result, unchanged: Result) -> None:
    assert markdown(make_document(unchanged, regressed)) == (
        f"{MARK}\n\n"
        "## ddpperf: PASSED: 1 regressed (does not fail), 1 passed \\| against the baseline of 3f2a1c0\n\n"
        "**regressed**: `perf_tests/test_strategies.py::test_step[bucketed] bucketed`\n\n"
        "- collective_calls: all_reduce 2 -> 8 calls per step (+6)\n"
        "- step_time: 41.8 ms -> 47.3 ms, +13.2 % \\[95 % CI +11.9 .. +14.6\\]\n\n"
        "passed: none slower by more than 0.4 % (the highest end of an interval)\n\n"
        "<details><summary>All 2 benchmarks</summary>\n\n"
        "| benchmark | change % \\[95 % CI\\] | at most % | step time ms \\[95 % CI\\] | throughput samples/s | counts "
        "| verdict |\n"
        "| --- | --: | --: | --: | --: | --: | --- |\n"
        "| `test_step[bucketed]` | +13.2 \\[+11.9, +14.6\\] | - | 47.3 \\[46.8, 47.8\\] | 2000 | 1 changed "
        "| regressed |\n"
        "| `test_b bucketed` | +0.1 \\[-0.2, +0.4\\] | +0.4 | 30.0 \\[29.9, 30.1\\] | - | - | unchanged |\n\n"
        "</details>\n\n"
        "<details><summary>Notes</summary>\n\n"
        "- test_step\\[bucketed\\]: only 1 of 8 launches ran alone\n\n"
        "</details>\n\n"
        "commit 3f2a1c0+changes of main; 2026-01-12T10:00:00+00:00; cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, "
        "torch 2.13; compared with cpu-amd-epyc-2c-t1-gloo-w2-torch2.13\n"
    )


def test_nothing_worse_is_said_in_one_line(make_document: MakeDocument, unchanged: Result) -> None:
    text = markdown(make_document(unchanged))
    assert text.startswith(f"{MARK}\n\n## ddpperf: PASSED: 1 {AGAINST}\n\npassed: none slower by more than 0.4 % ")
    assert "**" not in text


def test_a_run_without_benchmarks_says_so(make_document: MakeDocument) -> None:
    assert markdown(make_document()) == f"{MARK}\n\n## ddpperf: no benchmark was judged\n"


def test_a_run_that_ended_early_says_so(make_document: MakeDocument, unchanged: Result) -> None:
    assert "The run ended before all its tests had run: stopping\\<" in markdown(
        make_document(unchanged, interrupted="stopping<")
    )


def test_names_are_shown_as_they_are(make_document: MakeDocument, broken: Result) -> None:
    page = html(markdown(make_document(broken)))
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


@pytest.mark.parametrize("start", ["https://", "ftp://", "www.", "WWW."])
def test_an_address_is_no_link(start: str) -> None:
    """GitHub links what begins so and goes on with the name of a host: here there is a character between them."""
    assert plain(f"see {start}evil.example") == f"see {start}\u200bevil.example"


def test_dollars_are_no_mathematics() -> None:
    assert plain("$x$ of $2") == "<span>$</span>x<span>$</span> of <span>$</span>2"


def test_a_long_comment_fits_into_github(make_document: MakeDocument, broken: Result, unchanged: Result) -> None:
    text = markdown(make_document(*[broken] * 180, *[unchanged] * 400))
    assert len(text) < 65536
    assert "\n\nand 160 more\n\n" in text
    assert "<summary>180 of 580 benchmarks</summary>" in text
    assert "\n\nand 30 more\n\n</details>" in text


def test_many_benchmarks_that_passed_are_not_all_in_a_comment(
    make_document: MakeDocument, regressed: Result, unchanged: Result
) -> None:
    text = markdown(make_document(*[unchanged] * 25, regressed))
    assert text.count("\n") <= 40
    assert "<summary>12 of 26 benchmarks</summary>" in text
    assert text.count("| regressed |") == 1


def test_a_benchmark_that_fails_its_test_comes_first_whatever_its_verdict(
    make_document: MakeDocument, regressed: Result, unchanged: Result
) -> None:
    faster = replace(unchanged, failure="step_time improved: 40 ms -> 30 ms")
    text = markdown(make_document(regressed, faster))
    assert text.startswith(
        f"{MARK}\n\n## ddpperf: FAILED: 1 failed (unchanged), 1 regressed (does not fail) {AGAINST}\n\n"
        "**unchanged**: `t.py::test_b bucketed`\n\n- step_time improved: 40 ms -> 30 ms\n\n**regressed**: "
    )


def test_a_comment_says_by_how_much_slower_an_undecided_benchmark_could_be(
    make_document: MakeDocument, unchanged: Result
) -> None:
    step = replace(unchanged.comparisons[0], verdict=Verdict.INCONCLUSIVE, bound=2.11)
    open_one = replace(unchanged, verdict=Verdict.INCONCLUSIVE, comparisons=(step,))
    text = markdown(make_document(open_one))
    assert "- undecided: test_b bucketed: step_time could be +211.0 % slower" in text.replace("\\", "")
