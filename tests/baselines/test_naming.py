from __future__ import annotations

import itertools
import re

import pytest

from pytest_ddpperf.baselines.naming import module_folder, plain_name
from pytest_ddpperf.baselines.naming import test_file as file_name


def test_ordinary_tests_have_plain_names() -> None:
    nodeid = "perf_tests/lm/test_small.py::TestStep::test_step[bucketed-bf16]"
    assert module_folder(nodeid) == "perf_tests.lm.test_small"
    assert file_name(nodeid) == "TestStep.test_step-bucketed-bf16.json"


TESTS = [
    "test_a",
    "A::test_a",
    "test_a[b]",
    "test_a[b-c]",
    "test_a[b/c]",
    "test_a[b c]",
    "test_a[]",
    "test_a[[b]]",
    "test_a[ä]",
    "test_ä",
    "test_a[~]",
    "test_a[" + "x" * 300 + "]",
    "test_a[" + "x" * 301 + "]",
    "test_a[../../etc]",
    ".",
    "",
]
MODULES = ["a/b.py", "a.b.py", "a/b.c.py", "a/b", "../a.py", "/a.py", "a b.py", "", "é.py", "x" * 200 + ".py"]


def test_different_tests_have_different_files() -> None:
    names = [file_name(f"m.py::{test}") for test in TESTS]
    assert len(set(names)) == len(names)


def test_different_modules_have_different_folders() -> None:
    names = [module_folder(f"{module}::t") for module in MODULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("ddp", {}),
        ("ddp[bucket_cap_mb=5]", {}),
        ("ddp accumulation_steps=4 no_sync=false", {"accumulation_steps": "4", "no_sync": "false"}),
        ("ddp[bucket_cap_mb=5] loader=workers=2,pin_memory=true", {"loader": "workers=2,pin_memory=true"}),
    ],
)
def test_options_are_taken_off_a_name(name: str, recipe: dict[str, str]) -> None:
    assert plain_name(name, recipe) == "ddp"


def test_a_name_is_left_as_it_was_given() -> None:
    assert plain_name("weak w2 precision=mine", {}) == "weak w2 precision=mine"


@pytest.mark.parametrize("nodeid", [f"{m}::{t}" for m, t in itertools.zip_longest(MODULES, TESTS, fillvalue="x.py")])
def test_names_are_safe(nodeid: str) -> None:
    for name in (module_folder(nodeid), file_name(nodeid)):
        assert re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", name)
        assert len(name) <= 120
