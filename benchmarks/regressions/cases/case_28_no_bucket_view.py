"""DDP keeps a second copy of all gradients again."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=28,
    title="`gradient_as_bucket_view=True` is lost, so DDP copies all gradients",
    threads=("pytorch/pytorch#41954", "facebookresearch/d2go#526", "pytorch/pytorch#70222"),
    program="""\
def build(ctx):
    model = layers(3, 64)
    model = DDP(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 64)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
""",
    worse=((", gradient_as_bucket_view=True", ""),),
    line="DDP(model)",
    red=frozenset({"peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls", "collective_bytes"}),
    cause="buckets",
    twin=(("batch = torch.randn(8, 64)", "torch.manual_seed(7)\n    batch = torch.randn(8, 64)"),),
)
