"""A line for debugging that was left in."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=53,
    title="Autograd's anomaly detection, switched on to debug, stays on",
    threads=("stanfordnlp/pyvene#98", "facebookresearch/mmf#434", "Lightning-AI/pytorch-lightning#12344"),
    program="""\
def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step
""",
    worse=(("def build(ctx):\n", "torch.autograd.set_detect_anomaly(True)\n\n\ndef build(ctx):\n"),),
    line="model(batch).square().mean().backward()",
    red=frozenset({"slow_modes"}),
    same=frozenset({"flops", "collective_calls", "optimizer_steps", "backward_passes"}),
    cause="anomaly detection 0 -> 1",
    twin=(("    batch = torch.randn(8, 16)", "    batch = torch.rand(8, 16)"),),
)
