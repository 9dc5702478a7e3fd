"""Gradients of each micro-batch are wanted, and the optimizer steps as often."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=2,
    title="An option that synchronises after each micro-batch also runs the optimizer after each one",
    threads=("huggingface/accelerate#2790", "huggingface/accelerate#2531"),
    program="""\
class Accumulator:
    def __init__(self, optimizer, every):
        self.optimizer, self.every, self.seen = optimizer, every, 0

    def begin(self):
        self.seen += 1
        self.complete = self.seen % self.every == 0

    def end(self):
        if self.complete:
            self.optimizer.step()
            self.optimizer.zero_grad()


def build(ctx):
    model = DDP(layers())
    accumulator = Accumulator(torch.optim.SGD(model.parameters(), lr=0.01), every=4)
    batches = torch.randn(4, 8, 16)

    def step():
        for batch in batches:
            accumulator.begin()
            model(batch).square().mean().backward()
            accumulator.end()

    return step
""",
    worse=(
        ("optimizer, every):", "optimizer, every, each_batch=True):"),
        (
            "every, self.seen = optimizer, every, 0",
            "every, self.each_batch, self.seen = optimizer, every, each_batch, 0",
        ),
        ("self.seen % self.every == 0", "self.each_batch or self.seen % self.every == 0"),
    ),
    line="self.optimizer.step()",
    red=frozenset({"optimizer_steps"}),
    same=frozenset({"collective_calls", "flops", "backward_passes"}),
    cause="optimizer_steps",
)
