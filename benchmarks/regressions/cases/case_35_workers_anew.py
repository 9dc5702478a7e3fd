"""Workers of the loader that are started anew in each epoch."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=35,
    title="`persistent_workers=True` is lost, so each epoch starts new worker processes",
    threads=(
        "huggingface/transformers#27058",
        "huggingface/transformers#27189",
        "metatensor/metatrain#1271",
        "open-mmlab/mmhuman3d#233",
    ),
    script=True,
    program="""\
def main():
    dist.init_process_group("gloo")
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 16)
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, 8, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(2000):
        for batch in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
""",
    worse=((", persistent_workers=True", ""),),
    line="DataLoader(data, 8",
    red=frozenset({"workers_restarted"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="workers_restarted",
)
