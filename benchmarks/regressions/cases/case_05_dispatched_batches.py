"""Rank 0 loads the batches of all ranks and sends them."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=5,
    title="Rank 0 loads the batches of all ranks, and broadcasts them",
    threads=("huggingface/accelerate#164",),
    program="""\
DATA = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def batches(rank, ranks):
    while True:
        for whole in DATA.split(8 * ranks):
            yield whole[rank::ranks]


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = batches(ctx.rank, ctx.world_size)

    def step():
        loss = model(next(loader)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(
        (
            "            yield whole[rank::ranks]\n",
            (
                "            whole = whole.clone() if rank == 0 else torch.empty_like(whole)\n"
                "            dist.broadcast(whole, 0)\n"
                "            yield whole[rank::ranks]\n"
            ),
        ),
    ),
    line="dist.broadcast(",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="broadcast 0 -> 1",
)
