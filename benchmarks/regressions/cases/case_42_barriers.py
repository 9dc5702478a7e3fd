"""Barriers that were put in to take times."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=42,
    title="Each step begins and ends with a barrier, to measure times",
    threads=("hpcaitech/Open-Sora#527",),
    program="""\
from contextlib import contextmanager


@contextmanager
def timed(name):
    yield


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        with timed("step"):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    return step
""",
    worse=(("    yield\n", "    dist.barrier()\n    yield\n    torch.distributed.barrier()\n"),),
    line="    dist.barrier()",
    red=frozenset({"collective_calls"}),
    same=frozenset({"optimizer_steps", "flops", "collective_bytes"}),
    cause="barrier 0 -> 2",
    twin=(("def timed(", "def clocked("), ('with timed("step")', 'with clocked("step")')),
)
