"""Logits that are gathered before the loss, which tensor parallelism could compute from shards."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=44,
    title="The loss is no longer computed in parallel, so ranks gather the logits of the whole vocabulary",
    threads=("pytorch/torchtitan#112", "pytorch/torchtitan#3694"),
    check='mesh={"tp": 2}',
    program="""\
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

LOGITS = Shard(-1)


def build(ctx):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 256))
    head = ColwiseParallel(output_layouts=LOGITS, use_local_output=False)
    parallelize_module(model, ctx.mesh["tp"], {"1": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    batch, targets = torch.randn(8, 16), torch.arange(8)

    def step():
        optimizer.zero_grad()
        logits = model(batch)
        with loss_parallel():
            nn.functional.cross_entropy(logits, targets).backward()
        optimizer.step()

    return step
""",
    worse=(
        ("LOGITS = Shard(-1)", "LOGITS = Replicate()"),
        ("        with loss_parallel():\n            nn.functional", "        nn.functional"),
        ("(logits, targets)", "(logits.to_local(), targets)"),
    ),
    line="logits = model(batch)",
    red=frozenset({"peak_tensor_bytes"}),
    same=frozenset({"optimizer_steps"}),
    cause="all_gather",
    trade=frozenset({"operators"}),
)
