"""Environment variables of ranks as a call gives them, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.parsers import reports, variables


def test_texts_and_numbers_are_variables_in_any_order() -> None:
    assert variables({"B": "x", "A": 1.5}) == variables({"A": "1.5", "B": "x"}) == (("A", "1.5"), ("B", "x"))
    assert variables({}) == ()


@pytest.mark.parametrize(
    "value", ["X=1", None, ("X",), {"X": True}, {"X": None}, {"X=": 1}, {"": 1}, {1: 1}, {"X": "\0"}]
)
def test_an_invalid_environment_variable_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="environment variables by name, with texts or numbers"):
        variables(value)


def test_none_drops_the_reports_above_it() -> None:
    """A run of a bisection appends it to what the ini file's addopts ask for."""
    assert reports("json:a.json\nnone") == ()
    assert reports("json:a.json\nnone\nhtml:b.html") == (("html", Path("b.html")),)
