"""DDP looks for unused parameters: an all-reduce of a table, and a walk through the graph, in each step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=26,
    title="DDP gets `find_unused_parameters=True` although all parameters are used",
    threads=("Lightning-AI/pytorch-lightning#7330", "Lightning-AI/pytorch-lightning#16611"),
    program="""\
def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
""",
    worse=(("DDP(layers())", "DDP(layers(), find_unused_parameters=True)"),),
    line="loss.backward()",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "synchronisations"}),
    cause="all_reduce 1 -> 2",
)
