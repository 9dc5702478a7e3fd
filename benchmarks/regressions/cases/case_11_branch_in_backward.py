"""A branch on a tensor inside of the backward of an autograd function."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=11,
    title="The backward of an `autograd.Function` branches on a tensor, once for each chunk",
    threads=("PrimeIntellect-ai/prime-rl#3294",),
    program="""\
class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, mask):
        ctx.save_for_backward(mask)
        return values * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return torch.cat([zeroed(part, where) for part, where in zip(gradient.chunk(4), mask.chunk(4))]), None


def zeroed(gradient, mask):
    gradient = torch.where(mask, gradient, 0.0)
    return gradient


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, mask = torch.randn(8, 16), torch.ones(8, 16, dtype=torch.bool)

    def step():
        optimizer.zero_grad()
        Masked.apply(model(batch), mask).square().mean().backward()
        optimizer.step()

    return step
""",
    worse=(
        (
            "    gradient = torch.where(mask, gradient, 0.0)\n",
            "    if torch.any(~mask):\n        gradient = torch.where(mask, gradient, 0.0)\n",
        ),
    ),
    line="if torch.any(~mask)",
    red=frozenset({"synchronisations"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="bool(tensor) 0 -> 4",
    twin=(("def zeroed(", "def cleared("), ("[zeroed(", "[cleared(")),
)
