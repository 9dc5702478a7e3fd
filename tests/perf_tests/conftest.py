"""The example suite's modules, from where they are: the suite is no package that is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SUITE = Path(__file__).parents[2] / "perf_tests"


@pytest.fixture
def extra_work() -> ModuleType:
    spec = importlib.util.spec_from_file_location("extra_work_under_test", SUITE / "extra_work.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
