"""The replay of a checkpointed layer repeats its all-gather."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=31,
    title="The sequence is gathered inside an activation checkpoint, so recomputing gathers it again",
    threads=("NVIDIA/Megatron-LM#7423", "meta-pytorch/autoparallel#469", "InternLM/InternEvo#275"),
    program="""\
from torch.utils.checkpoint import checkpoint


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def body(layer, values):
    return layer(values).relu()


def build(ctx):
    model = layers(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16, requires_grad=True)

    def step():
        values = batch
        for layer in model:
            values = checkpoint(body, layer, Gathered.apply(values), use_reentrant=False)
            values = values.chunk(ctx.world_size)[ctx.rank]
        values.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(
        ("    return layer(values).relu()", "    return layer(Gathered.apply(values)).relu()"),
        ("layer, Gathered.apply(values), use", "layer, values, use"),
    ),
    line="dist.all_gather(parts, values)",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="all_gather 2 -> 4",
)
