"""A step that counts, with as many collectives as a test says, and a fixture that loads one plugin beside ours."""

COUNTED = """
import pytest

pytestmark = pytest.mark.ddpperf(world_size=2, counts='only', backend="gloo", device="cpu", timeout=30)


def build_of(calls):
    def build(ctx):
        import torch
        import torch.distributed as dist

        def step():
            for _ in range(calls):
                dist.all_reduce(torch.ones(4))
            return 1.0

        return step

    return build
"""
STEP = """

def test_step(ddpperf):
    ddpperf.check(build_of(1))
"""
