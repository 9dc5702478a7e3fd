"""Frozen weights and their adapters in one unit of FSDP1: gradients of everything are sent."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=23,
    title="Adapters and frozen weights share a unit of FSDP1, which reduces the gradients of both",
    threads=("Lightning-AI/litgpt#1392", "Lightning-AI/litgpt#1417"),
    program="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Adapter(nn.Sequential):
    pass


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.adapter = Adapter(nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False))

    def forward(self, values):
        return self.frozen(values) + self.adapter(values)


def policy(module, recurse, nonwrapped_numel):
    return recurse or isinstance(module, Adapter)


def build(ctx):
    torch.manual_seed(0)
    model = nn.Sequential(*(Adapted() for _ in range(3)))
    model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], lr=0.01)
    batch = torch.randn(8, 64)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=(("auto_wrap_policy=policy, ", ""),),
    line="loss.backward()",
    red=frozenset({"collective_bytes", "peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps"}),
    cause="reduce_scatter",
    trade=frozenset({"collective_calls"}),
)
