"""A metric whose states are gathered in each step."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=49,
    title="A metric gathers its states in each step, not at the end of an epoch",
    threads=("Lightning-AI/torchmetrics#67",),
    program="""\
class Accuracy:
    sync_on_step = False

    def __init__(self):
        self.right, self.seen = torch.zeros(()), torch.zeros(())

    def gathered(self, state):
        states = [torch.empty_like(state) for _ in range(dist.get_world_size())]
        dist.all_gather(states, state)
        return torch.stack(states).sum()

    def update(self, scores, targets):
        self.right += (scores.argmax(1) == targets).sum()
        self.seen += len(targets)
        if self.sync_on_step:
            return self.gathered(self.right) / self.gathered(self.seen)
        return self.right / self.seen


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, targets, accuracy = torch.randn(8, 16), torch.arange(8), Accuracy()

    def step():
        optimizer.zero_grad()
        scores = model(batch)
        nn.functional.cross_entropy(scores, targets).backward()
        optimizer.step()
        accuracy.update(scores.detach(), targets)

    return step
""",
    worse=(("sync_on_step = False", "sync_on_step = True"),),
    line="dist.all_gather(states, state)",
    red=frozenset({"collective_calls", "collective_bytes"}),
    same=frozenset({"optimizer_steps", "flops", "backward_passes"}),
    cause="all_gather 0 -> 2",
    twin=(("def update(", "def add("), ("accuracy.update(", "accuracy.add(")),
)
