"""Activation checkpointing whose replay reshards the unit, so it is gathered once more."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=20,
    title="Recomputing a checkpointed FSDP2 unit reshards it, so FSDP2 gathers the unit a third time",
    threads=("pytorch/pytorch#175406", "pytorch/pytorch#164009"),
    program="""\
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = layers(2)

    def forward(self, values):
        return self.outer(self.inner(values).relu())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, values):
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=False)
        return values


def build(ctx):
    model = Model()
    for block in model.blocks:
        fully_shard(block.inner)
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=(
        (
            "        fully_shard(block.inner)\n",
            (
                "        fully_shard(block.inner)\n"
                "        block.inner.register_forward_hook(lambda inner, *_: inner.reshard())\n"
            ),
        ),
    ),
    line="loss.backward()",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="all_gather",
)
