"""A registry that keeps each epoch's loader."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=34,
    title="A registry keeps the DataLoader of each epoch alive",
    threads=("huggingface/accelerate#3391",),
    script=True,
    program="""\
LOADERS = []


def main():
    dist.init_process_group("gloo")
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 16)
    for epoch in range(2000):
        sampler = torch.utils.data.DistributedSampler(data)
        loader = torch.utils.data.DataLoader(data.clone(), batch_size=8, sampler=sampler)
        LOADERS[:] = [loader]
        for batch in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
""",
    worse=(("LOADERS[:] = [loader]", "LOADERS.append(loader)"),),
    line="data.clone()",
    red=frozenset({"loaders_kept"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="loaders_kept",
)
