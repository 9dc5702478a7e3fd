"""A sampler that is no longer told the epoch."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=56,
    title="set_epoch is no longer called, so all epochs have one order",
    threads=("lancedb/lancedb#3705", "huggingface/accelerate#4232"),
    program="""\
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 16))
    sampler = DistributedSampler(data, ctx.world_size, ctx.rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler)

    def forever():
        for epoch in range(1000):
            sampler.set_epoch(epoch)
            yield from loader

    batches = forever()

    def step():
        optimizer.zero_grad()
        model(next(batches)[0]).square().mean().backward()
        optimizer.step()

    return step
""",
    worse=(("            sampler.set_epoch(epoch)\n", ""),),
    line="loader = DataLoader(",
    red=frozenset({"loaders_repeating"}),
    same=frozenset({"flops", "collective_calls", "optimizer_steps", "operators"}),
    cause="DataLoaders that give all epochs in one order 0 -> 1",
    twin=(("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch + 7)"),),
)
