"""The forward stands outside of no_sync, so each micro-batch is reduced."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=3,
    title="The forward moves out of `no_sync`, which then defers nothing",
    threads=("speechbrain/speechbrain#1802",),
    program="""\
from contextlib import nullcontext


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 8, 16)

    def step():
        for number, batch in enumerate(batches, 1):
            with nullcontext() if number == 4 else model.no_sync():
                loss = model(batch).square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
""",
    worse=(
        (
            "            with nullcontext() if number == 4 else model.no_sync():\n                loss = model(batch)",
            "            loss = model(batch)",
        ),
        (
            "                loss.backward()",
            "            with nullcontext() if number == 4 else model.no_sync():\n                loss.backward()",
        ),
    ),
    line="loss.backward()",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_reduce 1 -> 4",
    twin=(
        ("    batches = torch.randn(4, 8, 16)\n", ""),
        ("    model = DDP", "    batches = torch.randn(4, 8, 16)\n    model = DDP"),
    ),
)
