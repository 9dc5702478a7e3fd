"""The loss of each step is looked at for NaN."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=39,
    title="A filter of NaN and infinity reads the loss of each step",
    threads=("huggingface/transformers#33693",),
    program="""\
def kept(total, loss):
    return total + loss


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, total = torch.randn(8, 16), torch.zeros(())

    def step():
        nonlocal total
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        total = kept(total, loss.detach())

    return step
""",
    worse=(
        ("    return total + loss\n", "    return total if torch.isnan(loss) or torch.isinf(loss) else total + loss\n"),
    ),
    line="torch.isnan(loss)",
    red=frozenset({"synchronisations"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="bool(tensor) 0 -> 2",
    twin=(("def kept(", "def added("), ("total = kept(", "total = added(")),
)
