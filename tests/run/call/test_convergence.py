"""``ddpperf.converge`` on two ranks: strategies that train alike, and some that do not."""

from __future__ import annotations

import json

import pytest

from pytest_ddpperf.errors import QualityLost
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.call.convergence import require_quality
from tests.factories import NEEDS_FSDP2
from tests.judge.test_quality import convergence, ending

SUITE = """
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddpperf import Parallel, Workload
from pytest_ddpperf.errors import DdpperfError, QualityLost


def batch():
    inputs = torch.randn(16, 8)
    return inputs, inputs[:, :3].argmax(dim=1)


def accuracy(model, device):
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).to(device)
    return {"accuracy": (model(inputs).argmax(dim=1) == inputs[:, :3].argmax(dim=1)).float().mean()}


workload = Workload(
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3)),
    batch=batch,
    loss=nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.2, momentum=0.9),
    samples_per_step=16,
    evaluate=accuracy,
)
train = {"steps": 12, "launches": 3, "world_size": 2, "device": "cpu"}


def averaging(module, ctx, left_out=0):
    for tensor in module.parameters():
        dist.broadcast(tensor.detach(), src=0)

    def synchronise():
        for parameter in list(module.parameters())[left_out:]:
            dist.all_reduce(parameter.grad)
            parameter.grad /= ctx.world_size

    return Parallel(module, synchronise)
"""


def run(inner: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    inner.makepyfile(test_converge=SUITE + body)
    return inner.runpytest_inprocess("-p", "no:cacheprovider", *options)


@NEEDS_FSDP2
def test_strategies_that_average_gradients_reach_the_same_loss(inner: pytest.Pytester) -> None:
    """A mean over ranks of 12 steps in points of 5, from other weights and batches in each launch.

    A test that a budget lets run twice, for a benchmark that is open, makes its trainings once.
    """
    result = run(
        inner,
        """
from pytest_ddpperf.run.budget import allocation, session_budget
from pytest_ddpperf.run.call import convergence

made, begun = [], []
real = convergence.converged


def test_it(ddpperf, monkeypatch, request):
    monkeypatch.setattr(convergence, "converged", lambda *given: made.append(1) or real(*given))
    asked = allocation.TimeRequest(priority=allocation.Priority.SEE, wanted=3.0)
    patched = pytest.MonkeyPatch()
    request.session.config.add_cleanup(patched.undo)
    patched.setattr(session_budget, "request_of", lambda results, look: asked)
    begun.append(1)
    test_other(ddpperf)
    ways = {"ddp": "ddp", "own": averaging, "fsdp2": "fsdp2"}
    found = ddpperf.converge(workload, strategies=ways, every=5, **train)
    assert found.metric == "accuracy"
    for curves in found.curves.values():
        assert [curve.steps for curve in curves] == [(5, 10, 12)] * 3
        for curve in curves:
            assert curve.values["loss"][-1] < curve.values["loss"][0]
            assert {len(values) for values in curve.values.values()} == {3}
    first, second, third = found.final("ddp", "loss").samples
    assert abs(first - second) > 1e-3
    assert found.final("own", "loss").samples == pytest.approx((first, second, third), rel=1e-4)
    assert [row.agreement for row in found.kept] == ["equal"] * 4
    assert all(row.allowed < 0.02 for row in found.kept)
    assert made == [1]
    Path("begun").write_text(str(len(begun)))


def test_other(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0, launches=2, steps=5, warmup=1, counts="off", world_size=1)
""",
        *("--ddpperf-report=json:found.json", "--ddpperf-budget=20s"),
    )
    result.assert_outcomes(passed=2)
    assert (inner.path / "begun").read_text() == "2"
    result.stdout.fnmatch_lines(["*ddpperf convergence*", "*test_it ddp *first*", "*test_it own *equal*"])
    (found,) = json.loads((inner.path / "found.json").read_text())["convergences"]
    assert [len(one["curves"]) for one in found["strategies"]] == [3, 3, 3]
    assert {row["agreement"] for row in found["kept"]} == {"equal"}


def test_lost_quality_fails_no_test_that_only_fails_if_it_is_broken() -> None:
    found = convergence(ending("flat", (0.5, 0.6, 0.7), (0.7, 0.7, 0.7)), exact=False)
    with pytest.raises(QualityLost, match=r"flat ends with accuracy 0.700, ddp with 0.800"):
        require_quality(found, {Verdict.REGRESSED})
    require_quality(found, {Verdict.BROKEN})


def test_lost_quality_fails_as_a_regression_does(inner: pytest.Pytester) -> None:
    """One strategy forgets a parameter.

    Of others the loss of one rank, or a metric, is not finite: the ranks stop together, and the rest is held.
    """
    result = run(
        inner,
        """
def exploding(module, ctx, at, rank=0):
    steps = []

    def synchronise():
        steps.append(1)
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ctx.world_size * (len(steps) != at or ctx.rank != rank)

    return Parallel(module, synchronise)


def by_weights(model, device):
    return {"accuracy": 1.0 if next(model.parameters()).isfinite().all() else float("nan")}


def test_wrong(ddpperf):
    ddpperf.converge(workload, strategies={"ddp": "ddp", "wrong": partial(averaging, left_out=1)}, **train)


def test_lost(ddpperf):
    bad, late = (partial(exploding, at=at, rank=1) for at in (7, 12))
    ways = {"ddp": "ddp", "bad": bad, "late": late, "flat": "flat"}
    with pytest.raises(QualityLost) as raised:
        ddpperf.converge(replace(workload, evaluate=by_weights), strategies=ways, every=5, **train)
    first, second, *others = str(raised.value).splitlines()
    assert first.startswith("bad: loss is nan at step 8 of 12 on rank 1 in launch 1; ")
    assert first.endswith(" in launch 3; with ddp all values stay finite")
    assert "late: accuracy is nan at step 12 of 12 on rank 1 in launch 1; " in second
    assert len(others) == 1
""",
        "--ddpperf-report=json:found.json",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*wrong ends with loss *, ddp with *", "*ddpperf.check(workload, strategy=*"])
    result.stdout.no_fnmatch_line("*run/call/convergence.py*")
    result.stdout.fnmatch_lines(["test_lost*bad *not finite*worse", "test_lost*flat *equal"])
    _, found = json.loads((inner.path / "found.json").read_text())["convergences"]
    bad, late = (found["strategies"][number]["curves"][0]["values"] for number in (1, 2))
    assert (bad["accuracy"], late["accuracy"], bad["loss"][1:]) == ([1, None, None], [1, 1, None], [None, None])
    assert [row["agreement"] for row in found["kept"]] == [*["worse"] * 4, *["equal"] * 2]


BOTH = "strategies=['ddp', 'flat']"
WRONG = {
    "workload, strategies=['ddp']": "ddpperf.converge(strategies=['ddp']): expected two or more strategies",
    f"averaging, {BOTH}": "ddpperf.converge: expected a Workload and a list of strategies, such as ['naive', 'ddp']",
    f"workload, {BOTH}, every=0": "ddpperf.converge(every=0): expected a whole number of at least 1",
    f"workload, {BOTH}, **train | {{'launches': 2}}": "(launches=2): expected a whole number of at least 3",
    f"workload, {BOTH}, compile='step'": "compile=step: ddpperf.converge compiles no whole step; use compile=model",
    f"workload, {BOTH}, better='more'": "ddpperf.converge(better='more'): expected 'higher' or 'lower'",
    f"replace(workload, evaluate=None), {BOTH}, metric='f1'": "this Workload has no function evaluate; give",
    f"replace(workload, evaluate=by_rank), {BOTH}": "every call, but these names differ on rank 1 in",
    f"replace(workload, evaluate=by_point), {BOTH}": "but these names differ at a later point: first",
    "workload, strategies={'bad': exploding, 'ddp': 'ddp'}, every=12": "strategy exploding(): loss is nan at step 2 of",
    f"workload, {BOTH}, metric='f1'": "returns no such metric; give one of accuracy",
    f"replace(workload, evaluate=lambda m, d: 'good'), {BOTH}": "returned metric='good': evaluate(model, device) must",
    f"replace(workload, evaluate=lambda m, d: {{'loss': 1}}), {BOTH}": "returned a metric named loss, the name of",
    f"replace(workload, batch=alike), {BOTH}": "alike (test_converge.py:47) gave ranks 0 and 1 the same first batch",
    f"replace(workload, batch=going_on), {BOTH}": "gave strategy flat another batch than ddp at step 1 on rank 0",
    f"replace(workload, model=growing), {BOTH}": "gave strategy flat other weights than ddp on rank 0: every str",
}


def test_a_convergence_test_that_cannot_train_is_refused_with_the_reason(inner: pytest.Pytester) -> None:
    result = run(
        inner,
        f"""
def alike():
    return torch.ones(4, 8), torch.ones(4).long()


own = torch.Generator().manual_seed(0)


def going_on():
    return torch.randn(4, 8, generator=own) + dist.get_rank(), torch.ones(4).long()


def growing():
    module = nn.Linear(8, 3)
    nn.init.normal_(module.weight, generator=own)
    return module


def by_rank(model, device):
    return {{f"rank{{dist.get_rank()}}": 1.0}}


points = []


def by_point(model, device):
    points.append(1)
    return {{"first": 1.0}} if len(points) == 1 else {{}}


def exploding(module, ctx):
    def synchronise():
        for parameter in module.parameters():
            parameter.grad *= float("nan")

    return Parallel(module, synchronise)


CASES = {WRONG!r}


@pytest.mark.parametrize("call", CASES)
def test_it(ddpperf, call):
    with pytest.raises(DdpperfError) as raised:
        eval(f"ddpperf.converge({{call}})" if "train" in call else f"ddpperf.converge({{call}}, **train)")
    assert CASES[call] in str(raised.value)
""",
    )
    result.assert_outcomes(passed=len(WRONG))
