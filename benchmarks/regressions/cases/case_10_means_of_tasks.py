"""A mean over ranks that all-reduces Python numbers, for each task."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=10,
    title="Metrics of five tasks all-reduce Python numbers one by one",
    threads=("facebookresearch/fairchem#2203",),
    program="""\
def over_ranks(number):
    number = torch.tensor(float(number))
    dist.all_reduce(number)
    return number.item()


def metrics(errors, tasks):
    found = {}
    for task in range(5):
        mine = errors[tasks == task]
        if torch.isfinite(mine).all():
            found[task] = over_ranks(mine.sum().item()) / max(1, over_ranks(len(mine)))
    return found, over_ranks(tasks.bincount(minlength=5)[0].item())


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, tasks = torch.randn(10, 16), torch.arange(10) % 5

    def step():
        errors = model(batch).square().mean(1)
        errors.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(("        errors.mean()", "        metrics(errors.detach(), tasks)\n        errors.mean()"),),
    line="dist.all_reduce(number)",
    red=frozenset({"collective_calls", "synchronisations", "operators"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_reduce 1 -> 12",
)
