from __future__ import annotations

import datetime as dt
import gc
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from pytest_ddpperf.baselines import codec, jsonfile
from pytest_ddpperf.baselines.codec import BASELINE
from pytest_ddpperf.baselines.jsonfile import (
    Date,
    Positive,
    checked,
    json_of,
    object_of,
    read_as,
    read_text,
    render,
    rounded,
    uncollected,
)
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.reports.documents.entries import ResultsFile

FILE = Path("b/x.json")


def test_render_sorts_and_keeps_lists_of_numbers_on_one_line() -> None:
    value = {"b": list(range(100, 160)), "a": {"y": 1, "x": None}, "c": [{"k": [1.5]}], "d": {}, "e": []}
    text = render(value)
    numbers = ", ".join(map(str, range(100, 160)))
    assert text == (
        "{\n"
        '  "a": {"x": null, "y": 1},\n'
        f'  "b": [{numbers}],\n'
        '  "c": [\n'
        "    {\n"
        '      "k": [1.5]\n'
        "    }\n"
        "  ],\n"
        '  "d": {},\n'
        '  "e": []\n'
        "}\n"
    )
    assert json.loads(text) == value


def test_render_breaks_a_long_object() -> None:
    value = {f"name{i}": "x" * 30 for i in range(4)}
    assert len(render(value).splitlines()) == 6
    assert json.loads(render(value)) == value


def test_render_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render({"a": [float("nan")]})


def test_rounded_keeps_nine_digits() -> None:
    assert rounded(0.1234567894321) == 0.123456789
    assert rounded(1234567894321.0) == 1234567890000.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ('{\n"a": [1,\n2', "is cut off at line 3"),
        ('{\n"a": "tex', "is cut off at line 2"),
        ('{\n"a": tr', "is cut off at line 2"),
        ('{\n"a": {"b": 1}', "is cut off at line 2"),
        ('{"a": 1,\n<<<<<<< HEAD\n"b": 2\n=======\n}', "holds an unresolved merge conflict at line 2"),
        ('{"a": 1,,}', "is not JSON: Expecting property name enclosed in double quotes at line 1, column 9"),
        ('{"a": 1, "a": 2}', "is no data that this plugin wrote (the name 'a' occurs twice in one object)"),
        ('{"a": ' + "[" * 100_000, "is no data that this plugin wrote"),
        ("[]", "field schema: is missing, so this is no baseline file"),
    ],
)
def test_what_is_no_baseline_file_is_named_with_the_cure(text: str, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        checked(text, FILE, BASELINE)
    message = str(caught.value)
    assert message.startswith(f"baseline file {FILE}: {problem}")
    assert message.endswith("; restore it from version control, or delete it and measure again with --ddpperf-save")


def test_a_file_that_is_not_there_has_no_text(tmp_path: Path) -> None:
    assert read_text(tmp_path / "x.json", BASELINE) is None
    (tmp_path / "file").write_text("")
    assert read_text(tmp_path / "file" / "x.json", BASELINE) is None


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff")
    with pytest.raises(BaselineError, match=r"x\.json: is not text in UTF-8; restore it"):
        read_text(tmp_path / "x.json", BASELINE)
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        read_text(tmp_path, BASELINE)


def test_what_may_have_no_end_is_refused(tmp_path: Path) -> None:
    """A pipe would be waited for until somebody writes into it."""
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BaselineError, match=f"file {file} cannot be read: this is a pipe or a device: name a file"):
            read_text(file, BASELINE)


def test_a_pipe_that_the_shell_has_opened_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    try:
        assert read_text(Path(f"/dev/fd/{reading}"), BASELINE) == "text"
    finally:
        os.close(reading)


def test_a_large_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfile, "MOST_CHARACTERS", 1000)
    (tmp_path / "x.json").write_text("0" * 1001)
    with pytest.raises(BaselineError, match=r"x\.json: holds more than 1e\+03 characters; restore it"):
        read_text(tmp_path / "x.json", BASELINE)


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
