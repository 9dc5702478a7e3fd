from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpperf.baselines.codec import BASELINE
from pytest_ddpperf.baselines.reading import parse, read_text
from pytest_ddpperf.errors import BaselineError

FILE = Path("b/x.json")


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
        ('{"a": 1, "a": 2}', "is no data that this plugin wrote (the name 'a' stands twice in one object)"),
        ('{"a": ' + "[" * 100_000, "is no data that this plugin wrote"),
        ("[]", "field schema: is missing, so this is no baseline file"),
    ],
)
def test_what_is_no_baseline_file_is_named_with_the_cure(text: str, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        parse(text, FILE, BASELINE)
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
