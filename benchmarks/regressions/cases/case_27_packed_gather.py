"""Fewer collectives and a longer step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=27,
    title="SyncBatchNorm packs three gathers into one, and a user's step takes 30 % more time",
    threads=("NVIDIA/apex#980",),
    program="""\
def build(ctx):
    torch.manual_seed(0)
    layer = nn.Linear(256, 256)
    batch = torch.randn(64, 256)
    statistics = [torch.randn(512, 512).t() for _ in range(3)]

    def gather(parts):
        for part in parts:
            part = part.t()
            dist.all_gather_into_tensor(torch.empty(2 * len(part), len(part)), part)

    def step():
        layer(batch).sum().backward()
        layer.zero_grad()
        gather(statistics)

    return step
""",
    worse=(
        (
            (
                "        for part in parts:\n"
                "            part = part.t()\n"
                "            dist.all_gather_into_tensor(torch.empty(2 * len(part), len(part)), part)\n"
            ),
            (
                "        packed = torch.cat([torch.cat([row.contiguous() for row in part]) for part in parts])\n"
                "        dist.all_gather_into_tensor(torch.empty(2 * len(packed)), packed)\n"
            ),
        ),
    ),
    line="packed = torch.cat(",
    red=frozenset({"step_time"}),
    same=frozenset({"collective_calls", "collective_bytes"}),
    cause="step_time",
    clock=True,
)
