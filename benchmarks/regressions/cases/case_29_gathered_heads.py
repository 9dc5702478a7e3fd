"""Norms of queries that need all heads, where each rank could norm its own."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=29,
    title="The norm of queries asks for replicated heads, so tensor parallelism gathers the heads",
    threads=("pytorch/torchtitan#1870", "pytorch/torchtitan#1867"),
    check='mesh={"tp": 2}',
    program="""\
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
)

NORM = SequenceParallel(sequence_dim=2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.norm, self.out = nn.Linear(16, 16), nn.RMSNorm(4, elementwise_affine=False), nn.Linear(16, 16)

    def forward(self, values):
        heads = self.query(values).unflatten(-1, (-1, 4))
        return self.out(self.norm(heads).flatten(2))


def build(ctx):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention())
    for block in model:
        plan = {"query": ColwiseParallel(use_local_output=False), "norm": NORM}
        plan["out"] = RowwiseParallel(input_layouts=Shard(2))
        parallelize_module(block, ctx.mesh["tp"], plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    batch = torch.randn(2, 4, 16)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=(
        (
            "NORM = SequenceParallel(sequence_dim=2)",
            "NORM = PrepareModuleInput(input_layouts=Shard(2), desired_input_layouts=Replicate())",
        ),
    ),
    line="self.norm(heads)",
    red=frozenset({"collective_calls"}),
    same=frozenset({"optimizer_steps"}),
    cause="all_gather",
)
