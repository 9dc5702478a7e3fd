"""Sends between stages of a pipeline that block."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=32,
    title="The stages of a pipeline use blocking sends, so they wait for each other",
    threads=("pytorch/pytorch#172668",),
    program="""\
def build(ctx):
    stage = layers(1)
    batches = torch.randn(4, 8, 16)

    def first():
        sent = []
        for batch in batches:
            outputs = stage(batch)
            sent.append(dist.isend(outputs.detach(), 1))
            outputs.square().mean().backward()
        for work in sent:
            work.wait()

    def last():
        for _ in batches:
            inputs = torch.empty(8, 16)
            dist.irecv(inputs, 0).wait()
            stage(inputs).square().mean().backward()

    def step():
        first() if ctx.rank == 0 else last()
        stage.zero_grad()

    return step
""",
    worse=(
        ("            sent.append(dist.isend(outputs.detach(), 1))\n", "            dist.send(outputs.detach(), 1)\n"),
    ),
    line="            dist.send(outputs.detach(), 1)",
    red=frozenset({"blocking_collectives"}),
    same=frozenset({"collective_calls", "collective_bytes", "flops", "backward_passes"}),
    cause="send 0 -> 4 blocking calls",
    twin=(("def first(", "def stage_0("), ("first() if", "stage_0() if")),
)
