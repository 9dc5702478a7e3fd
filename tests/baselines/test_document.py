from __future__ import annotations

import datetime as dt
import gc
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from pytest_ddpperf.baselines.codec import StoredFile
from pytest_ddpperf.baselines.document import _OF_RECORDS, Date, Document, Positive, about, read_as
from pytest_ddpperf.baselines.jsonfile import problem_text, uncollected
from pytest_ddpperf.reports.documents.entries import ResultsFile
from pytest_ddpperf.reports.documents.schema import kinds_of


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    parts: tuple[Inner, ...]
    value: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    steps: int = 2
    rest: float = 0.0


class OuterData(Document, record=Outer, without=("rest",), sparse=("shares", "steps")):
    """A record with the number of its parts, and without what only the record has."""

    size: Positive = about(lambda outer: len(outer.parts))
    value: float | None

    def checked(self) -> None:
        if self.size > 2:
            raise ValueError(f"expected two parts at most, found {self.size}")


DATA: dict[str, Any] = {
    "name": "a",
    "size": 2,
    "parts": [{"size": 1, "note": ""}, {"size": 3, "note": "x"}],
    "value": 1,
}


def test_a_record_is_read_as_it_was_written() -> None:
    outer = read_as(OuterData, DATA)
    assert outer == Outer(name="a", parts=(Inner(size=1), Inner(size=3, note="x")), value=1.0)
    assert OuterData.filled_from(outer) == {**DATA, "steps": 2}
    assert OuterData.filled_from(Outer(name="a", parts=(Inner(size=0),), shares={"b": 1 / 3}))["shares"] == {
        "b": 0.333333333
    }


def test_what_is_not_finite_is_null_and_read_as_no_number() -> None:
    data = OuterData.filled_from(Outer(name="a", parts=(Inner(size=0),), value=math.inf))
    assert data["value"] is None
    assert math.isnan(read_as(OuterData, data).value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": None}, "field name: expected `str`, got `null`"),
        ({"parts": {}}, "field parts: expected `array`, got `object`"),
        ({"parts": [{"size": 1, "note": ""}, {}]}, "field parts[1].size: is missing"),
        ({"parts": [{"size": 1, "note": "", "more": 1}]}, "field parts[0].more: is not known here"),
        ({"parts": [{"size": True}]}, "field parts[0].size: expected `int`, got `bool`"),
        ({"shares": {"x.y": "1"}}, "field shares[...]: expected `float`, got `str`"),
        ({"rest": 0.5}, "field rest: is not known here"),
        ({"size": 0}, "field size: expected `int` >= 1"),
        ({"size": 3}, "expected two parts at most, found 3"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        read_as(OuterData, {**DATA, **changes})
    assert problem_text(caught.value).startswith(problem)


@pytest.mark.parametrize("year", [1, 1900, 2000, 2023, 2024, 9999])
def test_a_date_is_one_that_the_calendar_has(year: int) -> None:
    def has(date: str) -> bool:
        try:
            return msgspec.convert(date, Date) == date
        except msgspec.ValidationError:
            return False

    days = {f"{year:04}-{month:02}-{day:02}" for month in range(14) for day in range(33)}
    first = dt.date(year, 1, 1).toordinal()
    known = [dt.date.fromordinal(day) for day in range(first, min(first + 366, dt.date.max.toordinal() + 1))]
    assert {day for day in days if has(day)} == {f"{day}" for day in known if day.year == year}
    assert not any(map(has, ("2026-02-01\n", "2026-02-01T", "0000-01-01", "26-02-01")))


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_again_afterwards(*, collects: bool) -> None:
    @uncollected
    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError("too large")

    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(ValueError, match="too large"):
            fail()
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()


def test_types_of_records_are_no_texts_inside_of_others_which_python_3_10_cannot_read() -> None:
    def texts(hint: Any) -> list[str]:
        inner = () if get_origin(hint) is Literal else get_args(hint)
        return [hint] if isinstance(hint, str) else [text for each in inner for text in texts(each)]

    kinds = [*(record for record, _ in _OF_RECORDS), *kinds_of(ResultsFile, set())]
    records = {base for kind in kinds for base in kind.__mro__ if is_dataclass(base)}
    assert StoredFile.whole in records
    fields = [(record, *item) for record in records for item in vars(record).get("__annotations__", {}).items()]
    evaluated = {f"{record}.{name}": eval(hint, vars(sys.modules[record.__module__])) for record, name, hint in fields}  # noqa: S307
    assert {name: quoted for name, hint in evaluated.items() if (quoted := texts(hint))} == {}
