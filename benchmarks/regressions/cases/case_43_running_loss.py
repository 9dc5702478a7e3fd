"""A running loss that keeps the graph of each step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=43,
    title="The running loss is summed without `detach`, so it keeps the graph of each step",
    threads=("ray-project/ray#40940", "google/brax#152", "BatsResearch/labelmodels#4"),
    program="""\
def build(ctx):
    model = DDP(layers(3, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, running = torch.randn(32, 64), 0

    def step():
        nonlocal running
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        running = running + loss.detach()

    return step
""",
    worse=(("running + loss.detach()", "running + loss"),),
    line="running = running + loss",
    red=frozenset({"recorded_operators"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="running_loss.py",
    twin=(("running = running + loss.detach()", "running += loss.detach()"),),
)
