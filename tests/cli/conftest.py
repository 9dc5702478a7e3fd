"""What the tests of the command share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as their text, whatever terminal the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)
