"""Outputs of micro-batches that keep their graphs until the end of the step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=33,
    title="The last rank keeps the outputs of micro-batches with their autograd graphs",
    threads=("verl-project/verl#6697", "verl-project/verl#6699", "verl-project/verl#7166", "verl-project/verl#7874"),
    program="""\
from contextlib import nullcontext


def build(ctx):
    model = DDP(nn.Sequential(layers(3, 64), nn.Tanh()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 32, 64)

    def step():
        outputs = []
        for number, batch in enumerate(batches, 1):
            with nullcontext() if number == 4 else model.no_sync():
                output = model(batch)
                output.square().mean().backward(retain_graph=True)
            if ctx.rank == ctx.world_size - 1:
                outputs.append({"output": output.detach()})
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(("output.detach()", "output"),),
    line="outputs.append(",
    red=frozenset({"peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls", "retained_bytes"}),
    cause="rank 1",
    twin=(('{"output": output', '{"model_output": output'),),
)
