"""Base weights that were frozen get gradients, which DDP sends."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=45,
    title="The frozen weights under an adapter become trainable",
    threads=("huggingface/peft#761",),
    program="""\
class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)

    def forward(self, values):
        return self.base(values) + self.up(self.down(values))


def build(ctx):
    model = nn.Sequential(*(Adapted(layer) for layer in layers(3, 64)))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 64)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()

    return step
""",
    worse=(("        self.base.requires_grad_(False)\n", ""),),
    line="loss.backward()",
    red=frozenset({"collective_bytes", "model_state_bytes", "peak_tensor_bytes", "flops"}),
    same=frozenset({"optimizer_steps", "collective_calls", "synchronisations"}),
    cause="trainable",
)
