from __future__ import annotations

import datetime as dt
import gc
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from pytest_ddpperf.baselines import codec
from pytest_ddpperf.baselines.codec import BASELINE
from pytest_ddpperf.baselines.document import Date, Positive, json_of, object_of, read_as
from pytest_ddpperf.baselines.jsonfile import uncollected
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.reports.documents.entries import ResultsFile


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
    rest: float = 0.0


INNER = object_of(Inner, size=Positive, sparse=("note",))
OBJECT = object_of(
    Outer,
    without=("rest",),
    sparse=("shares",),
    rename={"value": "seconds"},
    parts=tuple[INNER, ...],  # type: ignore[valid-type]  # made at run time
    share=(float | None, None),
)
OUTER = Outer(name="a", parts=(Inner(size=1), Inner(size=3, note="x")), value=1.0)
DATA: dict[str, Any] = {"name": "a", "parts": [{"size": 1}, {"size": 3, "note": "x"}], "seconds": 1.0}


def test_a_record_is_read_as_it_was_written() -> None:
    found = read_as(OBJECT, DATA, Path("a.json"), BASELINE)
    assert msgspec.convert(found, Outer, from_attributes=True) == OUTER
    assert json_of(OBJECT, {**DATA, "parts": OUTER.parts}) == DATA


def test_what_is_not_finite_is_null() -> None:
    assert json_of(OBJECT, {**DATA, "seconds": math.inf, "shares": {"b": math.nan}}) == {
        **DATA,
        "seconds": None,
        "shares": {"b": None},
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": None}, "field name: expected `str`, got `null`"),
        ({"parts": {}}, "field parts: expected `array`, got `object`"),
        ({"parts": [{"size": 1, "note": ""}, {}]}, "field parts[1].size: is missing"),
        ({"parts": [{"size": 1, "note": "", "more": 1}]}, "field parts[0].more: is not known here"),
        ({"parts": [{"size": True}]}, "field parts[0].size: expected `int`, got `bool`"),
        ({"parts": [{"size": 0}]}, "field parts[0].size: expected `int` >= 1"),
        ({"shares": {"x.y": "1"}}, "field shares[...]: expected `float`, got `str`"),
        ({"rest": 0.5}, "field rest: is not known here"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        read_as(OBJECT, {**DATA, **changes}, Path("a.json"), BASELINE)
    assert str(caught.value).startswith(f"baseline file a.json: {problem}")


@pytest.mark.parametrize("year", [1900, 2000, 2023, 2024])
def test_a_date_is_one_that_the_calendar_has(year: int) -> None:
    def has(date: str) -> bool:
        try:
            return msgspec.convert(date, Date) == date
        except msgspec.ValidationError:
            return False

    days = {f"{year:04}-{month:02}-{day:02}" for month in range(14) for day in range(33)}
    first = dt.date(year, 1, 1).toordinal()
    known = [dt.date.fromordinal(day) for day in range(first, first + 366)]
    assert {day for day in days if has(day)} == {f"{day}" for day in known if day.year == year}
    assert not any(map(has, ("2026-02-01\n", "2026-02-01T", "0000-01-01", "26-02-01")))


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_again_afterwards(*, collects: bool) -> None:
    @uncollected()
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


def kinds_of(hint: Any, known: set[Any]) -> Iterator[Any]:
    """The classes that occur in a type, directly or inside other classes."""
    inner = get_args(hint)
    if (is_dataclass(hint) or isinstance(hint, msgspec.StructMeta)) and hint not in known:
        known.add(hint)
        yield hint
        inner = tuple(get_type_hints(hint, include_extras=True).values())
    for each in inner:
        yield from kinds_of(each, known)


def test_types_of_records_are_no_texts_inside_of_others_which_python_3_10_cannot_read() -> None:
    def texts(hint: Any) -> list[str]:
        inner = () if get_origin(hint) is Literal else get_args(hint)
        return [hint] if isinstance(hint, str) else [text for each in inner for text in texts(each)]

    kinds = [*kinds_of(codec._File, set()), *kinds_of(BaselineRecord, set()), *kinds_of(ResultsFile, set())]
    records = {base for kind in kinds for base in kind.__mro__ if is_dataclass(base)}
    assert BaselineRecord in records
    fields = [(record, *item) for record in records for item in vars(record).get("__annotations__", {}).items()]
    evaluated = {f"{record}.{name}": eval(hint, vars(sys.modules[record.__module__])) for record, name, hint in fields}  # noqa: S307
    assert {name: quoted for name, hint in evaluated.items() if (quoted := texts(hint))} == {}
