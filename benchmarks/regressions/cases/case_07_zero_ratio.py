"""A metric of the gradients that stayed in for five months, as the gate's steps were too long to see it."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=7,
    title="A metric counts the zeros of each gradient, all-reduces the counts, and prints them",
    threads=("PrimeIntellect-ai/prime-rl#1966", "PrimeIntellect-ai/prime-rl#3249"),
    program="""\
def zero_ratio(parameters):
    zeros = elements = torch.zeros(())
    for parameter in parameters:
        zeros = zeros + (parameter.grad == 0).sum()
        elements = elements + torch.tensor(parameter.grad.numel())
    dist.all_reduce(zeros)
    dist.all_reduce(elements)
    return (zeros / elements).item()


def build(ctx):
    model = DDP(layers(40))
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
    worse=(("        optimizer.step()\n", "        zero_ratio(model.parameters())\n        optimizer.step()\n"),),
    line="dist.all_reduce(zeros)",
    red=frozenset({"collective_calls", "synchronisations", "operators"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_reduce 1 -> 3",
    twin=(("def zero_ratio(", "def share_of_zeros("),),
)
