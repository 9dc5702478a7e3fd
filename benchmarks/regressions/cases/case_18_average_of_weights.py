"""An average of the weights that is updated one parameter at a time."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=18,
    title="The average of the weights is updated in a loop, not by one foreach call",
    threads=("huggingface/diffusers#7685", "ecmwf/WeatherGenerator#2551", "deepmodeling/deepmd-kit#5818"),
    program="""\
@torch.no_grad()
def update(averages, parameters):
    torch._foreach_lerp_(averages, parameters, 0.01)


def build(ctx):
    model = DDP(layers(10))
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        update(averages, list(model.parameters()))

    return step
""",
    worse=(
        (
            "    torch._foreach_lerp_(averages, parameters, 0.01)\n",
            "    for average, parameter in zip(averages, parameters):\n        average.lerp_(parameter, 0.01)\n",
        ),
    ),
    line="average.lerp_(",
    red=frozenset({"operators"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="aten.lerp_ 0 -> 20",
    twin=(("batch = torch.randn(8, 16)", "torch.manual_seed(7)\n    batch = torch.randn(8, 16)"),),
)
