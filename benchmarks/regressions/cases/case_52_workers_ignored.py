"""A loader whose workers are a setting that a new version of it no longer passes on."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=52,
    title="`num_workers` no longer reaches the DataLoader, so the training process loads the data",
    threads=("fastai/fastai#3954",),
    program="""\
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loader(data, rank, world_size, **settings):
    sampler = DistributedSampler(data, world_size, rank)
    return DataLoader(data, batch_size=4, sampler=sampler, persistent_workers=settings["num_workers"] > 0, **settings)


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = loader(TensorDataset(torch.randn(64, 16)), ctx.rank, ctx.world_size, num_workers=1)

    def forever():
        while True:
            yield from batches

    given = forever()

    def step():
        optimizer.zero_grad()
        model(next(given)[0]).square().mean().backward()
        optimizer.step()

    return step
""",
    worse=(('sampler=sampler, persistent_workers=settings["num_workers"] > 0, **settings)', "sampler=sampler)"),),
    line="return DataLoader(data, batch_size=4, sampler=sampler)",
    red=frozenset({"loaders_without_workers"}),
    same=frozenset({"operators", "flops", "collective_calls", "optimizer_steps"}),
    cause="DataLoaders without workers 0 -> 1",
    twin=(("def loader(", "def loader_of("), ("batches = loader(", "batches = loader_of(")),
)
