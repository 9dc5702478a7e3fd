"""What is wrong with training code is told in one line, with the cause and the cure: a row for each mistake."""

from __future__ import annotations

import importlib
import os
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pytest_ddpperf.launch.faults.cures import cure_of

PRELUDE = """
import pytest, torch
from torch import nn
from pytest_ddpperf import Workload

def batch():
    return torch.randn(4, 8), torch.randint(4, (4,))

def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def workload(model):
    return Workload(
        model=model, batch=batch, loss=nn.functional.cross_entropy, optimizer=sgd, samples_per_step=4
    )

def runs_suite(ctx):
    pytest.main(["-q"])
    return lambda: None
"""
TOLD = {  # what a test checks, and a regular expression for the first line of its failure
    "Workload": r"the class Workload cannot be measured: give an instance",
    "workload(nn.Linear)": r"Linear takes .* missing .*; give model=lambda: ...",
    "nn.Linear(8, 4)": r"a Linear cannot be measured: expected a Workload, .* or a function build",
    "lambda: None": r"takes \(\) and is called as <lambda>\(ctx\): .*; a function that trains by itself is given as Sc",
    "lambda ctx: ddpperf.world_sizes": (
        r"closure variable 'ddpperf' of .* this object is part of pytest; read the needed values before"
    ),
    "runs_suite": r"^a rank called pytest.main\(\), .*: call it outside of the measured code",
}


def test_wrong_training_code_is_reported_in_one_line_with_the_cure(inner: pytest.Pytester) -> None:
    tests = [f"def test_{n}(ddpperf):\n    ddpperf.check({code})\n" for n, code in enumerate(TOLD)]
    inner.makepyfile("\n".join([PRELUDE, *tests]))
    run = inner.inline_run("--ddpperf-counts=only", "--ddpperf-world-size=2", "-p", "no:cacheprovider")
    calls = [report for report in run.getreports("pytest_runtest_logreport") if report.when == "call"]
    lines = [report.longreprtext.partition("\n")[0] for report in calls]
    wrong = [line for line, words in zip(lines, TOLD.values(), strict=True) if not re.search(words, line)]
    assert wrong == []


def late(parameters: Iterable[nn.Parameter]) -> object:
    print(sum(parameter.numel() for parameter in parameters))
    return torch.optim.SGD(parameters, lr=0.1)


def recurrent() -> None:
    cell, state = nn.RNNCell(8, 8), torch.zeros(4, 8)
    for _ in range(2):
        state = cell(torch.randn(4, 8), state)
        state.sum().backward()


def give(value: Any) -> Any:
    return value


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: cross_entropy(give((torch.randn(4, 4),)), torch.zeros(4, dtype=torch.long)),
        "the model's output is not a tensor: select the tensor",
    ),
    (lambda: os.environ["SLURM_PROCID"], "ranks have torchrun's variables instead: RANK, LOCAL_RANK"),
    (lambda: Path("data/train.csv").read_text(), "ranks run where pytest was started: begin paths with Pa"),
    (lambda: pickle.dumps(lambda: 0), "move the function or class to a separate module, or give the DataLoader"),
    (lambda: late(iter(nn.Linear(8, 4).parameters())), "an iterator of parameters ends after one"),
    (recurrent, "two backward passes use one graph, such as an earlier hidden state's graph: detach"),
    (lambda: importlib.import_module("ours"), "pip install -e"),
]


@pytest.mark.parametrize(("mistake", "cure"), MISTAKES)
def test_errors_of_common_mistakes_have_a_cure(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[], object], cure: str
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(BaseException) as raised:  # noqa: PT011  each another one
        mistake()
    assert cure in cure_of(type(raised.value).__name__, str(raised.value))
