"""A trainer that compiles its model, and trains the one that is not compiled."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=51,
    title="The result of `torch.compile` is not used, so nothing is compiled",
    threads=("ostris/ai-toolkit#729", "huggingface/transformers#25152", "huggingface/transformers#34656"),
    program="""\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, inputs):
        return inputs + self.down(nn.functional.gelu(self.up(inputs)))


def build(ctx):
    block = Block()
    block = torch.compile(block, backend="aot_eager")
    model = DDP(block)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step
""",
    worse=(("    block = torch.compile(block", "    torch.compile(block"),),
    line="return inputs + self.down(nn.functional.gelu(self.up(inputs)))",
    red=frozenset({"compiled_operators"}),
    same=frozenset({"operators", "flops", "collective_calls", "optimizer_steps"}),
    cause="operators in torch.compile 4 -> 0",
    twin=(("class Block(", "class Layer("), ("block = Block()", "block = Layer()")),
)
