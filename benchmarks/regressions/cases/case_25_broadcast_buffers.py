"""DDP broadcasts buffers in each forward by default."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=25,
    title="`broadcast_buffers=False` is lost, so DDP sends the buffers in each forward",
    threads=("ultralytics/ultralytics#24410", "ecmwf/anemoi-core#1278", "UKPLab/sentence-transformers#2663"),
    program="""\
def build(ctx):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16))
    model = DDP(model, broadcast_buffers=False)
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
    worse=((", broadcast_buffers=False", ""),),
    line="loss = model(batch)",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="broadcast 0 -> ",
    twin=(("batch = torch.randn(8, 16)", "torch.manual_seed(7)\n    batch = torch.randn(8, 16)"),),
)
