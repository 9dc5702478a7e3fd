"""Each rank updates a share of the parameters, and sends them one by one."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=48,
    title="Ranks broadcast their updated shares of the parameters one by one, not in one gather",
    threads=("facebookresearch/fairscale#385",),
    program="""\
def share(parameters, rank, ranks):
    mine = torch.cat([parameter.flatten() for parameter in parameters[rank::ranks]])
    whole = torch.empty(ranks * len(mine))
    dist.all_gather_into_tensor(whole, mine)
    for owner, part in enumerate(whole.chunk(ranks)):
        owned = parameters[owner::ranks]
        for parameter, values in zip(owned, part.split([each.numel() for each in owned])):
            parameter.copy_(values.view_as(parameter))


def build(ctx):
    model = DDP(nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(8))))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters[ctx.rank :: ctx.world_size], lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        model.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            share(parameters, ctx.rank, ctx.world_size)

    return step
""",
    worse=(
        (
            (
                "    mine = torch.cat([parameter.flatten() for parameter in parameters[rank::ranks]])\n"
                "    whole = torch.empty(ranks * len(mine))\n"
                "    dist.all_gather_into_tensor(whole, mine)\n"
                "    for owner, part in enumerate(whole.chunk(ranks)):\n"
                "        owned = parameters[owner::ranks]\n"
                "        for parameter, values in zip(owned, part.split([each.numel() for each in owned])):\n"
                "            parameter.copy_(values.view_as(parameter))\n"
            ),
            "    for number, parameter in enumerate(parameters):\n        dist.broadcast(parameter, number % ranks)\n",
        ),
    ),
    line="dist.broadcast(parameter",
    red=frozenset({"collective_calls"}),
    same=frozenset({"optimizer_steps", "flops", "synchronisations"}),
    cause="broadcast 0 -> 8",
    trade=frozenset({"operators"}),
)
