"""A variable of the environment for debugging that the training sets."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=57,
    title="The training sets `CUDA_LAUNCH_BLOCKING=1`, to debug, so Python waits for each kernel",
    threads=("ByteDance-Seed/VeOmni#115", "jishengpeng/WavTokenizer#17"),
    program="""\
import os


def build(ctx):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step
""",
    worse=(('os.environ["TOKENIZERS_PARALLELISM"] = "false"', 'os.environ["CUDA_LAUNCH_BLOCKING"] = "1"'),),
    line="model(batch).square().mean().backward()",
    red=frozenset({"slow_modes"}),
    same=frozenset({"flops", "collective_calls", "optimizer_steps", "backward_passes"}),
    cause="CUDA_LAUNCH_BLOCKING 0 -> 1",
    twin=(('["TOKENIZERS_PARALLELISM"] = "false"', '["TOKENIZERS_PARALLELISM"] = "true"'),),
)
