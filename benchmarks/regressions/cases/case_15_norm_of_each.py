"""A norm of the gradients that is reduced once for each parameter."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=15,
    title="The norm of sharded gradients takes one all-reduce for each parameter, not one for all",
    threads=("NVIDIA-NeMo/Automodel#2875",),
    program="""\
from torch.distributed.fsdp import fully_shard


def norm_of(parameters):
    squares = torch.stack([part.grad.to_local().square().sum() for part in parameters]).sum()
    dist.all_reduce(squares)
    return squares.sqrt()


def build(ctx):
    model = layers(8)
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        norm_of(model.parameters())
        optimizer.step()

    return step
""",
    worse=(
        (
            (
                "    squares = torch.stack([part.grad.to_local().square().sum() for part in parameters]).sum()\n"
                "    dist.all_reduce(squares)\n"
            ),
            "    squares = sum(parameter.grad.norm().full_tensor().square() for parameter in parameters)\n",
        ),
    ),
    line="parameter.grad.norm().full_tensor()",
    red=frozenset({"collective_calls"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="all_reduce 1 -> 16",
)
