"""A pytest plugin for a probe that runs one test: the others that the user's arguments name are left out.

These arguments stay as they are: which of their words name tests only pytest itself can tell.
"""

from __future__ import annotations

import pytest

from pytest_ddpperf.cli.bisect.processes import TEST_OPTION

_NAME = "ddpperf_bisect_test"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what the probe is told by."""
    parser.addoption(TEST_OPTION, dest=_NAME, metavar="NODEID", help="run this test alone")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the others out."""
    others = [item for item in items if item.nodeid != config.getoption(_NAME)]
    items[:] = [item for item in items if item.nodeid == config.getoption(_NAME)]
    config.hook.pytest_deselected(items=others)
