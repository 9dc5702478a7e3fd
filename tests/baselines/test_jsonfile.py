from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_ddpperf.baselines.jsonfile import render, replace_file, rounded


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


def test_a_file_is_replaced_and_nothing_else_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    replace_file(path, "new ä\n")
    assert path.read_text(encoding="utf-8") == "new ä\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    replace_file(tmp_path / "a.json", "x")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_failed_write_leaves_the_old_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
