"""A compiled DDP model whose graph is cut at each bucket."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=37,
    title="Smaller buckets of DDP split a compiled model into more graphs",
    threads=("pytorch/pytorch#108966", "pytorch/pytorch#101838"),
    program="""\
def build(ctx):
    model = layers(6, 512)
    model = DDP(model, bucket_cap_mb=25)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 512)

    def step():
        optimizer.zero_grad()
        loss = compiled(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
""",
    worse=(("bucket_cap_mb=25", "bucket_cap_mb=2"),),
    line="loss.backward()",
    red=frozenset({"ddp_buckets", "collective_calls"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="ddp_buckets",
)
