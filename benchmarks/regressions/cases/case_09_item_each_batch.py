"""A meter that reads the loss of each micro-batch, and reduces twice where it reduced once."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=9,
    title="The loss meter reads the loss of each micro-batch, and all-reduces twice in every fifth step",
    threads=("huggingface/pytorch-image-models#2340",),
    program="""\
from contextlib import nullcontext


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 8, 16)
    seen, number = [], 0

    def mean(value):
        dist.all_reduce(value)
        return value.item() / ctx.world_size

    def step():
        nonlocal number
        number += 1
        for index, batch in enumerate(batches):
            with nullcontext() if index == 3 else model.no_sync():
                loss = model(batch).square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 5 == 0:
            print(mean(loss.detach().clone()))

    return step
""",
    worse=(
        (
            "                loss.backward()\n",
            "                loss.backward()\n            seen.append(loss.item())\n",
        ),
        (
            "            print(mean(",
            """\
            print(mean(torch.tensor(sum(seen) / len(seen))))
            seen.clear()
            print(mean(""",
        ),
    ),
    line="seen.append(loss.item())",
    red=frozenset({"collective_calls", "synchronisations"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="item 0 -> 4 waits for the device per step",
    twin=(("def mean(", "def over_ranks("), ("print(mean(", "print(over_ranks(")),
)
