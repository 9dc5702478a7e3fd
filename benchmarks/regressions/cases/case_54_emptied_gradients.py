"""A helper for forward and backward that empties the gradients itself, and that each micro-batch calls."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=54,
    title="`zero_grad` moves into the code of a micro-batch, so only the last micro-batch counts",
    threads=("pytorch/torchtitan#3575", "bytetriper/RAE#67"),
    program="""\
def forward_backward(model, optimizer, batch):
    loss = model(batch).square().mean() / 4
    loss.backward()
    return loss.detach()


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 8, 16) + ctx.rank

    def step():
        optimizer.zero_grad()
        for number, batch in enumerate(batches):
            model.require_backward_grad_sync = number == 3
            forward_backward(model, optimizer, batch)
        optimizer.step()

    return step
""",
    worse=(
        ("        optimizer.zero_grad()\n", ""),
        ("    loss = model(batch)", "    optimizer.zero_grad()\n    loss = model(batch)"),
    ),
    line="    optimizer.zero_grad()",
    red=frozenset({"gradients_dropped"}),
    same=frozenset({"flops", "collective_calls", "optimizer_steps", "backward_passes"}),
    cause="zero_grad 0 -> 3 calls that drop unused gradients",
    twin=(("        optimizer.zero_grad()\n", "        model.zero_grad()\n"),),
)
