"""Lines of code on two sides, and which of them changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.sites import CallSite, SiteChange, changed_sites, same_lines


def site(line: int, source: str = "reduce(a)", value: float = 1.0, **where: object) -> CallSite:
    fields = {"part": "all_reduce", "file": "train.py", "function": "step", "backward": False, **where}
    return CallSite(line=line, source=source, value=value, **fields)  # type: ignore[arg-type]


INSIDE, NEXT = "trainer.py:7 in train", "trainer.py:9 in log"
A, B = site(41), site(45, "reduce(b)")


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ([A], [site(43)], []),  # the line moved
        ([A, B], [site(50, "reduce(b)"), site(52)], []),  # the lines changed places
        ([A], [site(41, "reduce(a, group)")], []),  # the line was changed: the same by its order
        ([A], [site(40, "reduce(b)"), site(42)], [(None, site(40, "reduce(b)"))]),
        ([A, B], [A], [(B, None)]),
        ([A], [site(41, value=4.0)], [(A, site(41, value=4.0))]),
        ([A], [site(9, function="train_step")], []),  # the function was renamed
        ([A], [site(9, file="src/train.py")], []),  # or moved
        ([site(41, through=INSIDE)], [site(41, through="trainer.py:8 in train")], []),  # another version of the package
        (
            [site(41, through=INSIDE)],
            [site(41, through=INSIDE), site(41, through=NEXT)],
            [(None, site(41, through=NEXT))],
        ),
        (  # one was rewritten and moved, one is new
            [site(9, "reduce(x)", function="helper")],
            [site(8, "reduce(y)", function="other"), site(41, value=2.0)],
            [
                (None, site(41, value=2.0)),
                (None, site(8, "reduce(y)", function="other")),
                (site(9, "reduce(x)", function="helper"), None),
            ],
        ),
        ([A], [site(41, backward=True)], [(None, site(41, backward=True)), (A, None)]),
        ([A], [site(41, part="broadcast")], [(None, site(41, part="broadcast")), (A, None)]),
        (
            [site(0, "", file="")],
            [site(0, "", file="", value=2.0)],
            [(site(0, "", file=""), site(0, "", file="", value=2.0))],
        ),
    ],
)
def test_sites_are_matched_by_function_and_text_and_not_by_line(
    then: list[CallSite], now: list[CallSite], expected: list[SiteChange]
) -> None:
    assert changed_sites(then, now) == expected


def called(line: int, text: str, value: float = 1.0, function: str = "main", **where: object) -> CallSite:
    """The calls of a line of a helper function that one line of another function causes."""
    return site(41, value=value, caller=f"train.py:{line} in {function}", caller_source=text, **where)  # type: ignore[arg-type]


LOG, EVALUATE = called(60, "log()"), called(80, "evaluate()")


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ([LOG], [called(61, "log()"), called(60, "again()")], [(None, called(60, "again()"))]),  # another line calls it
        ([LOG, EVALUATE], [LOG], [(EVALUATE, None)]),
        ([LOG, EVALUATE], [LOG, called(81, "evaluate()", 4.0)], [(EVALUATE, called(81, "evaluate()", 4.0))]),
        ([LOG], [called(70, "log(all)", function="run")], []),  # the caller was renamed and changed
        ([LOG, EVALUATE], [LOG, called(9, "other()")], []),  # as many calls as before
        # All callers changed: the change is the line's.
        ([LOG], [called(60, "log()", 2.0)], [(A, site(41, value=2.0))]),
        (
            [LOG, EVALUATE],
            [called(60, "log()", 2.0), called(80, "evaluate()", 2.0)],
            [(replace(A, value=2.0), site(41, value=4.0))],
        ),
        ([], [LOG, EVALUATE], [(None, site(41, value=2.0))]),
        # 0.1 + 0.2 is 0.3, if callers are added in another order or not.
        ([called(60, "log()", 0.3)], [called(60, "log()", 0.1), called(80, "evaluate()", 0.2)], []),
        # Baselines from before callers were kept.
        ([A], [LOG], []),
        ([A], [LOG, EVALUATE], [(A, site(41, value=2.0))]),
    ],
)
def test_a_line_has_callers_if_some_of_them_changed_and_others_did_not(
    then: list[CallSite], now: list[CallSite], expected: list[SiteChange]
) -> None:
    assert changed_sites(then, now) == expected


@pytest.mark.parametrize("inserted", [0, 20])
@pytest.mark.parametrize("copy", [36, 50])
def test_of_two_equal_lines_the_new_one_is_the_changed_one(inserted: int, copy: int) -> None:
    """Lines above move both; the line before and the one after are there once."""
    around, now = [site(38, "x"), site(46, "y")], inserted
    after = [site(38 + now + (copy < 42), "x"), site(46 + now + (copy < 42), "y")]
    was, new = site(42 + now + (copy < 42)), site(copy + now)
    same = same_lines([*around, site(42)], [*after, was, new])
    assert changed_sites([site(42)], [was, new], same) == [(None, new)]
