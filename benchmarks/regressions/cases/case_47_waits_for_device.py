"""A synchronisation of the whole device in each step; on a CPU it does nothing, and it is counted."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=47,
    title="Each step calls `synchronize()` for the whole device",
    threads=("yoshitomo-matsubara/torchdistill#194",),
    program="""\
def finished(device):
    module = torch.get_device_module(device)
    module.current_stream()


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        finished(ctx.device)

    return step
""",
    worse=(("    module.current_stream()\n", "    module.synchronize()\n"),),
    line="module.synchronize()",
    red=frozenset({"allocator_calls"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls", "operators"}),
    cause="synchronize 0 -> 1",
    twin=(("def finished(", "def done("), ("finished(ctx", "done(ctx")),
)
