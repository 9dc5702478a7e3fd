from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_ddpperf.baselines import jsonfile
from pytest_ddpperf.baselines.codec import BASELINE
from pytest_ddpperf.baselines.jsonfile import checked, read_text, render, rounded
from pytest_ddpperf.errors import BaselineError

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
