"""Gradients that are filled with zeros, not dropped."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=46,
    title="`zero_grad` fills gradients with zeros instead of dropping them",
    threads=("MIC-DKFZ/nnUNet#1630", "pytorch/pytorch#92731", "ultralytics/ultralytics#22351"),
    program="""\
def build(ctx):
    model = DDP(layers(3, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(128, 64)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=(("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),),
    line="optimizer.zero_grad(set_to_none=False)",
    red=frozenset({"operators", "peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="aten.zero_",
)
