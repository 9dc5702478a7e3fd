"""A hook of each gradient reads it on the thread of autograd."""

from benchmarks.regressions.case import Case

CASE = Case(
    number=40,
    title="A hook of each parameter checks that its gradient is finite, and waits for the answer",
    threads=("NVIDIA/Megatron-LM#7076", "HyperGAN/HyperGAN#355"),
    program="""\
FLAGS = []


def validate(parameter):
    finite = parameter.grad.isfinite().all()
    FLAGS.append(finite)


def build(ctx):
    model = layers(6)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(validate)
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        FLAGS.clear()

    return step
""",
    worse=(("    FLAGS.append(finite)\n", "    if not finite:\n        raise FloatingPointError(parameter.shape)\n"),),
    line="if not finite:",
    red=frozenset({"synchronisations"}),
    same=frozenset({"optimizer_steps", "flops", "collective_calls"}),
    cause="bool(tensor) 0 -> 12",
)
