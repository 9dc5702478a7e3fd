"""What is wrong with training code is told in one line, with the cause and the cure: a row for each mistake.

All tests of a table run in one session, each with its own mistake; then each row looks at its own test's report.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from pytest_ddpperf.errors import NOT_MEASURED

PRELUDE = '''
import functools, importlib, itertools, os, subprocess, sys, time
from dataclasses import replace
import numpy, pytest, torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset
from pytest_ddpperf import Workload

def mlp():
    return nn.Sequential(nn.Linear(8, 4))

def batch():
    return torch.randn(4, 8), torch.randint(4, (4,))

def labelled():
    return dict(zip(("x", "labels"), batch()))

def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def lazy():
    return nn.Sequential(nn.LazyLinear(4))

class InTuple(nn.Linear):
    def forward(self, inputs):
        return (super().forward(inputs),)

MODEL = mlp()
OPTIMIZER = sgd(MODEL.parameters())
PLAIN = Workload(model=mlp, batch=batch, loss=cross_entropy, optimizer=sgd, samples_per_step=4)

def workload(**changes):
    return replace(PLAIN, **changes)

def runs(function):
    """A build(ctx) whose step calls the function."""
    return lambda ctx: function

class Unpicklable(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(8), torch.tensor(1)

class Doubling(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.mul_(2))

def popping(model, batch):
    labels = batch.pop("labels")
    return cross_entropy(model(batch["x"]), labels)

def counted(parameters):
    print(sum(parameter.numel() for parameter in parameters))
    return sgd(parameters)

def with_yield():
    yield 1.0

async def with_async():
    return 1.0

def on_cuda(ctx):
    model = mlp().cuda()
    return lambda: None

def runs_suite(ctx):
    pytest.main(["-q"])
    return lambda: None

def nan_in_between(ctx):
    losses = itertools.chain([1.0] * 4, [float("nan")], itertools.repeat(1.0))
    return lambda: next(losses)

def recurrent(ctx):
    cell, state, inputs = nn.RNNCell(8, 8), [torch.zeros(4, 8)], torch.randn(4, 8)
    def step():
        state[0] = cell(inputs, state[0])
        loss = state[0].sum()
        loss.backward()
        return loss
    return step
'''


class Row(NamedTuple):
    """One mistake."""

    name: str
    code: str  # what the test calls, or lines of its body
    line: str  # a regular expression for the first line of what is told
    passes: bool = False  # whether the test passes, and the line is a remark


REFUSED_BEFORE_RANKS = [
    Row("loss_class", "workload(loss=nn.CrossEntropyLoss)", r"the class CrossEntropyLoss: give an object of it"),
    Row("workload_class", "Workload", r"the class Workload cannot be measured: give an object of it"),
    Row("model_object", "workload(model=MODEL)", r"a Sequential module: give a function that builds it"),
    Row(
        "optimizer_object", "workload(optimizer=OPTIMIZER)", r"cannot be called: give a function, optimizer=lambda par"
    ),
    Row("batch_object", "workload(batch=batch())", r"cannot be called: give a function, batch=lambda: ..."),
    Row(
        "loader_object",
        "workload(batch=None, loader=DataLoader(Unpicklable()))",
        r"cannot be called: give a function, loader=lambda rank, world_size: ...",
    ),
    Row("model_takes", "workload(model=lambda n: n)", r"takes \(n\) .* missing .*; give model=lambda: ..."),
    Row("model_class_takes", "workload(model=nn.Linear)", r"Linear takes .* missing .*; give model=lambda: ..."),
    Row("batch_takes", "workload(batch=lambda n: n)", r"takes \(n\) .* missing .*; give batch=lambda: ..."),
    Row("loss_takes", "workload(loss=lambda o: o)", r"too many .*; give loss=lambda outputs, targets: ..."),
    Row("optimizer_takes", "workload(optimizer=lambda: 0)", r"too many .*; give optimizer=lambda parameters: ..."),
    Row("loader_takes", "workload(batch=None, loader=lambda: 0)", r"; give loader=lambda rank, world_size: ..."),
    Row("forward_takes", "workload(loss=None, forward=lambda m: m)", r"; give forward=lambda model, batch: ..."),
    Row("blocks_takes", "workload(blocks=lambda: [])", r"too many .*; give blocks=lambda model: ..."),
    Row("loss_and_forward", "workload(forward=popping)", r"both loss and forward: give one of them"),
    Row("no_samples", "workload(samples_per_step=0)", r"Workload\(samples_per_step=...\) is 0: give a number above 0"),
    Row("module_subject", "MODEL", r"a Sequential cannot be measured: expected a Workload, .* or a function build"),
    Row("text_subject", "'train.py'", r"a str cannot be measured: expected a Workload, .* or a function build"),
    Row(
        "build_takes",
        "lambda: None",
        r"takes \(\) and is called as <lambda>\(ctx\): .*; a function that trains by itself is given as Script",
    ),
    Row(
        "closure_ddpperf",
        "lambda ctx: ddpperf.world_sizes",
        r"closure variable 'ddpperf' of .* belongs to the test session; read what is needed of it before",
    ),
    Row(
        "closure_request",
        "lambda ctx: request.node",
        r"closure variable 'request' of .* belongs to the test session; read what is needed of it before",
    ),
    Row(
        "closure_capsys",
        "lambda ctx: capsys.readouterr()",
        r"closure variable 'capsys' of .* belongs to the test session; read what is needed of it before",
    ),
]

TOLD_BY_RANKS = [
    Row("same_model", "workload(model=lambda: MODEL)", r"same Sequential twice: model\(\) must make a new one at each"),
    Row(
        "same_both",
        "workload(model=lambda: MODEL, optimizer=lambda _: OPTIMIZER)",
        r"gave the same \w+ twice: .* must make a new one at each call",
    ),
    Row(
        "in_place", "workload(model=lambda: Doubling(8, 4))", r"^a step changes inputs in place, .*: change a clone\(\)"
    ),
    Row(
        "pop",
        "workload(loss=None, forward=popping, batch=labelled)",
        r"^a step takes batch\['labels'\] out of its batch, .*: read it without pop\(\)",
    ),
    Row(
        "meta_model",
        "workload(model=lambda: mlp().to('meta'))",
        r"with 0.weight on the meta device, .* build it on the",
    ),
    Row(
        "model_ddp", "workload(model=lambda: nn.parallel.DistributedDataParallel(mlp()))", r"must give the plain module"
    ),
    Row("model_lazy", "workload(model=lazy)", r"with 0.weight, which has no shape yet: .* must run it once on a batch"),
    Row(
        "outputs_tuple",
        "workload(model=lambda: InTuple(8, 4))",
        r"not tuple while it was compared with a single process; the model's output is not a tensor: select the tensor",
    ),
    Row(
        "slurm", "lambda ctx: os.environ['SLURM_PROCID']", r"a rank has torchrun's variables, such as RANK, LOCAL_RANK"
    ),
    Row(
        "relative_path",
        "lambda ctx: open('data/train.csv')",
        r"ranks run where pytest was started: begin paths with Pa",
    ),
    Row("batch_loader", "workload(batch=lambda: DataLoader(Unpicklable()))", r"as a batch: .* is Workload\(loader="),
    Row(
        "batch_meta",
        "workload(batch=lambda: (torch.randn(4, 8, device='meta'), 0))",
        r"gave a tensor on the meta device, which has no values: make batches on the CPU",
    ),
    Row(
        "dataset_unpicklable",
        "workload(batch=None, loader=lambda rank, size: DataLoader("
        "Unpicklable(), batch_size=4, num_workers=1, multiprocessing_context='spawn'))",
        r"raised .*[Pp]ickl.*: move the function or class to a module of its own, or give the DataLoader multi",
    ),
    Row(
        "loss_infinite", "workload(loss=lambda o, t: o.sum() * float('inf'))", r"^loss is -?(inf|nan) .* learning rate"
    ),
    Row(
        "optimizer_of_others",
        "workload(optimizer=lambda _: sgd(mlp().parameters()))",
        r"a SGD that trains no parameter of the model: optimizer must use its argument parameters",
    ),
    Row("optimizer_lbfgs", "workload(optimizer=torch.optim.LBFGS)", r"needs a closure, so give build\(ctx\) -> step"),
    Row(
        "optimizer_tuple", "workload(optimizer=lambda p: (sgd(p), 0))", r"of type tuple: .* must give a torch optimizer"
    ),
    Row(
        "optimizer_late",
        "workload(optimizer=counted)",
        r"empty parameter list while it was compared with a single process; an iterator of parameters ends after one",
    ),
    Row("step_takes", "runs(lambda n: n)", r"^the step of .* takes \(n\) .* missing a required argument: 'n'"),
    Row("step_yields", "runs(with_yield)", r"is a function with yield, of which a call runs nothing: make it a plain"),
    Row("step_async", "runs(with_async)", r"is a function with async, of which a call runs nothing: make it a plain"),
    Row("step_nan", "runs(lambda: float('nan'))", r"^loss is nan at warm-up step 1 .*; check the learning rate"),
    Row(
        "step_sys_exit",
        "runs(lambda: sys.exit(0))",
        r"called sys.exit\(0\); an exit ends the rank: return from the function",
    ),
    Row(
        "step_graph",
        "recurrent",
        r"backward through the graph a second time.*; a step uses a tensor of an earlier step, .*detach",
    ),
    Row(
        "build_cuda",
        "on_cuda",
        r"this rank computes on the CPU: use ctx.device, and in a script check torch.cuda.is_available\(\)",
    ),
    Row(
        "no_module",
        "runs(lambda: importlib.import_module('ours'))",
        r"No module named 'ours'; .*pip install -e .*pythonpath",
    ),
    Row("build_suite", "runs_suite", r"^a rank called pytest.main\(\), .*: call pytest.main\(\) in a test"),
    Row(
        "late",
        "ddpperf.check(runs(lambda: time.sleep(30)), timeout=2)",
        r"still running after 2 s, standing at .*; if the launch is slow, raise timeout",
    ),
    Row(
        "nan_in_between",
        "ddpperf.check(nan_in_between, counts='on', warmup=1, steps=9, max_time=1)",
        r"^loss is nan at timed step 4 of \d+ on rank [01]: .* check the learning rate",
    ),
    Row(
        "other_samples",
        "workload(samples_per_step=2)",
        r"samples_per_step=2, but .* dimension of 4: .*; give",
        passes=True,
    ),
    Row("eval_mode", "workload(model=lambda: mlp().eval())", r"is in eval mode, .*: call train\(\)", passes=True),
    Row(
        "children",
        "runs(lambda: subprocess.Popen(['sleep', '60']) and None)",
        r"steps leave processes behind, .*end them in close\(\), or join them in the step",
        passes=True,
    ),
]


def suite(rows: list[Row]) -> str:
    """A test module with a test for each row."""
    tests = []
    for row in rows:
        fixtures = ["ddpperf", *(name for name in ("request", "capsys") if f"{name}." in row.code)]
        call = row.code if row.code.startswith("ddpperf.") else f"ddpperf.check({row.code})"
        tests.append(f"def test_{row.name}({', '.join(fixtures)}):\n{textwrap.indent(call, '    ')}\n")
    return "\n".join([PRELUDE, *tests])


def test_what_needs_no_ranks_is_refused_without_them(inner: pytest.Pytester) -> None:
    inner.makepyfile(suite(REFUSED_BEFORE_RANKS))
    run = inner.inline_run("--ddpperf-counts=only", "--ddpperf-world-size=2", "-p", "no:cacheprovider")
    calls = [report for report in run.getreports("pytest_runtest_logreport") if report.when == "call"]
    told = {report.nodeid.rpartition("::test_")[2]: report.longreprtext.partition("\n")[0] for report in calls}
    wrong = {row.name: told[row.name] for row in REFUSED_BEFORE_RANKS if not re.search(row.line, told[row.name])}
    assert wrong == {}
    assert run.ret == NOT_MEASURED


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """The outcome of each test and the line that it is told in; of tests that pass, the whole output of the session."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "test_wrong.py").write_text(suite(TOLD_BY_RANKS))
    options = ["--ddpperf-counts=only", "--ddpperf-world-size=2", "--ddpperf-timeout=60", "--junitxml=told.xml"]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    outcomes = {}
    for case in ET.parse(Path(folder, "told.xml")).getroot().iter("testcase"):  # noqa: S314  pytest has written it
        failure = case.find("failure")
        line = " ".join(done.stdout.split()) if failure is None else failure.attrib["message"].partition("\n")[0]
        outcomes[case.attrib["name"].removeprefix("test_")] = ("passed" if failure is None else "failed", line)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("row", TOLD_BY_RANKS, ids=lambda row: row.name)
def test_a_mistake_is_told_in_one_line_with_its_cure(told: dict[str, tuple[str, str]], row: Row) -> None:
    outcome, line = told[row.name]
    assert (outcome, bool(re.search(row.line, line))) == ("passed" if row.passes else "failed", True), line


def test_the_table_has_half_of_eighty_wrong_calls() -> None:
    rows = [*REFUSED_BEFORE_RANKS, *TOLD_BY_RANKS]
    assert len({row.name for row in rows}) == len(rows) >= 45
