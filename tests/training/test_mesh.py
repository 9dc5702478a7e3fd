"""A mesh for a user's step, and what its ranks count."""

from __future__ import annotations

import pytest

from pytest_ddpperf.parsers import mesh
from pytest_ddpperf.strategies.strategy import share_of_samples, shares_data

SUITE = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def build(ctx):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    parallelize_module(model, ctx.mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.to_local().shape == (32 // ctx.mesh["tp"].size(), 16)
    torch.manual_seed(ctx.mesh["dp"].get_local_rank() if "dp" in ctx.mesh.mesh_dim_names else 0)
    batch = torch.randn(8, 16)

    def step():
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    return step


def test_it(ddpperf):
    plain = {"samples_per_step": 8, "launches": 2, "steps": 5, "warmup": 1, "max_time": 2, "device": "cpu"}
    for sizes, samples in (({"tp": 2}, 8), ({"dp": 2, "tp": 1}, 16)):
        measured = ddpperf.measure(build, mesh=sizes, world_size=2, communication=False, **plain)
        assert measured.effective_batch_size == samples
        assert ("mesh_without_data" in {one.code for one in measured.findings}) is ("dp" not in sizes)
        one_step = measured["throughput"].value * measured["step_time"].value
        assert abs(one_step - samples) < 0.05 * samples
"""


@pytest.mark.slow
def test_a_tensor_parallel_group_counts_the_samples_of_one_rank(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_tensor_parallel=SUITE)
    inner.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ({"tp": 2}, 0.5),
        ({"dp": 2, "tp": 2}, 0.5),
        ({"dp_replicate": 2, "dp_shard": 2}, 1),
        ({"pp": 2, "data": 4}, 0.5),
        ({"replicate": 2, "shard": 2}, 1),
        ({"hsdp": 2, "cp": 2}, 0.5),
    ],
)
def test_ranks_that_work_on_the_same_samples_count_them_once(sizes: dict[str, int], share: float) -> None:
    assert share_of_samples(sizes) == share


@pytest.mark.parametrize(("sizes", "known"), [({"tp": 2, "workers": 2}, False), ({"tp": 2, "shard": 1}, True)])
def test_a_mesh_says_if_it_divides_data(sizes: dict[str, int], known: bool) -> None:  # noqa: FBT001
    assert shares_data(sizes) is known


def test_a_mesh_is_written_in_words_or_as_a_mapping() -> None:
    assert list(mesh("dp=2, tp=4").items()) == list(mesh({"dp": 2, "tp": 4}).items()) == [("dp", 2), ("tp", 4)]
    for wrong in ("", "dp", "dp=0", "dp=2,dp=2", "=2", 4, {}, {"a b": 2}):
        with pytest.raises(ValueError, match=r"sizes of dimensions by name|a whole number of at least 1"):
            mesh(wrong)
