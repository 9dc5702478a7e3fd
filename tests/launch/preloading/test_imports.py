"""What is noted of imports while they are watched."""

from __future__ import annotations

import builtins
import importlib
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.launch.messages import Preloaded
from pytest_ddpperf.launch.preloading.imports import ImportWatch, end_watch, keep_with_ranks
from pytest_ddpperf.launch.redirection import Redirection


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules can be imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_variables_that_an_import_reads_are_noted_with_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("import os", "MODE = os.environb[b'MODE_OF_IMPORT']", "GONE = os.environ.get('GONE_BEFORE_IMPORT')")
    (folder / "looks_up.py").write_text("\n".join((*lines, "HOME = os.getenv('HOME')", "os.get_exec_path()")))
    monkeypatch.setenv("GONE_BEFORE_IMPORT", "1")
    with ImportWatch() as watch:
        monkeypatch.setenv("MODE_OF_IMPORT", "fast")
        monkeypatch.delenv("GONE_BEFORE_IMPORT")
        module = __import__("looks_up")
    assert (module.MODE, module.GONE) == (b"fast", None)
    (found,) = watch.outer
    assert found.variables == {"MODE_OF_IMPORT", "GONE_BEFORE_IMPORT", "HOME", "PATH"}
    reason = "reads GONE_BEFORE_IMPORT, MODE_OF_IMPORT, which ranks change before this import"
    assert found.seen().refused == Preloaded(reason=reason)


def test_another_thread_may_read_a_variable_while_an_import_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "waits.py").write_text("import builtins\nbuiltins.thread.start()\nassert builtins.looks_up.wait(20)")
    looks_up, ended = threading.Event(), threading.Event()
    raised = list[type[BaseException]]()

    class Name(bytes):
        def decode(self, *how: str) -> str:
            looks_up.set()
            assert ended.wait(20)
            return super().decode(*how)

    def look_up() -> None:
        try:
            os.environb[Name(b"NO_SUCH_VARIABLE")]
        except LookupError as error:
            raised.append(type(error))

    thread = threading.Thread(target=look_up)
    monkeypatch.setattr(builtins, "looks_up", looks_up, raising=False)
    monkeypatch.setattr(builtins, "thread", thread, raising=False)
    with ImportWatch():
        __import__("waits")
    ended.set()
    thread.join()
    assert raised == [KeyError]


def test_packages_of_the_other_checkout_are_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpperf.launch.preloading.imports._of_project", [])
    monkeypatch.setattr("pytest_ddpperf.launch.preloading.imports.installed_folders", lambda: (f"{tmp_path}/",))
    for folder, name in (("built_there", "of_environment"), ("vendored", "of_copy"), ("vendored", "of_vendor")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.py").touch()
        monkeypatch.syspath_prepend(tmp_path / folder)
    environment, copy = str(tmp_path / "built_there"), str(tmp_path / "vendored" / "of_copy.py")
    keep_with_ranks(Redirection(root="/", target="/", environment=environment, copies=(copy,)))
    with ImportWatch() as watch:
        for name in ("of_environment", "of_copy", "of_vendor"):
            __import__(name)
    for one in watch.outer:
        one.seconds = 1.0
    installed = {one.module: one.installed for one in watch.seen()}
    assert installed == {"of_environment": False, "of_copy": False, "of_vendor": True}


def test_an_import_that_fails_again_and_again_is_noted_once(folder: Path) -> None:
    (folder / "led_to.py").write_text("")
    (folder / "lacks.py").write_text("import no_such_module")
    with ImportWatch() as watch:
        for number in range(4):
            if number == 2:
                (folder / "lacks.py").write_text("import led_to\nimport no_such_module")
                importlib.invalidate_caches()
            with suppress(ModuleNotFoundError):
                __import__("lacks")
    assert [one.module for one in watch.outer] == ["lacks", "led_to"]


def test_a_watch_that_has_ended_leaves_imports_as_they_were() -> None:
    bootstrap: Any = sys.modules["_frozen_importlib"]
    before = bootstrap._find_and_load
    with ImportWatch():
        assert bootstrap._find_and_load is not before
        end_watch()
        assert bootstrap._find_and_load is before
        end_watch()
    assert bootstrap._find_and_load is before


COUNTS = """
import os, signal, threading
from pytest_ddpperf.launch.preloading.imports import threads

os.register_at_fork(after_in_child=signal.pause)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(threads())
"""


def test_threads_are_counted_although_a_library_starts_one_in_a_child() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2\n"
