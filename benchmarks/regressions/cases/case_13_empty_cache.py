"""The cache of the allocator is emptied in each step; on a CPU that does nothing, and it is counted."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=13,
    title="Each training step calls `torch.cuda.empty_cache()`",
    threads=("huggingface/transformers#31372", "huggingface/transformers#28769", "huggingface/transformers#31530"),
    program="""\
def training_step(model, batch):
    loss = model(batch).square().mean()
    loss.backward()
    return loss.detach()


def build(ctx):
    model = DDP(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        loss = training_step(model, batch)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
""",
    worse=(("    return loss.detach()", "    torch.cuda.empty_cache()\n    return loss.detach()"),),
    line="torch.cuda.empty_cache()",
    red=frozenset({"allocator_calls"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls", "operators"}),
    cause="empty_cache",
    twin=(("def training_step(", "def train("), ("loss = training_step(", "loss = train(")),
)
