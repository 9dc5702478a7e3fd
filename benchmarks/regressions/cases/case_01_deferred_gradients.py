"""Gradient accumulation under FSDP2 that sends the gradients of each micro-batch."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=1,
    title="A helper defers the synchronisation of gradients for DDP, but not for FSDP2",
    threads=("NVIDIA/cosmos-framework#161", "huggingface/accelerate#3762"),
    program="""\
from contextlib import nullcontext
from torch.distributed.fsdp import FSDPModule, fully_shard


def sending(model, last):
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    return model.no_sync() if isinstance(model, DDP) and not last else nullcontext()


def build(ctx):
    model = layers()
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.randn(4, 8, 16)

    def step():
        for number, batch in enumerate(batches, 1):
            with sending(model, number == len(batches)):
                model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(("    if isinstance(model, FSDPModule):\n        model.set_requires_gradient_sync(last)\n", ""),),
    line=".backward()",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="reduce_scatter",
    twin=(("def sending(", "def gradients_of("), ("with sending(", "with gradients_of(")),
)
