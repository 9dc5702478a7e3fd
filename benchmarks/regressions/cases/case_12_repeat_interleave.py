"""repeat_interleave with counts in a tensor and no size of its output waits for the device."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=12,
    title="A `repeat_interleave` with a tensor of counts loses its `output_size`",
    threads=("NVIDIA/Megatron-LM#543",),
    program="""\
def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens, counts = torch.randn(4, 16), torch.tensor([1, 3, 2, 2])

    def step():
        optimizer.zero_grad()
        routed = tokens.repeat_interleave(counts, 0, output_size=8)
        loss = model(routed).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
""",
    worse=((", 0, output_size=8)", ", 0)"),),
    line="repeat_interleave(",
    red=frozenset({"synchronisations"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="repeat_interleave 0 -> 1",
)
