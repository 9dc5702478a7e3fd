from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.planner import GradientBucket, best_bucket_bytes, bucket_layout, overlapped, search_bucket_size

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


@pytest.mark.parametrize("cap", [None, 0.01, 1, 25])
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
    ("total", "bandwidth", "overhead", "expected", "digits"),
    [
        (1e9, 25e9, 100e-6, (20, 50, 4), (9, 9, 9)),
        (8e9, 300e9, 100e-6, (16.33, 489.9, 3.266), (2, 1, 3)),
        (100e6, 1e9, 500e-6, (14.14, 7.07, 14.14), (2, 2, 2)),
    ],
)
def test_the_closed_form_has_the_published_numbers(
    total: float, bandwidth: float, overhead: float, expected: tuple[float, ...], digits: tuple[int, ...]
) -> None:
    """Buckets, MB of each and ms, to the digits that are given (the form is Stanford CS336's, assignment 2, 2025)."""
    best = best_bucket_bytes(total, bandwidth, overhead)
    found = (best.buckets, best.nbytes / 1e6, best.overhead * 1e3)
    assert tuple(map(round, found, digits)) == expected


def test_a_bucket_is_no_smaller_than_the_largest_parameter_and_no_larger_than_all() -> None:
    assert best_bucket_bytes(1e9, 25e9, 100e-6, largest_parameter=200e6).buckets == 5
    assert best_bucket_bytes(1e6, 25e9, 1.0).buckets == 1


def test_the_search_finds_the_cap_of_the_earliest_end() -> None:
    """Four gradients of 1 MiB at 25, 50, 75 and 100; a call costs 10 and 10 for each MiB."""
    sizes, ready = [MIB] * 4, [100.0, 75.0, 50.0, 25.0]
    trials = search_bucket_size(sizes, ready, lambda nbytes: 10 + 10 * nbytes / MIB, 100, [1, 2, 4])
    assert [(trial.cap_mb, trial.overlap.finish) for trial in trials] == [(1, 120), (2, 130), (4, 150)]
    assert trials[0].overlap == overlapped([25, 50, 75, 100], [20] * 4, 100)


def test_where_calls_cost_much_the_search_takes_fewer_buckets() -> None:
    trials = search_bucket_size([MIB] * 4, [4.0, 3.0, 2.0, 1.0], lambda _: 100.0, 4, [1, 2, 4])
    assert trials[0].cap_mb == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": [1], "cap_mb": 0}, "cap_mb=0 is no such quantity; give a finite number of more than 0"),
        ({"sizes": [1, 2], "ready_order": [0, 0]}, "ready_order has not each of the 2 parameters once"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        bucket_layout(**arguments)  # type: ignore[arg-type]


def test_a_gradient_without_a_time_is_refused() -> None:
    with pytest.raises(SettingError, match="ready has 1 times for 2 gradients; give one for each"):
        search_bucket_size([1, 2], [1.0], float, 1.0, [1])
