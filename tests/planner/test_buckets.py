from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.planner import GradientBucket, bucket_layout

MIB = 2**20


def test_buckets_are_filled_from_the_last_parameter_and_the_first_one_early() -> None:
    sizes = [20 * MIB, 10 * MIB, 20 * MIB, MIB // 2, MIB // 2]
    found = bucket_layout(sizes)
    assert found == (GradientBucket((4, 3), MIB), GradientBucket((2, 1), 30 * MIB), GradientBucket((0,), 20 * MIB))


def test_a_cap_of_ones_own_holds_for_the_first_bucket_too() -> None:
    sizes = [20 * MIB, 10 * MIB, 20 * MIB, MIB // 2, MIB // 2]
    assert [bucket.nbytes for bucket in bucket_layout(sizes, 24)] == [31 * MIB, 20 * MIB]
    assert [bucket.parameters for bucket in bucket_layout(sizes, 24)] == [(4, 3, 2, 1), (0,)]


def test_buckets_follow_the_order_in_which_gradients_are_ready() -> None:
    assert [bucket.parameters for bucket in bucket_layout([MIB] * 4, 2, ready_order=(0, 2, 1, 3))] == [(0, 2), (1, 3)]


def test_gradients_of_several_kinds_never_share_a_bucket() -> None:
    found = bucket_layout([MIB] * 4, 2, kinds=["fp32", "bf16", "fp32", "bf16"])
    assert [bucket.parameters for bucket in found] == [(3, 1), (2, 0)]


@pytest.mark.parametrize("cap", [None, 1])
def test_the_layout_is_that_of_torch(cap: float | None) -> None:
    import torch
    import torch.distributed as dist

    sizes = [4 * (1 + seed * 7919 % 500_000) for seed in range(40)]
    tensors = [torch.empty(size // 4, device="meta") for size in reversed(sizes)]
    caps = [MIB, 25 * MIB] if cap is None else [int(cap * MIB)]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(sizes))  # type: ignore[attr-defined]
    assert [bucket.parameters for bucket in bucket_layout(sizes, cap)] == [
        tuple(len(sizes) - 1 - i for i in bucket) for bucket in indices
    ]


def test_the_layout_is_the_one_that_ddp_has_rebuilt(launcher: Launcher) -> None:
    def rebuilt(_ctx: object) -> tuple[list[int], str]:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(5)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.03)
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()
        return [64 * 64 * 4] * 5, str(model._get_ddp_logging_data()["rebuilt_bucket_sizes"])  # type: ignore[no-untyped-call]

    sizes, told = launcher.run(rebuilt, world_size=2, device="cpu", backend="gloo").rank(0)
    assert [int(size) for size in told.split(", ")] == [bucket.nbytes for bucket in bucket_layout(sizes, 0.03)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": [1], "cap_mb": 0}, "cap_mb=0 is not valid; give a finite number of more than 0"),
        ({"sizes": [1, 2], "ready_order": [0, 0]}, "ready_order=\\[0, 0\\]: expected each index below 2 exactly once"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        bucket_layout(**arguments)  # type: ignore[arg-type]
