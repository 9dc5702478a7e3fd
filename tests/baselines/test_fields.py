from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.fields import Field, parse
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
    ],
)
def test_what_is_no_json_is_named(text: str, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        parse(text, FILE)
    message = str(caught.value)
    assert message.startswith(f"baseline file {FILE}: {problem}")
    assert "restore it from version control, or delete it and measure again with --ddpperf-save" in message


@pytest.mark.parametrize(
    ("method", "value", "problem"),
    [
        ("number", "4", 'expected a number, found text "4"'),
        ("number", True, "expected a number, found true or false true"),
        ("number", None, "expected a number, found null null"),
        ("number", float("nan"), "expected a finite number, found the number NaN"),
        ("number", float("inf"), "expected a finite number, found the number Infinity"),
        ("number", 10**400, "expected a finite number, found the number 1000"),
        ("whole", 1.5, "expected a whole number of at least 0, found the number 1.5"),
        ("whole", True, "expected a whole number of at least 0, found true or false true"),
        ("whole", -1, "expected a whole number of at least 0, found the number -1"),
        ("text", 1, "expected a text, found the number 1"),
        ("text", "", "is empty"),
        ("switch", 1, "expected true or false, found the number 1"),
        ("items", {}, "expected a list, found an object {}"),
        ("mapping", [], "expected an object, found a list []"),
        ("fields", "x", 'expected an object, found text "x"'),
    ],
)
def test_a_wrong_value_is_named_with_its_place(method: str, value: Any, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        getattr(Field(FILE, "records[0].a", value), method)()
    assert str(caught.value).startswith(f"baseline file {FILE}: field records[0].a: {problem}")


def test_a_choice_lists_the_words() -> None:
    with pytest.raises(BaselineError, match='field a: expected one of x, y, found text "z"'):
        Field(FILE, "a", "z").choice(("x", "y"))


def test_missing_and_unknown_fields_are_named() -> None:
    with pytest.raises(BaselineError, match=r"field a\.c: is missing"):
        Field(FILE, "a", {"b": 1}).fields("b", "c")
    with pytest.raises(BaselineError, match=r"field a\.c: is not known here"):
        Field(FILE, "a", {"b": 1, "c": 2}).fields("b")


def test_paths_lead_to_the_value() -> None:
    top = parse('{"a": [{"b": 1}, {"b": 2}]}', FILE)
    field = top.fields("a")["a"].items()[1].fields("b")["b"]
    assert (field.path, field.whole()) == ("a[1].b", 2)
