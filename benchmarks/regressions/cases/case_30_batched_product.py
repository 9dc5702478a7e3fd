"""A batched matrix product over a 2 x 2 mesh that gathers what it could multiply locally.

torch 2.13 gathers nothing here any more, so the worse version does it by hand.
"""

from benchmarks.regressions.case import Case

CASE = Case(
    number=30,
    title="A batched product of DTensors on a 2 x 2 mesh gathers them, although no rank needs that",
    threads=("pytorch/pytorch#167106",),
    ranks=4,
    check='mesh={"tp": 2, "cp": 2}',
    program="""\
from torch.distributed.tensor import DTensor, Replicate, Shard


def product(values, weights, mesh):
    return values.to_local() @ weights.to_local()


def build(ctx):
    torch.manual_seed(0)
    sharded = DTensor.from_local(torch.randn(4, 4, 16), ctx.mesh, (Shard(0), Shard(1)))
    weights = nn.Parameter(DTensor.from_local(torch.randn(16, 8), ctx.mesh, (Replicate(), Replicate())))

    def step():
        weights.grad = None
        out = product(sharded, weights, ctx.mesh)
        out.square().mean().backward()

    return step
""",
    worse=(
        (
            "values.to_local() @ weights.to_local()",
            "values.redistribute(mesh, (Shard(0), Replicate())).to_local() @ weights.to_local()",
        ),
    ),
    line="values.redistribute(",
    red=frozenset({"collective_calls"}),
    cause="all_gather",
)
