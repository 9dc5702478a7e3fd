"""What the tests share: pytest's own tester for plugins."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked slow unless the command line chooses what to run."""
    if config.option.markexpr or any("::" in argument or argument.endswith(".py") for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
