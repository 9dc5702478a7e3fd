"""Tests of ours run without the plugins that only tests of their own load."""

from __future__ import annotations

from pathlib import Path

from tests.factories import OTHER_PLUGINS

ROOT = Path(__file__).parents[2]


def test_pytest_and_its_workers_disable_the_same_plugins() -> None:
    """A worker of pytest-xdist also reads what tests/conftest.py sets; pytest-metadata has to be in both or in none."""
    words = (ROOT / "pyproject.toml").read_text().split()
    assert [name for names in OTHER_PLUGINS.values() for name in names if f"no:{name}" not in words] == []
