"""Deselects slow sweeps over many options; `-m sweep` runs them, and so does their name on the command line."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "sweep: a full range of options; run with -m sweep")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the sweeps unless the command line names tests or the marker."""
    if "sweep" in config.option.markexpr or any("::" in argument for argument in config.args):
        return
    sweeps = [item for item in items if item.get_closest_marker("sweep")]
    config.hook.pytest_deselected(items=sweeps)
    items[:] = [item for item in items if item not in sweeps]
