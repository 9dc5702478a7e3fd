from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pytest_ddpperf.baselines.typed import (
    AnyText,
    Confidence,
    Day,
    Misfit,
    NotNegative,
    Positive,
    Several,
    Shape,
    Share,
    read,
    written,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    parts: tuple[Inner, ...]
    shares: Mapping[str, float] = field(default_factory=dict)
    rest: float = 0.0


def outer(size: int, **fields: Any) -> Outer:
    if size != len(fields["parts"]):
        raise Misfit(f"is not {len(fields['parts'])}", ".size")
    return Outer(**fields)


SHAPES = {
    Outer: Shape(
        types={"size": Positive},
        optional=("shares",),
        absent=("rest",),
        make=outer,
        write=lambda outer: {"size": len(outer.parts)},
    ),
    Inner: Shape(optional=("note",)),
}
DATA = {"name": "a", "size": 2, "parts": [{"size": 1}, {"size": 0, "note": "x"}], "shares": {"x.y": 1}}


def test_data_become_what_the_types_say() -> None:
    made = read(Outer, DATA, SHAPES)
    assert made == Outer(name="a", parts=(Inner(size=1), Inner(size=0, note="x")), shares={"x.y": 1.0})
    assert type(made.shares["x.y"]) is float
    assert written(made, SHAPES) == DATA
    assert read(int | None, None, {}) is None
    assert read(int | None, 3, {}) == 3


def test_what_is_optional_and_empty_is_not_written() -> None:
    data = {"name": "a", "size": 1, "parts": [{"size": 3}]}
    assert written(read(Outer, data, SHAPES), SHAPES) == data


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": None}, "field name: expected a text that is not empty, found null"),
        ({"parts": {}}, "field parts: expected a list, found an object {}"),
        ({"parts": [{"size": 1}, 3]}, "field parts[1]: expected an object, found the number 3"),
        ({"parts": [{"size": 1}, {}]}, "field parts[1].size: is missing"),
        ({"parts": [{"size": 1}, {"size": "1"}]}, "field parts[1].size: expected a whole number of at least 0,"),
        ({"parts": []}, "field size: is not 0"),
        ({"rest": 0.5}, "field rest: is not known here"),
        ({"shares": [1]}, "field shares: expected an object, found a list [1]"),
        ({"shares": {"x.y": True}}, "field shares.x.y: expected a finite number, found true"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(Misfit, match=r"^field ") as caught:
        read(Outer, {**DATA, **changes}, SHAPES)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (str, 1, "expected a text that is not empty, found the number 1"),
        (str, "", 'expected a text that is not empty, found text ""'),
        (AnyText, 1, "expected a text, found the number 1"),
        (Day, "soon", 'expected a day such as 2026-01-31, found text "soon"'),
        (Day, "2026-02-30", 'expected a day such as 2026-01-31, found text "2026-02-30"'),
        (Day, "2026-01-31T00:00", "expected a day such as 2026-01-31, found text"),
        (bool, 1, "expected true or false, found the number 1"),
        (int, 1.0, "expected a whole number of at least 0, found the number 1.0"),
        (int, True, "expected a whole number of at least 0, found true"),
        (int, -1, "expected a whole number of at least 0, found the number -1"),
        (Positive, 0, "expected a whole number of at least 1, found the number 0"),
        (Several, 1, "expected a whole number of at least 2, found the number 1"),
        (float, "4", 'expected a finite number, found text "4"'),
        (float, True, "expected a finite number, found true"),
        (float, float("nan"), "expected a finite number, found the number NaN"),
        (float, float("-inf"), "expected a finite number, found the number -Infinity"),
        (float, 10**400, f"expected a finite number, found the number 1{'0' * 59}..."),
        (NotNegative, -0.1, "expected a number of at least 0, found the number -0.1"),
        (NotNegative, float("inf"), "expected a number of at least 0, found the number Infinity"),
        (NotNegative, float("nan"), "expected a number of at least 0, found the number NaN"),
        (Share, 1.5, "expected a number from 0 to 1, found the number 1.5"),
        (Confidence, 1, "expected a number between 0 and 1, found the number 1"),
        (Confidence, 0, "expected a number between 0 and 1, found the number 0"),
        (Literal["x", "y"], "z", 'expected one of x, y, found text "z"'),
        (Literal["x", "y"], ["x"], 'expected one of x, y, found a list ["x"]'),
    ],
)
def test_a_wrong_value_is_told_with_what_was_expected(kind: Any, value: Any, problem: str) -> None:
    with pytest.raises(Misfit, match=r"^expected") as caught:
        read(kind, value, {})
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, "a"),
        (AnyText, ""),
        (Day, "2028-02-29"),
        (bool, False),
        (int, 0),
        (Positive, 1),
        (Several, 2),
        (float, -1.5),
        (float, 2),
        (NotNegative, 0),
        (Share, 1),
        (Share, 0),
        (Confidence, 0.5),
        (Literal["x"], "x"),
        (Literal["x"] | None, None),
    ],
)
def test_what_fits_is_kept(kind: Any, value: Any) -> None:
    assert read(kind, value, {}) == value
