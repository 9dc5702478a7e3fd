from __future__ import annotations

import datetime as dt
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from pytest_ddpperf.baselines import codec, jsonfile
from pytest_ddpperf.baselines.codec import BASELINE
from pytest_ddpperf.baselines.jsonfile import Date, checked, read_text, render, rounded
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.instruments.clock import uncollected
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.reports.documents.entries import ResultsFile

FILE = Path("b/x.json")


def test_render_refuses_values_that_json_cannot_represent() -> None:
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
        ('{"a": 1, "a": 2}', "has data that this plugin cannot have written (the name 'a' occurs twice in one object)"),
        ('{"a": ' + "[" * 100_000, "has data that this plugin cannot have written"),
        ("[]", "field schema: is missing, so this is no baseline file"),
    ],
)
def test_a_file_that_is_no_baseline_is_named_with_the_cure(text: str, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        checked(text, FILE, BASELINE)
    message = str(caught.value)
    assert message.startswith(f"baseline file {FILE}: {problem}")
    assert message.endswith(
        "; restore the file from version control, or delete it and measure again with --ddpperf-save"
    )


def test_a_file_that_is_not_there_has_no_text(tmp_path: Path) -> None:
    assert read_text(tmp_path / "x.json", BASELINE) is None
    (tmp_path / "file").write_text("")
    assert read_text(tmp_path / "file" / "x.json", BASELINE) is None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff")
    with pytest.raises(BaselineError, match=r"x\.json: is not text in UTF-8; restore the file"):
        read_text(tmp_path / "x.json", BASELINE)
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        read_text(tmp_path, BASELINE)


def test_a_pipe_or_device_that_may_have_no_end_is_refused(tmp_path: Path) -> None:
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
    with pytest.raises(BaselineError, match=r"x\.json: holds more than 1e\+03 characters; restore the file"):
        read_text(tmp_path / "x.json", BASELINE)


@pytest.mark.parametrize("year", [1900, 2000, 2023, 2024])
def test_only_dates_of_the_calendar_are_valid(year: int) -> None:
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
