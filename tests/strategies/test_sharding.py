"""Both FSDPs on real ranks, beside what they train: units, meshes, offloaded shards, and what is refused."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

from pytest_ddpperf.errors import RankSkipped, SettingError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies import fsdp2, sharding
from pytest_ddpperf.strategies.sharding import gradients_kept
from pytest_ddpperf.strategies.strategy import Parallel
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import Net, share_of

Ranks = tuple[dict[str, Any], ...]


def prepared(ctx: RankContext, strategy: str, model: type[nn.Module] = Net) -> Parallel:
    torch.manual_seed(0)
    module = model()
    return parallelise(strategy, module, ctx, list(module.blocks))  # type: ignore[arg-type]  # a ModuleList


def fsdp_facts(ctx: RankContext) -> dict[str, Any]:
    hybrid = prepared(ctx, "fsdp2[replicas=2]")
    weight = hybrid.module.get_parameter("first.weight")
    assert isinstance(weight, DTensor)
    torch.manual_seed(0)
    net = Net()
    inner = net.blocks[0][0]  # type: ignore[index]  # a Sequential
    nested = parallelise("fsdp2", net, ctx, [net, *net.blocks, inner, inner])
    torch.manual_seed(0)
    net = Net()
    flat = parallelise("fsdp1[use_orig_params=false]", net, ctx, [net, net.blocks[0], inner := net.blocks[0][0]])  # type: ignore[index]
    units = [name for name, unit in flat.module.named_modules() if isinstance(unit, FullyShardedDataParallel)]
    del inner
    return {
        "mesh": (weight.device_mesh.device_type, tuple(weight.device_mesh.shape), weight.device_mesh.mesh_dim_names),
        "local": weight.to_local().numel(),
        "units2": [name for name, unit in nested.module.named_modules() if isinstance(unit, FSDPModule)],
        "units1": [name.replace("_fsdp_wrapped_module.", "").replace("_fsdp_wrapped_module", "") for name in units],
        "flat": len(list(flat.module.parameters())),
    }


def test_a_torch_that_cannot_shard_on_the_cpu_skips_it_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.6, whose streams of the CPU lack a method."""
    monkeypatch.setattr(torch.cpu, "Stream", object)
    told = r"^strategy fsdp2 on the CPU needs torch 2.7 or newer, and this is .*: use fsdp1, a newer torch"
    with pytest.raises(RankSkipped, match=told):
        fsdp2.fsdp2(Net(), RankContext(0, 1, 0, 1, torch.device("cpu"), "gloo", None))


def offloaded(ctx: RankContext) -> tuple[float, list[bool]]:
    """What is done to shards on the CPU where the group cannot reach them, done to shards that it could."""
    parallel = prepared(ctx, "fsdp2[replicas=2]")
    module = parallel.module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    weight = module.get_parameter("first.weight")
    assert isinstance(weight, DTensor)
    module(share_of(ctx.rank)).square().mean().backward()
    norm = fsdp2._clip_offloaded(module, 0.3, mesh=weight.device_mesh, device=ctx.device)
    clipped = torch.nn.utils.clip_grad_norm_(module.parameters(), 100.0)
    assert isinstance(clipped, DTensor)
    assert clipped.full_tensor().item() == pytest.approx(0.3, rel=1e-5)
    scaler = fsdp2.ShardScaler("cpu")
    skipped = []
    for poison in (False, True):
        optimizer.zero_grad()
        scaler.scale(module(share_of(ctx.rank)).square().mean()).backward()
        assert isinstance(weight.grad, DTensor)
        if poison and ctx.rank == 3:
            weight.grad.to_local()[0, 0] = torch.inf
        before = weight.to_local().clone()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(torch.equal(weight.to_local(), before))
    return norm.item(), skipped


@pytest.mark.parametrize(
    ("param_dtype", "reduce_dtype", "told"),
    [(None, None, "fp32"), ("bf16", None, "bf16"), ("fp16", "fp32", "fp16"), ("fp16", "bf16", "bf16")],
)
def test_the_least_precise_type_is_found(param_dtype: str | None, reduce_dtype: str | None, told: str) -> None:
    assert sharding.narrowest(param_dtype, reduce_dtype) == told


def test_the_scaler_of_offloaded_shards_leaves_nothing_to_copy_from_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that nobody waits for undo what is found meanwhile."""
    given: list[object] = []
    monkeypatch.setattr(ShardedGradScaler, "_unscale_grads_", lambda _self, *args: given.extend(args))
    scale, flag = (SimpleNamespace(cpu=lambda name=name: f"{name} on the CPU") for name in ("scale", "flag"))
    sharding.OffloadedScaler("cpu")._unscale_grads_("optimizer", scale, flag, "more")  # type: ignore[arg-type]
    assert given == ["optimizer", "scale on the CPU", "flag on the CPU", "more"]


def interrupted(ctx: RankContext) -> list[bool]:
    """Whether the ranks have one gradient after no_sync was left by an exception; their inputs differ."""
    equal = []
    for strategy in ("fsdp1", "fsdp2"):
        parallel = prepared(ctx, strategy)
        assert parallel.no_sync is not None
        assert parallel.gradients is not None
        with pytest.raises(KeyError), parallel.no_sync():
            raise KeyError
        parallel.module(share_of(ctx.rank)).square().mean().backward()
        assert all(shard.grad is None or shard.grad.shape == shard.shape for shard in parallel.module.parameters())
        gradient = parallel.gradients()["first.weight"]
        gathered: list[Any] = [None] * ctx.world_size
        dist.all_gather_object(gathered, gradient)
        equal.append(torch.equal(gathered[0], gathered[1]))
    return equal


def read_unfinished(ctx: RankContext) -> bool:
    """Parameters, after a forward pass that has left the root's unsharded."""
    parallel = prepared(ctx, "fsdp2[reshard_after_forward=false]")
    assert parallel.parameters is not None
    before = parallel.parameters()
    with torch.no_grad():
        parallel.module(share_of(0))
    return all(torch.equal(before[name], value) for name, value in parallel.parameters().items())


class Sharing(Net):
    """Two of its blocks have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2][0].weight = self.blocks[0][0].weight  # type: ignore[index]  # a Sequential


class Half(Net):
    """Half of a block is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0][0].requires_grad_(requires_grad=False)  # type: ignore[index]  # a Sequential


REFUSED = {
    ("fsdp1", Sharing): "fsdp1 cannot shard blocks.2 and blocks.0 separately, because",
    ("fsdp2", Sharing): "they share the parameter blocks.0.0.weight: choose blocks that share no parameter",
    ("fsdp1[cpu_offload=true]", Net): "fsdp1[cpu_offload=true] needs GPUs, but these ranks",
    ("fsdp2[cpu_offload=true]", Net): "leave cpu_offload out, or use device=cuda",
    ("fsdp1[use_orig_params=false]", Half): "(blocks.0.2.weight) together with a frozen one (blocks.0.0.weight)",
}


def refused(ctx: RankContext) -> list[str]:
    messages = []
    for strategy, model in REFUSED:
        with pytest.raises(SettingError) as caught:
            prepared(ctx, strategy, model)
        messages.append(str(caught.value))
    return messages


def models_own_collective(ctx: RankContext) -> tuple[float, bool]:
    """What a model's own all-reduce gives while FSDP keeps gradients, and whether what FSDP sends is silenced."""
    sender: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")

    ones = torch.ones(1)
    with gradients_kept():
        work = dist.all_reduce(ones, async_op=True)
        assert work is not None
        work.wait()
        silenced = sender.dist.all_reduce(torch.ones(1)) is None and sender.dist is not dist
    return ones.item(), silenced and sender.dist is dist


RANKS, CASES = 4, (fsdp_facts, offloaded, interrupted, read_unfinished, refused, models_own_collective)


def test_fsdp_shards_exactly_the_blocks_over_the_mesh_asked_for(ranks: Ranks) -> None:
    """first.weight has 7 rows of 5: two ranks of a copy hold 4 and 3 of them."""
    for rank, facts in enumerate(found["fsdp_facts"] for found in ranks):
        assert facts["mesh"] == ("cpu", (2, 2), ("replicate", "shard"))
        assert facts["local"] == (20 if rank % 2 == 0 else 15)
        assert facts["units2"] == ["", "blocks.0", "blocks.0.0", "blocks.1", "blocks.2"]
        assert facts["units1"] == ["", "blocks.0", "blocks.0.0"]
        assert facts["flat"] == 3


def test_offloaded_shards_are_clipped_and_checked_as_one(ranks: Ranks) -> None:
    torch.manual_seed(0)
    alone = Net()
    for rank in range(4):
        (alone(share_of(rank)).square().mean() / 4).backward()
    expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.3).item()
    assert expected > 0.3
    for norm, skipped in (found["offloaded"] for found in ranks):
        assert norm == pytest.approx(expected, rel=1e-5)
        assert skipped == [False, True]


def test_no_sync_ends_with_an_exception(ranks: Ranks) -> None:
    assert [found["interrupted"] for found in ranks] == [[True, True]] * 4


def test_parameters_can_be_read_after_a_forward_pass_alone(ranks: Ranks) -> None:
    assert all(found["read_unfinished"] for found in ranks)


def test_settings_that_torch_gets_wrong_are_refused_with_a_clear_message(ranks: Ranks) -> None:
    for found in ranks:
        for message, part in zip(found["refused"], REFUSED.values(), strict=True):
            assert part in message


def test_a_models_own_collectives_go_on_while_gradients_are_kept(ranks: Ranks) -> None:
    assert [found["models_own_collective"] for found in ranks] == [(4.0, True)] * 4
