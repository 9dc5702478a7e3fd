"""A suite whose benchmarks are simulated: judged, stored and told like any other, beside baselines of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

SUITE = """
import torch
from torch import nn
from pytest_ddpperf import Workload


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, inputs):
        return torch.relu(self.layer(inputs))


def forward(model, batch):
    {before}
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


WORKLOAD = Workload(
    model=lambda: nn.Sequential(*[Block() for _ in range(3)], nn.Linear(64, 4)),
    batch=lambda: (torch.randn(6, 64), torch.randn(6, 4)),
    forward=forward,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=6,
    blocks=lambda model: list(model)[{first}:3],
)


def test_step(ddpperf):
    measured = ddpperf.check(WORKLOAD, strategy="fsdp2")
    assert measured.world_size == 1024
    ddpperf.expect(optimizer_steps=1)


def test_curve(ddpperf):
    ddpperf.scaling(WORKLOAD, strategy="fsdp2")
"""
SIZES = "-oddpperf_simulate=8,1024"


def suite(before: str = "pass", first: int = 0) -> str:
    return SUITE.format(before=before, first=first)


def found(pytester: pytest.Pytester, *options: str) -> dict[int, dict[str, Any]]:
    """The results of a run by world size."""
    pytester.runpytest(SIZES, "--ddpperf-report=json:run.json", "-k", "step", *options)
    document = json.loads((pytester.path / "run.json").read_text())
    assert document["environment"]["backend"] == "fake"
    return {result["world_size"]: result for result in document["results"]}


def test_baselines_of_simulated_ranks_are_none_of_other_options(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_big=suite().replace("assert measured.world_size == 1024", "").replace("fsdp2", "ddp"))
    found(inner, "--ddpperf-save")
    run = inner.runpytest("-k", "step", "--ddpperf-counts=only", "--ddpperf-world-size=2")
    run.assert_outcomes(passed=1)
    run.stdout.no_fnmatch_line("*there is a baseline for*")


@pytest.mark.slow
def test_simulated_counts_are_compared_with_separate_baselines(inner: pytest.Pytester) -> None:
    """A lost wrap calls less, and 1024 ranks gather more at once for it; a doubled all-gather sends a block twice."""
    inner.makepyfile(test_big=suite())
    new = found(inner, "--ddpperf-save")
    assert {size: result["verdict"] for size, result in new.items()} == {8: "new", 1024: "new"}
    # Three blocks are gathered for forward and for backward, the rest once; each gradient is scattered once.
    assert new[1024]["metrics"]["collective_calls"]["value"] == 3 * 2 + 1 + 4
    assert "step_time" not in new[1024]["metrics"]
    keys = {folder.name.partition("-torch")[0] for folder in (inner.path / "baselines").iterdir()}
    assert keys == {"simulated-w8", "simulated-w1024"}
    assert {result["verdict"] for result in found(inner).values()} == {"unchanged"}
    doubled = "model[0].unshard(); model[0].reshard()"
    for wrong, calls, of_eight in (
        (suite(first=1), 2 * 2 + 1 + 3, "improved"),
        (suite(doubled), 3 * 2 + 1 + 4 + 1, "regressed"),
    ):
        inner.makepyfile(test_big=wrong)
        results = found(inner)
        assert {size: result["verdict"] for size, result in results.items()} == {8: of_eight, 1024: "regressed"}
        for result in results.values():
            assert result["metrics"]["collective_calls"]["value"] == calls


OTHERS = """

def main():
    pass


def test_alone(ddpperf):
    ddpperf.check(WORKLOAD, strategy="single")


def test_group(ddpperf_group):
    ddpperf_group.run(print)


def test_script(ddpperf):
    from pytest_ddpperf import Script
    ddpperf.check(Script(main))
"""


def test_a_simulated_run_says_so_and_skips_calls_that_cannot_be_simulated(inner: pytest.Pytester) -> None:
    """A budget of the ini file is for what is measured. Another rank of a group is another benchmark."""
    inner.makeini("[pytest]\nddpperf_budget = 10min")
    inner.makepyfile(test_big=suite().replace("fsdp2", "flat") + OTHERS)
    run = inner.runpytest(SIZES, "-oddpperf_simulate_rank=7", "--ddpperf-report=json:run.json", "-rs")
    run.assert_outcomes(passed=2, skipped=3)
    results = json.loads((inner.path / "run.json").read_text())["results"]
    assert {result["name"] for result in results} == {"flat rank=7", "single"}
    run.stdout.fnmatch_lines_random(
        [
            "*simulated, torch*",
            "*1024*",
            "*ddpperf_group was skipped: ddpperf simulate runs only ddpperf.check and ddpperf.measure",
            "*main*: ddpperf simulate runs no Script, which creates its own process group",
        ]
    )
