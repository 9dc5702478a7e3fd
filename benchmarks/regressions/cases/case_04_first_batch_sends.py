"""The first micro-batch is reduced in place of the last, so the ranks drift apart. The counts are equal."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=4,
    title="The first micro-batch synchronises gradients instead of the last one, and the ranks drift apart",
    threads=("modelscope/FunASR#3472",),
    program="""\
from contextlib import nullcontext


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(ctx.rank))

    def step():
        for number, batch in enumerate(batches):
            with nullcontext() if (number + 1) % 4 == 0 else model.no_sync():
                model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(("(number + 1) % 4", "number % 4"),),
    line="number % 4",
    verdict="broken",
    same=frozenset({"collective_calls", "optimizer_steps", "flops"}),
    cause="parameters",
)
