"""The hand-written strategies, from the textbook loop to buckets that are sent during backward.

All ranks start from rank 0's parameters and buffers. If a rank's forward pass does not use a parameter, the rank sends
zeros, because other ranks may wait for the gradient. If no rank used the parameter, its gradient becomes zeros. torch's
DDP with ``find_unused_parameters`` leaves None, but needs another collective in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.records.measurement import SIMULATED
from pytest_ddpperf.strategies.replicas import Replica, Trained, in_memory_order, replicate
from pytest_ddpperf.strategies.strategy import Parallel, RankView, packed

MB = 2**20  # as torch's DDP has it


@dataclass(eq=False)
class Slot:
    """The gradient of a parameter, with its position in the bucket that is all-reduced."""

    trained: Trained
    bucket: Bucket | None = None  # that it is sent with; None until the buckets have been formed
    view: Tensor | None = None  # the part of the bucket's buffer that the gradient becomes; None if it has none
    sent: Tensor | None = None  # the gradient that is being reduced
    arrived: bool = False  # whether backward has accumulated it since the last reduction

    @property
    def nbytes(self) -> int:
        """Returns the bytes of the gradient."""
        return self.trained.parameter.nbytes

    @property
    def kind(self) -> tuple[torch.dtype, torch.device]:
        """Returns dtype and device, which all gradients in a bucket have in common."""
        return self.trained.parameter.dtype, self.trained.parameter.device

    def adopt(self) -> None:
        """Moves the gradient into the bucket's buffer, and makes ``parameter.grad`` a view of this buffer."""
        parameter, view = self.trained.parameter, self.view
        gradient = parameter.grad
        if view is not None and gradient is not None and gradient is not view:
            self.trained.check_plain(gradient)
            view.copy_(gradient)
            parameter.grad = view

    def collect(self, share: float) -> None:
        """Writes ``share`` times the gradient to the memory that is sent; zeros if there is no gradient."""
        parameter, view = self.trained.parameter, self.view
        gradient = parameter.grad
        if view is None:
            self.sent = self.trained.gradient().mul_(share)
            return
        if gradient is view:
            view.mul_(share)
        elif gradient is None:
            view.zero_()
        else:
            self.trained.check_plain(gradient)
            torch.mul(gradient, share, out=view)  # one pass over memory for the copy and the division
        self.sent = parameter.grad = view

    def release(self) -> None:
        """Prepares for the next reduction; raises a WorkloadError if the gradient was replaced after it was sent."""
        replaced = self.trained.parameter.grad is not self.sent
        self.sent = None  # a gradient outside a buffer must not outlive the optimizer's zero_grad
        self.arrived = False
        if replaced:
            raise WorkloadError(
                f"the gradient of parameter {self.trained.name} was replaced after backward and before its "
                "synchronisation: clip or unscale gradients in place, or after the synchronisation"
            )


class Bucket:
    """Gradients that share an all-reduce.

    A ``buffered`` bucket allocates a buffer at its first use. An unbuffered bucket sends its only gradient directly.
    """

    def __init__(self, slots: Sequence[Slot], *, buffered: bool) -> None:
        self.slots = tuple(slots)  # all of one kind
        self.missing = len(self.slots)  # those not collected yet
        self.buffer: Tensor | None = None
        self._buffered = buffered
        self._work: dist.Work | None = None
        for slot in self.slots:
            slot.bucket = self

    def collect_rest(self, share: float) -> None:
        """Writes the gradients that this backward did not compute, times ``share``, to the memory that is sent."""
        if self._buffered and self.buffer is None:
            dtype, device = self.slots[0].kind
            sizes = [slot.trained.parameter.numel() for slot in self.slots]
            self.buffer = torch.zeros(sum(sizes), dtype=dtype, device=device)
            for slot, part in zip(self.slots, torch.split(self.buffer, sizes), strict=True):
                slot.view = part.as_strided(slot.trained.parameter.shape, slot.trained.strides)
        for slot in self.slots:
            if not slot.arrived:
                slot.collect(share)

    def send(self) -> None:
        """Starts the all-reduce of the bucket."""
        sent = self.slots[0].sent if self.buffer is None else self.buffer
        assert sent is not None  # noqa: S101  every slot has been collected
        self._work = dist.all_reduce(in_memory_order(sent), async_op=True)

    def wait(self) -> None:
        """Waits for the all-reduce (on CUDA: makes the current stream wait), and prepares for the next one."""
        assert self._work is not None  # noqa: S101  it was sent
        self._work.wait()
        self._work = None
        self.missing = len(self.slots)
        for slot in self.slots:
            slot.release()


class Reducer:
    """A reducer that averages gradients over the ranks during backward, in the same order on all ranks.

    A hook runs for each gradient that is complete. The hook sends the gradient's bucket if the bucket is complete and
    all earlier buckets have been sent.

    In the first synchronised backward, the hooks only record the order in which gradients arrive on rank 0. The buckets
    follow this order, so communication overlaps with backward from the second step on.
    """

    def __init__(self, replica: Replica, ctx: RankView, form: Callable[[Sequence[Slot]], Sequence[Bucket]]) -> None:
        self.buckets: Sequence[Bucket] = ()  # in the order in which they are sent
        self._replica = replica
        self._ctx = ctx
        self._share = 1 / ctx.world_size  # before the sum, so that fp16 does not overflow; gloo has no ReduceOp.AVG
        self._form = form
        self._slots = tuple(map(Slot, replica.trained))
        self._arrivals: list[Slot] = []
        self._next = 0
        self._sending = True
        for slot in self._slots:
            slot.trained.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's
                partial(self._arrive, slot)
            )

    def synchronise(self) -> None:
        """Sends all buckets that have not been sent, and waits for all buckets."""
        self._replica.check_same_trained()
        if not self.buckets:
            self._form_buckets()
        for bucket in self.buckets[self._next :]:
            bucket.collect_rest(self._share)
            bucket.send()
        self._next = 0
        for bucket in self.buckets:
            bucket.wait()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backward, in this context, accumulate gradients locally; the next backward outside sends the sums."""
        before, self._sending = self._sending, False
        try:
            yield
        finally:
            self._sending = before

    def _arrive(self, slot: Slot, _parameter: nn.Parameter) -> None:
        """Collects a gradient that backward has completed; sends each complete bucket that is next in order."""
        if slot.arrived:
            raise WorkloadError(
                f"a second backward reached parameter {slot.trained.name} before synchronise(), while its gradient was "
                "being sent: add the losses up and run backward once, or run all but the last in no_sync()"
            )
        if not self._sending:
            slot.adopt()
            return
        slot.arrived = True
        bucket = slot.bucket
        if bucket is None:
            self._arrivals.append(slot)
            return
        slot.collect(self._share)
        bucket.missing -= 1
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self.buckets[self._next].send()
            self._next += 1

    def _form_buckets(self) -> None:
        """Forms buckets in the order in which gradients arrived on rank 0; unused gradients follow in reverse order."""
        rest = [slot for slot in reversed(self._slots) if not slot.arrived]
        places = {slot: place for place, slot in enumerate(self._slots)}
        order = [places[slot] for slot in (*self._arrivals, *rest)]
        if self._slots and self._ctx.backend != SIMULATED:
            agreed = torch.tensor(order, device=self._ctx.device)
            dist.broadcast(agreed, src=0)
            order = agreed.tolist()
        self.buckets = self._form([self._slots[place] for place in order])
        self._arrivals.clear()
        for slot in self._slots:
            slot.arrived = False  # noted, but not collected


def reducing(module: nn.Module, ctx: RankView, form: Callable[[Sequence[Slot]], Sequence[Bucket]]) -> Parallel:
    """Copies rank 0's model to all ranks, and averages gradients in the buckets that ``form`` returns."""
    reducer = Reducer(replicate(module, ctx), ctx, form)
    return Parallel(module, reducer.synchronise, no_sync=reducer.no_sync)


def by_kind(slots: Iterable[Slot], cap: float, first_cap: float = math.inf) -> list[list[Slot]]:
    """Groups gradients by dtype and device. Groups have about ``cap`` bytes, the first of each kind ``first_cap``."""
    return packed(((slot, slot.kind, slot.nbytes) for slot in slots), cap, first_cap)


def single(module: nn.Module, _ctx: RankView) -> Parallel:
    """Returns the module unchanged, for a single rank, which has nothing to synchronise."""
    return Parallel(module)


def naive(module: nn.Module, ctx: RankView) -> Parallel:
    """Averages the gradients in parameter order after backward, by a blocking all-reduce for each gradient.

    ``synchronise`` sends each gradient from its own memory and waits for it, so no other memory is needed.
    """
    replica = replicate(module, ctx)

    def synchronise() -> None:
        replica.check_same_trained()
        for trained in replica.trained:
            gradient = trained.gradient()
            gradient.mul_(1 / ctx.world_size)  # before the sum, as in ``Reducer``
            dist.all_reduce(in_memory_order(gradient))

    return Parallel(module, synchronise)


def flat(module: nn.Module, ctx: RankView) -> Parallel:
    """Averages all gradients after backward by one all-reduce for each dtype of parameters.

    ``synchronise`` sends a buffer for each dtype. The first call allocates it, and gradients are views of it.
    """
    replica = replicate(module, ctx)
    buckets = [Bucket(group, buffered=True) for group in by_kind(map(Slot, replica.trained), cap=math.inf)]

    def synchronise() -> None:
        replica.check_same_trained()
        for bucket in buckets:
            bucket.collect_rest(1 / ctx.world_size)
            bucket.send()
            bucket.wait()

    return Parallel(module, synchronise)


def overlap(module: nn.Module, ctx: RankView) -> Parallel:
    """Sends every gradient as soon as it is ready, while backward computes the next gradients.

    A gradient is sent from its own memory, so no other memory is needed. ``synchronise`` sends the gradients that this
    backward did not compute, and waits for all.
    """
    return reducing(module, ctx, lambda slots: [Bucket([slot], buffered=False) for slot in slots])


def overlap_coalesced(module: nn.Module, ctx: RankView, *, coalesce_mb: float = 1.0) -> Parallel:
    """Sends gradients of at least ``coalesce_mb`` one by one during backward, and several smaller ones together.

    An all-reduce of a small gradient, such as a bias's, costs little more than its latency. Small gradients that arrive
    in succession share a buffer, and become views of the buffer.
    """
    return reducing(module, ctx, partial(small_together, cap=coalesce_mb * MB))


def small_together(slots: Sequence[Slot], cap: float) -> list[Bucket]:
    """Puts each gradient of at least ``cap`` bytes into its own bucket, and smaller gradients into common buckets."""
    groups = [[slot] for slot in slots if slot.nbytes >= cap] + by_kind((s for s in slots if s.nbytes < cap), cap)
    place = {slot: place for place, slot in enumerate(slots)}
    groups.sort(key=lambda group: place[group[-1]])
    return [Bucket(group, buffered=len(group) > 1) for group in groups]


def bucketed(
    module: nn.Module, ctx: RankView, *, bucket_cap_mb: float = 25.0, first_bucket_mb: float = 1.0
) -> Parallel:
    """Averages gradients bucket by bucket during backward, and sends each bucket once it is full.

    Buckets fill in the order in which gradients arrive; a bucket has gradients of one type. Gradients are views of
    buckets, also while micro-batches accumulate. After backward, the result's ``synchronise`` sends buckets that are
    not full, and waits for all buckets. Sizes have the same meanings and the same defaults as in torch's DDP.
    """
    caps = bucket_cap_mb * MB, first_bucket_mb * MB
    return reducing(module, ctx, lambda slots: [Bucket(group, buffered=True) for group in by_kind(slots, *caps)])
