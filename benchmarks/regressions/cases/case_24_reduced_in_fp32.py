"""Gradients that are reduced in fp32 where they were reduced in bf16."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=24,
    title="FSDP2 reduces gradients in fp32 instead of bf16",
    threads=("pytorch/torchtitan#1028", "mlfoundations/scaling#3", "pytorch/pytorch#190626"),
    program="""\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(ctx):
    model = layers()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for part in (*model, model):
        fully_shard(part, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=(("reduce_dtype=torch.bfloat16", "reduce_dtype=torch.float32"),),
    line="loss.backward()",
    red=frozenset({"collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="reduce_scatter",
    trade=frozenset({"operators"}),
    twin=(("batch = torch.randn(8, 16)", "torch.manual_seed(7)\n    batch = torch.randn(8, 16)"),),
)
