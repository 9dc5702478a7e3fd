"""A scheduler that steps with each micro-batch, and not with the optimizer."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=55,
    title="The learning-rate scheduler steps after each micro-batch, so the learning rate decays too fast",
    threads=("starVLA/starVLA#210", "sgl-project/SpecForge#364"),
    program="""\
def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    batches = torch.randn(2, 8, 16) + ctx.rank

    def step():
        optimizer.zero_grad()
        for number, batch in enumerate(batches):
            last = number == 1
            model.require_backward_grad_sync = last
            model(batch).square().mean().backward()
            if last:
                optimizer.step()
                scheduler.step()

    return step
""",
    worse=(("                scheduler.step()\n", "            scheduler.step()\n"),),
    line="scheduler.step()",
    red=frozenset({"scheduler_steps"}),
    same=frozenset({"flops", "collective_calls", "optimizer_steps", "backward_passes", "operators"}),
    cause="scheduler.step 1 -> 2",
    twin=(("CosineAnnealingLR(optimizer, 1000)", "LinearLR(optimizer)"),),
)
