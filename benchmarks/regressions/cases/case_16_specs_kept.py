"""An optimizer that leaves Python objects behind in each step; torch 2.10 to 2.12 did so for sharded parameters."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=16,
    title="A cache of sharded parameters' layouts grows by an entry for each parameter and step",
    threads=("pytorch/pytorch#188174", "pytorch/pytorch#181761", "pytorch/torchtitan#3790"),
    program="""\
from torch.distributed.fsdp import fully_shard

LAYOUTS = {}


class Layout:
    def __init__(self, parameter):
        self.shape, self.placements = tuple(parameter.shape), list(parameter.placements)


def layout(parameter, step):
    key = parameter
    if key not in LAYOUTS:
        LAYOUTS[key] = Layout(parameter)
    return LAYOUTS[key]


def build(ctx):
    model = layers(8)
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(8, 16)
    number = 0

    def step():
        nonlocal number
        number += 1
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            layout(parameter, number)
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(("key = parameter\n", "key = (parameter, step)\n"),),
    line="LAYOUTS[key] = Layout(parameter)",
    red=frozenset({"python_objects"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="Layout",
)
