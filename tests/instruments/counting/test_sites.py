"""Where operators are called from: the innermost line of the user's own code."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from pytest_ddpperf.instruments.counting.sites import Place, Stack, call_sites, digest
from pytest_ddpperf.strategies import handwritten
from pytest_ddpperf.training import timing

HERE = Path(__file__)
USERS, OURS, STRATEGY = "/project/train.py", str(timing.__file__), str(handwritten.__file__)
PACKAGE, TORCH = f"{sysconfig.get_path('purelib')}/somebodys/trainer.py", str(torch.__file__)


def through(*files: str, stack: Callable[[], Stack] = Stack, called: bool = False) -> Callable[[], Place]:
    """A function ``step`` of the first of these files that calls one of the next, in its third line, and so on."""
    scope: dict[str, Any] = {"stack": stack}
    exec(compile(f"def step():\n    return stack().{'call' if called else 'place'}()", TORCH, "exec"), scope)  # noqa: S102
    for file in reversed(files):
        scope = {"inner": scope["step"]}
        exec(compile("def step():\n    pass\n    return inner()", file, "exec"), scope)  # noqa: S102
    innermost: Callable[[], Place] = scope["step"]
    return innermost


def in_a_thread(function: Callable[[], Place]) -> Place:
    """What a function finds in a thread, which has no frames of this file."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_the_innermost_line_of_project_or_strategy_counts_otherwise_the_line_of_a_package() -> None:
    def found(*files: str) -> tuple[str, int]:
        return in_a_thread(through(*files))[:2]

    assert found(USERS, OURS, PACKAGE, TORCH) == (USERS, 3)
    assert found(USERS, OURS, STRATEGY, TORCH) == (STRATEGY, 3)
    assert found(OURS, PACKAGE, TORCH) == (PACKAGE, 3)
    assert found(OURS, TORCH) == ("", 0)


def test_a_place_has_the_innermost_line_of_a_package_that_the_projects_line_called() -> None:
    other = PACKAGE.replace("trainer", "accelerator")
    place = in_a_thread(through(PACKAGE, USERS, PACKAGE, other, TORCH))
    assert (place.file, place.through) == (USERS, (other, 3, "step"))
    assert in_a_thread(through(PACKAGE, USERS, TORCH)).through is None, "it called the project's line"
    assert in_a_thread(through(OURS, PACKAGE, TORCH)).through is None, "it is the place itself"
    (site,) = call_sites([{"collective_calls": {("all_reduce", place): 1.0}}], ("/project",))["collective_calls"]
    assert (site.file, site.through) == ("train.py", "somebodys/accelerator.py:3 in step")


def test_a_call_has_the_next_line_outwards_in_another_function_of_the_project() -> None:
    utils = USERS.replace("train", "utils")

    def caller(*files: str) -> tuple[str, int, str] | None:
        return in_a_thread(through(*files, called=True)).caller

    assert caller(USERS, OURS, TORCH, utils, PACKAGE, TORCH) == (USERS, 3, "step")
    assert caller(USERS, utils, utils, TORCH) == (USERS, 3, "step"), "the function called itself"
    assert caller(PACKAGE, USERS, TORCH) is None
    assert in_a_thread(through(USERS, utils, TORCH)).caller is None, "it was not asked for"
    place = in_a_thread(through(USERS, utils, TORCH, called=True))
    (site,) = call_sites([{"collective_calls": {("all_reduce", place): 1.0}}], ("/project",))["collective_calls"]
    assert (site.file, site.caller) == ("utils.py", "train.py:3 in step")


def test_a_thread_of_autograd_has_the_line_that_waits_for_it() -> None:
    of_this_thread = Stack()
    place = in_a_thread(through(TORCH, stack=lambda: of_this_thread))
    assert (Path(place.file).name, place.function) == (HERE.name, "in_a_thread")


def test_a_line_counts_with_the_mean_of_all_watched_steps() -> None:
    """What only some steps tell has the mean of these."""
    place = Place("/elsewhere/train.py", 3, "step", backward=False)
    calls, kept = (0.0, 4.0, 2.0, 4.0), {("kept", place): 7.0}
    steps = [{"collective_calls": {("all_reduce", place): number}} for number in calls]
    found = call_sites([{**steps[0], "retained_bytes": kept}, *steps[1:]], ("/elsewhere",))
    assert {metric: site.value for metric, (site,) in found.items()} == {"collective_calls": 2.5, "retained_bytes": 7.0}


def test_a_file_outside_of_the_project_has_its_name_alone_and_a_line_its_digest() -> None:
    step = {"collective_calls": {("all_reduce", Place("/home/alice/other/mod.py", 3, "step", backward=False)): 1.0}}
    (site,) = call_sites([step], ("/project",))["collective_calls"]
    assert (site.file, site.source) == ("mod.py", "")
    assert len({digest("a = 1"), digest("a = 2"), digest("")}) == 3
