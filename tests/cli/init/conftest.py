"""The folder that `ddpperf init` looks at in tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(pytester.path)
    return pytester.path
