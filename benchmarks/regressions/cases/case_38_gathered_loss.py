"""The loss of each step is gathered from all ranks, though it is logged seldom."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=38,
    title="Each step averages the loss over ranks by an all-gather",
    threads=("allenai/OLMo#279",),
    program="""\
class Mean:
    def __init__(self):
        self.total, self.number = torch.zeros(()), 0

    def update(self, value):
        self.total += value
        self.number += 1
        return self.total / self.number


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, mean = torch.randn(8, 16), Mean()

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return mean.update(loss.detach())

    return step
""",
    worse=(
        (
            "        self.total += value\n",
            (
                "        values = [torch.empty_like(value) for _ in range(dist.get_world_size())]\n"
                "        dist.all_gather(values, value)\n"
                "        self.total += torch.stack(values).mean()\n"
            ),
        ),
    ),
    line="dist.all_gather(values, value)",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_gather 0 -> 1",
    twin=(
        ("class Mean:", "class Average:"),
        ("mean = torch.randn(8, 16), Mean()", "mean = torch.randn(8, 16), Average()"),
    ),
)
