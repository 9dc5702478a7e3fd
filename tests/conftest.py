"""What the tests share: pytest's own tester for plugins, and one zygote for all the suites that it runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from pytest_ddpperf import session
from pytest_ddpperf.launch import Launcher

pytest_plugins = ["pytester"]

# What cannot be imported twice into one process, which an inner run would do: it forgets what it has imported.
IMPORTED_ONCE = ("torch", "torch._dynamo", "numpy", "scipy.special")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked slow unless the command line chooses what to run."""
    if config.option.markexpr or any("::" in argument or argument.endswith(".py") for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


class SharedLauncher(Launcher):
    """A launcher that lives on when a session ends."""

    def close(self) -> None:
        """Leave it to its owner."""


@pytest.fixture(scope="session")
def shared_launcher() -> Iterator[Launcher]:
    """The launcher that inner sessions share."""
    for name in IMPORTED_ONCE:
        import_module(name)
    launcher = SharedLauncher(preload=session.PRELOADED)
    yield launcher
    Launcher.close(launcher)


@pytest.fixture
def inner(pytester: pytest.Pytester, shared_launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs suites in this process, on the ranks of a launcher that has been started once for all of them."""

    def launcher(**_options: Any) -> Launcher:
        return shared_launcher

    monkeypatch.setattr(session, "Launcher", launcher)
    return pytester
