"""An average of the weights that gathers the whole model in each step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=19,
    title="Each step gathers the whole FSDP1 model to average the weights",
    threads=("thu-ml/Causal-Forcing#20",),
    program="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


@torch.no_grad()
def update(average, model):
    for old, new in zip(average.parameters(), model.parameters()):
        old.lerp_(new, 0.01)


def build(ctx):
    wrapping = {"auto_wrap_policy": ModuleWrapPolicy({nn.Linear}), "device_id": torch.device("cpu")}
    model, average = FSDP(layers(4, 64), **wrapping), FSDP(layers(4, 64), **wrapping)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 64)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        update(average, model)

    return step
""",
    worse=(
        (
            "    for old, new in zip(average.parameters(), model.parameters()):\n        old.lerp_(new, 0.01)\n",
            (
                "    with FSDP.summon_full_params(model), FSDP.summon_full_params(average):\n"
                "        for old, new in zip(average.parameters(), model.parameters()):\n"
                "            old.lerp_(new, 0.01)\n"
            ),
        ),
    ),
    line="FSDP.summon_full_params(model)",
    red=frozenset({"collective_calls", "collective_bytes", "peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="all_gather",
)
