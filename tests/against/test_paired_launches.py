"""The modules that the two sides of a paired benchmark have imported."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.against.paired_launches import PairedLaunches
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.redirection import Redirection
from pytest_ddpperf.launch.streams import RankOutput
from pytest_ddpperf.records.results import PairedRevision
from pytest_ddpperf.reports.findings import finding_text
from tests.factories import make_new_result


def launched(*files: dict[str, str]) -> LaunchResult[Any]:
    return LaunchResult(tuple((None, one) for one in files), (RankOutput("", ""),) * len(files), 1.0)


def test_modules_that_the_two_sides_imported_are_listed_in_pairs() -> None:
    reference: Any = SimpleNamespace(redirection=Redirection(root="/here", target="/there"))
    paired = PairedLaunches(reference, [])
    paired._noted(paired._of_candidate, launched({"demo": "/here/demo.py"}, {"demo.b": "/here/b.py"}))
    paired._noted(paired._of_reference, launched({"demo": "/there/demo.py", "demo.c": "/there/c.py"}))
    assert paired.modules == {
        "demo": ("/here/demo.py", "/there/demo.py"),
        "demo.b": ("/here/b.py", None),
        "demo.c": (None, "/there/c.py"),
    }


MODULE = """
def outer(seconds):
    def inner(ctx):
        return seconds
    return inner

def plain(ctx):
    return 1
"""


@pytest.mark.parametrize(("strict", "changed"), [(True, True), (True, False), (False, True)])
def test_a_function_inside_another_one_is_not_measured_as_the_other_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, strict: bool, changed: bool
) -> None:
    """It travels by value, so both sides would run this checkout's code."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, text in ((here, MODULE), (there, MODULE + "# changed\n" * changed)):
        folder.mkdir()
        (folder / "inner_of_project.py").write_text(text)
    monkeypatch.syspath_prepend(here)
    module = importlib.import_module("inner_of_project")
    called: list[object] = []

    def called_with(*call: object, **_: object) -> LaunchResult[Any]:
        called.append(call)
        return launched({})

    side: Any = SimpleNamespace(
        redirection=Redirection(root=str(here), target=str(there)),
        revision=SimpleNamespace(label="3f2a1c0"),
        launchers=SimpleNamespace(with_variables=lambda _: [SimpleNamespace(run=called_with)]),
        tests=True,
    )
    paired = PairedLaunches(side, [], strict=strict)

    def run(function: object) -> None:
        paired.run(side.launchers, 0, function, benchmark=("custom", 2), reference=True)

    run(module.plain)
    assert len(called) == 1
    if strict and changed:
        with pytest.raises(
            Exception,
            match=r"outer.<locals>.inner \(inner_of_project.py:3\): the file has changed, but both sides would run",
        ):
            run(module.outer(1.0))
        assert len(called) == 1
    else:
        run(module.outer(1.0))
        assert len(called) == 2


@pytest.mark.parametrize("own", [False, True])
def test_a_note_names_the_tests_of_the_reference_that_differ_and_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """A batch that is larger there is measured by neither side."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_batch.py").write_text(f"BATCH = {len(folder)}\n")
        (tmp_path / folder / "conftest.py").write_text("")
    for name in ("test_batch", "conftest"):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / "here" / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
    side: Any = SimpleNamespace(
        redirection=Redirection(root=str(tmp_path / "here"), target=str(tmp_path / "there")),
        revision=SimpleNamespace(python=None, here=True),
        tests=own,
    )
    pair = PairedRevision(revision="3f2a1c0", commit="3f2a1c0")
    result = replace(make_new_result("test_batch.py::test_a"), reference=pair)
    told = [finding_text(each) for each in PairedLaunches(side, []).with_imports(result).findings]
    words = (
        "test_batch.py differs in the reference, but both revisions ran this checkout's version, so the difference is "
        "not measured; with --ddpperf-against-tests, each runs its own functions of the file"
    )
    assert told == [words] * (not own)
