"""Units that stay gathered between micro-batches no longer do."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=21,
    title="FSDP2 reshards units after each micro-batch's backward, and gathers them again",
    threads=("Robbyant/lingbot-vla#50",),
    program="""\
from torch.distributed.fsdp import fully_shard


def build(ctx):
    model = layers(4, 64)
    for part in (*model, model):
        fully_shard(part, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 8, 64)

    def step():
        for number, batch in enumerate(batches, 1):
            model.set_reshard_after_backward(number == len(batches))
            loss = model(batch).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(("            model.set_reshard_after_backward(number == len(batches))\n", ""),),
    line="loss = model(batch)",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_gather",
    twin=(
        ("    batches = torch.randn(4, 8, 64)\n", ""),
        ("    model = layers(4, 64)", "    batches = torch.randn(4, 8, 64)\n    model = layers(4, 64)"),
    ),
)
