"""What pieces say of what they found, by figures worked by hand."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from benchmarks.common.project import Ran
from benchmarks.gpu_pieces import failures, suite
from pytest_ddpperf.errors import RankFailed


def test_an_error_is_kept_in_words() -> None:
    def fails() -> None:
        raise RankFailed("rank 1 of 2 ran out of memory", rank=1, out_of_memory=True)

    error = failures.reported(fails)
    assert (error["type"], error["rank"], error["memory"]) == ("RankFailed", 1, True)
    assert failures.reported(lambda: None)["type"] == ""
    found = {"title": "out of memory", "right": False, "error": error, "late": None, "next": "", "next_seconds": 0.25}
    first, *others = failures.told(found)
    assert first.startswith("out of memory: NOT AS IT SHOULD, ")
    assert others == ["  RankFailed: rank 1 of 2 ran out of memory", "  the next launch works, 0.2 s"]


def test_what_became_of_tests_is_told() -> None:
    bodies = {"a": "", "b": '<failure message="assert 1 == 2"/>', "c": '<skipped message="needs a GPU"/>'}
    tests = {name: ET.fromstring(f"<testcase>{body}</testcase>") for name, body in bodies.items()}  # noqa: S314
    assert list(suite.told(Ran(1, "", [], tests), 3.2)) == [
        "1 passed, 1 failed, 1 skipped in 3 s",
        "  FAILED b: assert 1 == 2",
        "  skipped 1: needs a GPU",
    ]
    assert next(suite.told(Ran(4, "no such file", [], {}), 3.2)) == "pytest ended with status 4"
