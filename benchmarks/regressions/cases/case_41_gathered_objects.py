"""Python objects are gathered from all ranks for each micro-batch."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=41,
    title="Ranks gather the statistics of each micro-batch as pickled objects",
    threads=("NVIDIA/Model-Optimizer#1111",),
    program="""\
from contextlib import nullcontext


def report(number, loss, found):
    found.append({"batch": number, "loss": loss})


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 8, 16)

    def step():
        found = []
        for number, batch in enumerate(batches, 1):
            with nullcontext() if number == 4 else model.no_sync():
                loss = model(batch).square().mean()
                loss.backward()
            report(number, loss.detach(), found)
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(
        (
            '    found.append({"batch": number, "loss": loss})\n',
            (
                "    everyone = [None] * dist.get_world_size()\n"
                '    dist.all_gather_object(everyone, {"batch": number, "loss": loss.item()})\n'
                "    found.append(everyone)\n"
            ),
        ),
    ),
    line="dist.all_gather_object(",
    red=frozenset({"collective_calls", "collective_bytes", "synchronisations"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_gather 0 -> 8",
)
