"""An attention that autocast does not cover gets queries and keys that a norm has made float32 again."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=50,
    title="Attention runs in float32 under autocast, because a norm of queries and keys returns float32",
    threads=("k2-fsa/OmniVoice#212",),
    program="""\
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.norm = nn.Linear(32, 96), nn.RMSNorm(32)

    def forward(self, inputs):
        query, key, value = self.project(inputs).chunk(3, dim=-1)
        query, key = self.norm(query.float()), self.norm(key.float())
        return attend(query.to(value.dtype), key.to(value.dtype), value)


def attend(query, key, value):
    with torch.autocast("cpu", enabled=False):  # as of a kernel that autocast does not know
        weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        return weights @ value


def build(ctx):
    model = DDP(Attention())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens = torch.randn(4, 64, 32)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(tokens)
        outputs.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
""",
    worse=(
        (
            "        return attend(query.to(value.dtype), key.to(value.dtype), value)\n",
            "        return attend(query, key, value.to(query.dtype))\n",
        ),
    ),
    line="weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)",
    red=frozenset({"full_precision_flops"}),
    same=frozenset({"flops", "collective_calls", "collective_bytes"}),
    cause="FLOPs in float32 without autocast or TF32 0 MFLOP ->",
    trade=frozenset({"operators"}),
    twin=(("def attend(", "def attention_of("), ("return attend(", "return attention_of(")),
)
