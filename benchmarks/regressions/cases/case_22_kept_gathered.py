"""A frozen encoder whose parameters stay gathered after its forward."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=22,
    title="A frozen FSDP2 encoder does not reshard after its forward, and stays gathered",
    threads=("pytorch/pytorch#149029", "pytorch/pytorch#131965", "NVIDIA-NeMo/RL#464"),
    program="""\
from torch.distributed.fsdp import fully_shard


def build(ctx):
    encoder = layers(2, 128).requires_grad_(False)
    fully_shard(encoder, reshard_after_forward=True)
    model = DDP(layers(2, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 128)

    def step():
        optimizer.zero_grad()
        with torch.no_grad():
            encoded = encoder(batch)
        loss = model(encoded).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=((", reshard_after_forward=True", ""),),
    line="encoder(batch)",
    red=frozenset({"model_state_bytes"}),
    same=frozenset({"optimizer_steps", "flops"}),
    cause="model_state_bytes",
    trade=frozenset({"collective_calls"}),
)
