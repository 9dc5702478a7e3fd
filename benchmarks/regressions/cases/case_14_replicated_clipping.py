"""Clipping that gathers each sharded gradient, keeps all of them, and scales none."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=14,
    title="Clipping gathers each sharded gradient, keeps the copies, and scales only the copies",
    threads=("huggingface/transformers#46113",),
    program="""\
from torch.distributed.fsdp import fully_shard


def clip(parameters, limit):
    return nn.utils.clip_grad_norm_(parameters, limit, foreach=False).full_tensor()


def build(ctx):
    model = layers(8, 32)
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 32)

    def step():
        optimizer.zero_grad()
        model(batch).square().sum().mul(100).backward()
        clip(list(model.parameters()), 0.01)
        optimizer.step()

    return step
""",
    worse=(
        (
            "    return nn.utils.clip_grad_norm_(parameters, limit, foreach=False).full_tensor()\n",
            (
                "    gradients = [parameter.grad.full_tensor() for parameter in parameters]\n"
                "    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()\n"
                "    for gradient in gradients:\n"
                "        gradient.mul_((limit / norm).clamp(max=1.0))\n"
                "    return norm\n"
            ),
        ),
    ),
    line="parameter.grad.full_tensor()",
    red=frozenset({"collective_calls", "collective_bytes", "peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="all_gather",
    twin=(("def clip(", "def limit_norm("), ("        clip(", "        limit_norm(")),
)
