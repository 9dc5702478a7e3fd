"""Ranks that train the same samples, because each one's sampler takes the share of rank 0."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=36,
    title="Every rank takes the share of rank 0, so all train the same samples",
    threads=("huggingface/accelerate#4204",),
    script=True,
    program="""\
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 16))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(2000):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
""",
    worse=(("DistributedSampler(data)", "DistributedSampler(data, num_replicas=2, rank=0)"),),
    line="DistributedSampler(data, num_replicas=2, rank=0)",
    verdict="broken",
    cause="same",
)
