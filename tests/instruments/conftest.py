"""A made-up pynvml for the tests that ask NVIDIA's driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from pytest_ddpperf.instruments.nvml import library
from tests.fake_nvml import FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Installed as pynvml."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    library.cache_clear()
    yield fake
    library.cache_clear()
