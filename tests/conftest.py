"""What the tests share: pytest's own tester for plugins, and one zygote for nearly all ranks that they start."""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import pytest_ddpperf
from pytest_ddpperf.errors import RankSkipped
from pytest_ddpperf.instruments.host import usable_cores
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.run.session import sides
from pytest_ddpperf.units import format_count
from tests.factories import SHARDS_ON_CPU, without_plugins

pytest_plugins = ["pytester"]

# Hundreds of processes import the package: each would compile it if the environment asked for no bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Of all workers and runs; each of these has a folder of its own for the rest, as they measure at the same time.
SHARED = os.environ.setdefault("DDPPERF_TESTS_SHARED", tempfile.gettempdir())
GPU_LOCK = Path(SHARED, f"ddpperf-tests-on-gpus-{os.getuid()}.lock")
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", SHARED)
tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="ddpperf-tests-", dir=SHARED)
atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# Plugins that only tests of their own load: each would take time in all inner runs, and shuffle some of them.
os.environ["PYTEST_ADDOPTS"] = without_plugins()

# A job in the background of a shell ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An inner run forgets what it has imported. Some of it cannot be imported twice into one process; all of it takes time.
IMPORTED_ONCE = ("torch", "torch._dynamo", "numpy", "scipy.special", "cloudpickle", "hypothesis", "sqlite3")
OF_CONTROLLER = tuple(
    module.name
    for module in walk_packages(pytest_ddpperf.__path__, "pytest_ddpperf.")
    if module.name.split(".")[1] in {"against", "baselines", "judge", "metrics", "records", "reports", "run", "stats"}
)
# What ranks of the tests need beside that: who finds it imported need not import it in every launch.
PRELOADED = (
    *sides.PRELOADED,
    "pytest_ddpperf.instruments.profile.profiling",
    "pytest_ddpperf.planner.simulate.group",
    "pytest_ddpperf.strategies.fsdp1",
    "pytest_ddpperf.strategies.fsdp2",
    "pytest_ddpperf.strategies.zero1",
)


# From the slowest to the fastest: files with tests of ranks, of processes and files, and of functions.
SLOW_FIXTURES = ({"launcher", "launchers"}, {"pytester", "tmp_path"})


def pytest_configure(config: pytest.Config) -> None:
    """Have workers take files in the order of the tests; pytest-xdist would put those of few, slow tests last."""
    config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start three workers for two cores with ``-n auto``, because tests of launches wait for a third of their time."""
    return min(max(2, 3 * usable_cores() // 2), 8)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files of slow tests first in workers, so that all end at about the same time."""
    if not hasattr(config, "workerinput"):
        return
    fixtures: dict[Path, set[str]] = {}
    for item in items:
        fixtures.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: [not slow & fixtures[item.path] for slow in SLOW_FIXTURES])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip what the installed torch is too old for, as it says itself."""
    try:
        return (yield)
    except RankSkipped as skipped:
        if SHARDS_ON_CPU or "needs torch 2.7" not in str(skipped):
            raise
        pytest.skip(f"{item.name}: {skipped}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more GPUs than there are, or a strategy that the installed torch does not run on the CPU."""
    if not SHARDS_ON_CPU and "fsdp2" in item.name and "launcher" in getattr(item, "fixturenames", ()):
        pytest.skip("fsdp2 on the CPU needs torch 2.7")
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    needed, usable = marker.kwargs.get("devices", 1), usable_gpus()
    if usable < needed:
        pytest.skip(f"needs {format_count(needed, 'CUDA device')}, and torch can use {usable or 'none'}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Let tests that need a GPU have it alone, also in workers of pytest-xdist: they read what of its memory is in use.

    Those that only compare numbers share it.
    """
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return (yield)
    with GPU_LOCK.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH if marker.kwargs.get("shared") else fcntl.LOCK_EX)  # until it is closed
        return (yield)


@cache
def usable_gpus() -> int:
    """The GPUs that CUDA can use; those that the driver lists may be more."""
    torch = import_module("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a driver that is too old
        return int(torch._C._cuda_getDeviceCount()) if torch.cuda.is_available() else 0


@pytest.fixture(scope="module", autouse=True)
def _like_a_rank() -> None:
    """One thread, and what has been imported hidden from the garbage collector.

    Steps that are counted or watched collect garbage each time, which looks through all that is not hidden.
    """
    if "torch" in sys.modules:
        import_module("torch._dynamo")  # the first optimizer would
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()


class SharedLaunchers(Launchers):
    """Launchers that live on when a session ends."""

    def close(self) -> None:
        """Leave them to their owner."""


@pytest.fixture(scope="session")
def launchers() -> Iterator[Launchers]:
    """The launchers of all tests but those of launching itself; inner sessions share them."""
    for name in (*IMPORTED_ONCE, *OF_CONTROLLER):
        import_module(name)
    launchers = SharedLaunchers(lambda first: Launcher(preload=PRELOADED, like=first))
    yield launchers
    Launchers.close(launchers)


@pytest.fixture(scope="session")
def launcher(launchers: Launchers) -> Launcher:
    """The first of them."""
    return launchers[0]


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs suites on a terminal whose lines are long enough for each sentence, without plugins that change runs.

    No bytecode of them is kept: it would stand for the next suite of the same name, size and second.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTEST_ADDOPTS", without_plugins())
    return pytester


@pytest.fixture
def other_plugins() -> None:
    """Lets inner runs load whatever plugins are installed."""


@pytest.fixture
def inner(
    pytester: pytest.Pytester, launchers: Launchers, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> pytest.Pytester:
    """Runs suites in this process, on the ranks of launchers that have been started once for all of them.

    These runs load no other plugin than ours: to look for others in all that is installed takes half of their time.
    """
    run = pytester.inline_run

    def inline_run(*arguments: Any, **more: Any) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            patched.setenv("PYTEST_PLUGINS", "pytest_ddpperf.plugin")
            return run(*arguments, **more)

    monkeypatch.setattr(sides, "Launchers", lambda *_: launchers)
    if "other_plugins" not in request.fixturenames:
        monkeypatch.setattr(pytester, "inline_run", inline_run)
    return pytester
