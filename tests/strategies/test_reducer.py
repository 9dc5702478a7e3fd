"""What shares an all-reduce, when it is sent, and where the gradients are meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies.handwritten import MB, Bucket, Reducer, Slot, by_kind, small_together
from pytest_ddpperf.strategies.replicas import Trained, replicate
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import all_reduces, case, refusal

FLOAT = 4  # bytes
OnRanks = Callable[..., tuple[Any, ...]]
RANKS = 2


def slots_of(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Slot]:
    """One slot for each number of elements."""
    return [Slot(Trained(f"p{size}", nn.Parameter(torch.zeros(size, dtype=dtype)), (1,))) for size in sizes]


def names(groups: Sequence[Sequence[Slot]] | Sequence[Bucket]) -> list[list[str]]:
    return [[slot.trained.name for slot in (group.slots if isinstance(group, Bucket) else group)] for group in groups]


@pytest.mark.parametrize(
    ("sizes", "caps", "groups"),
    [
        # 3 + 4 fill a group of 7 exactly; 1 + 2 do not, and 5 more do, although they overshoot; 6 is left over.
        ((3, 4, 1, 2, 5, 6), (7 * FLOAT,), [["p3", "p4"], ["p1", "p2", "p5"], ["p6"]]),
        ((3, 4, 1, 2, 5), (7 * FLOAT, 3 * FLOAT), [["p3"], ["p4", "p1", "p2"], ["p5"]]),
        ((2, 1, 3), (2 * FLOAT, 6 * FLOAT), [["p2"], ["p1", "p3"]]),  # the first group is never larger than others
        ((), (1,), []),
        # A quarter of an MB is 65,536 floats: 40,000 and 25,536 fill it; with one less, the next joins them.
        ((40_000, 25_536, 1), (0.25 * MB,), [["p40000", "p25536"], ["p1"]]),
        ((40_000, 25_535, 1), (0.25 * MB,), [["p40000", "p25535", "p1"]]),
    ],
)
def test_a_group_is_full_once_it_holds_the_cap(
    sizes: tuple[int, ...], caps: tuple[float, ...], groups: list[list[str]]
) -> None:
    assert names(by_kind(slots_of(*sizes), *caps)) == groups


def test_types_are_packed_apart_and_ordered_by_their_last_arrival() -> None:
    a, c, d = slots_of(1, 3, 4)
    (b,) = slots_of(2, dtype=torch.bfloat16)
    assert names(by_kind([a, b, c, d], cap=100)) == [["p2"], ["p1", "p3", "p4"]]
    assert names(by_kind([b, a, d, c], cap=4 * FLOAT)) == [["p1", "p4"], ["p2"], ["p3"]]


def test_small_gradients_share_a_bucket_although_large_ones_arrive_between_them() -> None:
    buckets = small_together(slots_of(1, 50, 2, 60, 3, 70), cap=6 * FLOAT)
    # The small three are complete with the last of them, behind both large ones that arrived before it.
    assert names(buckets) == [["p50"], ["p60"], ["p1", "p2", "p3"], ["p70"]]


def test_a_small_gradient_alone_needs_no_buffer() -> None:
    (bucket,) = small_together(slots_of(1), cap=6 * FLOAT)
    bucket.slots[0].trained.parameter.grad = torch.ones(1)
    bucket.collect_rest(share=0.5)
    assert bucket.buffer is None
    assert bucket.slots[0].trained.parameter.grad.tolist() == [0.5]


def test_collected_gradients_lie_in_the_buffer_in_order() -> None:
    """2 and 4, halved; the second slot has no gradient and the third holds its own already."""
    first, second, third = slots_of(2, 1, 2)
    bucket = Bucket([first, second, third], buffered=True)
    first.trained.parameter.grad = torch.tensor([2.0, 4.0])
    bucket.collect_rest(share=0.5)
    assert bucket.buffer is not None
    assert bucket.buffer.tolist() == [1, 2, 0, 0, 0]
    assert third.trained.parameter.grad is not None
    third.trained.parameter.grad += 8.0  # as backward adds to it in a next micro-batch
    bucket.collect_rest(share=0.5)
    assert bucket.buffer.tolist() == [0.5, 1, 0, 4, 4]


def chain() -> nn.Module:
    """Three layers, whose gradients arrive last layer first, bias before weight or after it as autograd likes."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def in_buckets(slots: Sequence[Slot]) -> list[Bucket]:
    return [Bucket(group, buffered=True) for group in by_kind(slots, cap=300)]


def events_of_steps(ctx: RankContext) -> tuple[list[list[str]], list[bool]]:
    """For three steps: what is sent, when the first layer's gradient comes, and when backward is done.

    Then whether each gradient lies in its bucket's buffer.
    """
    module = chain()
    reducer = Reducer(replicate(module, ctx), ctx, in_buckets)
    steps = []
    with all_reduces(lambda tensor: f"send {tensor.numel()}") as events:
        # torch runs it before the gradient is accumulated.
        weight = module.get_parameter("0.weight")
        weight.register_hook(lambda _: events.append("first layer"))  # type: ignore[no-untyped-call]  # torch's
        for _ in range(3):
            module.zero_grad()
            module(torch.ones(2, 4)).sum().backward()
            events.append("backward done")
            reducer.synchronise()
            steps.append(list(events))
            events.clear()
    inside = []
    for bucket in reducer.buckets:
        assert bucket.buffer is not None
        start, end = bucket.buffer.data_ptr(), bucket.buffer.data_ptr() + bucket.buffer.nbytes
        for slot in bucket.slots:
            assert slot.trained.parameter.grad is not None
            inside.append(start <= slot.trained.parameter.grad.data_ptr() < end)
    return steps, inside


def addresses(module: nn.Module) -> list[int]:
    return [p.grad.data_ptr() for p in module.parameters() if p.grad is not None]


@case
def homes(ctx: RankContext, strategy: str) -> dict[str, list[list[int]]]:
    """The addresses of the gradients after each of four steps, with both kinds of zero_grad."""
    found = {}
    for kind in (True, False):
        module = chain()
        parallel = parallelise(strategy, module, ctx)
        steps = []
        for _ in range(4):
            kept = [p.grad for p in module.parameters()]  # else the allocator may give an address again
            module.zero_grad(set_to_none=kind)
            module(torch.ones(2, 4)).sum().backward()
            parallel.synchronise()
            steps.append(addresses(module))
            kept.clear()
        found[str(kind)] = steps
    return found


@pytest.mark.parametrize(
    "strategy", ["flat", "overlap_coalesced", "bucketed", "bucketed[bucket_cap_mb=0.0002,first_bucket_mb=0.0001]"]
)
def test_buffers_are_allocated_once_and_are_the_gradients(on_ranks: OnRanks, strategy: str) -> None:
    """The coalescing one has no other gradients than small ones here."""
    for found in on_ranks(homes, strategy):
        for steps in found.values():
            assert len(set(steps[0])) == 6
            assert steps == [steps[0]] * 4


def local_homes(ctx: RankContext) -> bool:
    """Whether gradients that stay local are added up in the buffers, so that they are in memory once only."""
    module = chain()
    parallel = parallelise("bucketed", module, ctx)
    module(torch.ones(2, 4)).sum().backward()
    parallel.synchronise()
    buffers = addresses(module)
    module.zero_grad()
    assert parallel.no_sync is not None
    with parallel.no_sync():
        module(torch.ones(2, 4)).sum().backward()
    return addresses(module) == buffers


@case
def replaced(ctx: RankContext, strategy: str) -> tuple[list[list[float]], str | None, list[float]]:
    """A gradient that is put in before backward, in three steps, and then one that is put in after it."""
    module = nn.Linear(2, 1, bias=False)
    parallel = parallelise(strategy, module, ctx)
    own = 10.0 * (ctx.rank + 1)
    before = []
    for _ in range(3):
        module.weight.grad = torch.full((1, 2), own)
        module(torch.ones(1, 2)).sum().backward()
        parallel.synchronise()
        before.append(module.weight.grad.flatten().tolist())
    module.zero_grad()
    module(torch.ones(1, 2)).sum().backward()
    module.weight.grad = torch.full((1, 2), own)
    message = refusal(parallel.synchronise)
    return before, message, module.weight.grad.flatten().tolist()


def test_a_gradient_put_in_before_backward_counts_and_one_put_in_after_it_is_sent_or_refused(
    on_ranks: OnRanks, strategy: str, *, sends_in_backward: bool
) -> None:
    """10 and 20 are 15 in the mean, to which backward adds 1. Where backward sends, the old one is on its way."""
    for before, message, gradient in on_ranks(replaced, strategy):
        assert before == [[16, 16]] * 3
        if sends_in_backward:
            assert message == (
                "the gradient of parameter weight was replaced after backward and before its synchronisation: "
                "clip or unscale gradients in place, or after the synchronisation"
            )
        else:
            assert (message, gradient) == (None, [15, 15])


@case
def two_backwards(ctx: RankContext, strategy: str) -> tuple[list[list[float]], str | None]:
    """Two losses, each with a backward of its own: first with parameters of its own too, then with the same."""
    module = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    parallel = parallelise(strategy, module, ctx)
    apart = []
    inputs = torch.full((1, 1), float(ctx.rank))
    for _ in range(2):
        module.zero_grad()
        module[0](inputs).sum().backward()
        module[1](inputs + 10).sum().backward()
        parallel.synchronise()
        apart.append([p.grad.item() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    module[0](inputs).sum().backward()
    message = refusal(lambda: module[0](inputs).sum().backward())
    parallel.synchronise()
    return apart, message


def test_two_backwards_in_one_step_are_right_or_refused(
    on_ranks: OnRanks, strategy: str, *, sends_in_backward: bool
) -> None:
    """The inputs are 0 and 1, 0.5 in the mean, and by 10 more; a bias has 1."""
    for apart, message in on_ranks(two_backwards, strategy):
        assert apart == [[0.5, 1, 10.5, 1]] * 2
        if sends_in_backward:
            assert message is not None
            assert "a second backward reached parameter 0." in message
            assert "before synchronise()" in message
            assert "run all but the last in no_sync()" in message
        else:
            assert message is None


def calls_after_an_error_in_no_sync(ctx: RankContext) -> int:
    """All-reduces of a step, once an exception has left no_sync()."""
    module = chain()
    parallel = parallelise("overlap", module, ctx)
    assert parallel.no_sync is not None
    with pytest.raises(KeyError), parallel.no_sync():
        raise KeyError
    with all_reduces() as sent:
        module(torch.ones(2, 4)).sum().backward()
        parallel.synchronise()
        sent.clear()
        module(torch.ones(2, 4)).sum().backward()
        return len(sent)


CASES = (events_of_steps, local_homes, calls_after_an_error_in_no_sync)


def test_buckets_are_sent_during_backward_from_the_second_step_on_and_have_all_gradients(
    ranks: tuple[dict[str, Any], ...],
) -> None:
    """Of the last layer 36 floats, of the middle one 72, of the first one 40; a bucket is full with 75 of them.

    Whichever of a layer's weight and bias arrives first, the last layer and the middle one fill the first bucket.
    """
    for found in ranks:
        (first, second, third), inside = found["events_of_steps"]
        assert first == ["first layer", "backward done", "send 108", "send 40"]  # it only noted the order
        assert second == third == ["send 108", "first layer", "send 40", "backward done"]
        assert inside == [True] * 6
        assert found["local_homes"]
        assert found["calls_after_an_error_in_no_sync"] == 6  # no_sync ends with its block, also by an exception
