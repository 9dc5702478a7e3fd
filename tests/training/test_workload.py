"""Workloads that hold what they should not are named at once, with the field."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.unpicklable import describe
from pytest_ddpperf.training.workload import located, unfit
from tests.training.workloads import workload


def test_what_is_given_is_held() -> None:
    given = workload(tokens_per_step=128)
    assert (given.samples_per_step, given.tokens_per_step, given.loader, given.blocks) == (4, 128, None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": None}, "neither batch nor loader: give one, either"),
        ({"batch": print, "loader": lambda _rank, _size: []}, "both batch and loader: give one, either"),
        ({"model": None}, r"Workload\(model=...\) is None, not a function: give"),
        ({"model": torch.nn.Linear(2, 2)}, r"Workload\(model=...\) is a Linear module: give a function that builds it"),
        ({"batch": (1, 2)}, r"Workload\(batch=...\) is \(1, 2\), not a function"),
        ({"batch": None, "loader": [1]}, r"Workload\(loader=...\) is \[1\], not a function"),
        ({"loss": None}, "neither loss nor forward: give one, either"),
        ({"forward": lambda _model, _batch: 0}, "both loss and forward: give one, either"),
        ({"blocks": []}, r"Workload\(blocks=...\) is \[\], not a function"),
        ({"loss": torch.nn.MSELoss}, r"Workload\(loss=...\) is the class MSELoss: give an instance, loss=MSELoss\(\)"),
        ({"model": lambda size: size}, r"Workload\(model=...\): .* takes \(size\) and .*; give model=lambda: ...$"),
        ({"loss": lambda outputs: outputs}, r"too many positional arguments; give loss=lambda outputs, targets: ...$"),
        ({"optimizer": lambda: None}, r"Workload\(optimizer=...\): .*; give optimizer=lambda parameters: ...$"),
        ({"blocks": lambda: ()}, r"Workload\(blocks=...\): .*; give blocks=lambda model: ...$"),
        ({"batch": None, "loader": lambda: ()}, r"Workload\(loader=.*; give loader=lambda rank, world_size: ...$"),
        (
            {"loss": None, "forward": lambda model: model},
            r"Workload\(forward=.*; give forward=lambda model, batch: ...$",
        ),
        ({"samples_per_step": 0}, r"Workload\(samples_per_step=0\): give a finite number above 0"),
        ({"samples_per_step": True}, r"Workload\(samples_per_step=True\): give a finite number above 0"),
        ({"tokens_per_step": float("nan")}, r"Workload\(tokens_per_step=nan\): give a finite number above 0"),
        ({"tokens_per_step": "128"}, r"Workload\(tokens_per_step='128'\): give a finite number above 0"),
    ],
)
def test_a_wrong_field_is_named_with_its_cure(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        workload(**changes)


def test_functions_are_located_by_file_and_line() -> None:
    line = workload.__code__.co_firstlineno
    assert located(workload).startswith("workload (")
    assert located(workload).endswith(f"workloads.py:{line})")
    assert located(functools.partial(workload, tokens_per_step=1)) == located(workload)
    assert located(torch.optim.SGD) == "SGD"
    assert located(torch.nn.MSELoss()) == "MSELoss"


def test_a_place_is_told_where_the_current_folder_was_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    line = workload.__code__.co_firstlineno
    assert located(workload) == describe(workload) == f"workload ({workload.__code__.co_filename}:{line})"


def test_what_a_function_cannot_be_called_with_is_said() -> None:
    def step(number: int, *, fast: bool = False) -> None:
        """Takes a number."""

    partial = functools.partial(step, 1)
    assert unfit(step, "number") is None
    assert unfit(step, "number", fast=True) is None
    assert unfit(partial) is None
    assert unfit(print, "anything") is None
    text = unfit(step, "number", slow=True)
    assert text is not None
    assert text.startswith("step (")
    assert text.endswith("is called as step(number, slow=True): got an unexpected keyword argument 'slow'")


def test_a_decorator_may_give_what_a_function_takes_besides() -> None:
    def given_width(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            return function(2, *arguments)

        return wrapper

    assert workload(model=given_width(lambda width: torch.nn.Linear(width, width))).model() is not None
