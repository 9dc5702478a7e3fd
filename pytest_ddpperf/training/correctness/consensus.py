"""Lets the ranks of a verification compare and decide together, so that all of them continue or all stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from pytest_ddpperf.strategies.replicas import in_pieces
from pytest_ddpperf.strategies.strategy import RankView
from pytest_ddpperf.training.correctness.deviation import Deviation
from pytest_ddpperf.training.correctness.reference import UnverifiableError
from pytest_ddpperf.training.verification import Agreement, Discrepancy, Extent, Quantity

T = TypeVar("T")
V = TypeVar("V", Tensor, "Tensor | None")


class DiffersError(Exception):
    """The error that all ranks raise together if training differs from a single process by more than the tolerance."""

    def __init__(self, discrepancy: Discrepancy) -> None:
        super().__init__()
        self.discrepancy = discrepancy


class RankConsensus:
    """Compares values over all ranks, and makes one decision for all ranks; every method is a collective."""

    def __init__(self, ctx: RankView) -> None:
        self._ctx = ctx
        self.agreements: dict[Quantity, Agreement] = {}  # the largest error of each so far

    def gathered(self, value: T) -> list[T]:
        """Returns the values of all ranks, in the order of ranks."""
        if self._ctx.world_size == 1:
            return [value]
        values: list[Any] = [None] * self._ctx.world_size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Calls ``make`` on rank 0; on all ranks, returns the result or raises the UnverifiableError of ``make``."""
        box: list[Any] = [None]
        if self._ctx.rank == 0:
            try:
                box = [make()]
            except UnverifiableError as error:
                box = [error]
        if self._ctx.world_size > 1:
            dist.broadcast_object_list(box, src=0)
        if isinstance(box[0], UnverifiableError):
            raise box[0]
        made: T = box[0]
        return made

    def tensors_from_first(self, make: Callable[[], Mapping[str, V]]) -> dict[str, V]:
        """Returns the tensors that ``make`` returns on rank 0, by name; they are sent in pieces to save GPU memory."""
        pieces: list[list[tuple[str, V]]] = []

        def cut() -> int:
            pieces.extend(in_pieces(make().items(), lambda named: 0 if named[1] is None else named[1].nbytes))
            return len(pieces)

        # Only rank 0 has pieces, and only rank 0 is asked for them.
        sent = [self.from_first(partial(pieces.__getitem__, number)) for number in range(self.from_first(cut))]
        return {name: tensor for piece in sent for name, tensor in piece}

    def all_agree(self, here: bool) -> bool:  # noqa: FBT001  it is the one thing to be said
        """Returns whether ``here`` is True on all ranks."""
        return all(self.gathered(here))

    def compare(
        self,
        quantity: Quantity,
        step: int,
        deviations: Sequence[Deviation],
        tolerance: float,
        cause: Callable[[int, str, Tensor | None], str],
    ) -> None:
        """Raises DiffersError on all ranks if a deviation on any rank is larger than the tolerance.

        ``deviations`` are this rank's. ``step`` counts from 1; 0 means the initial state. ``cause`` returns the likely
        cause in words, from a rank, a tensor's name and the tensor.
        """
        own_worst = max(deviations, key=lambda deviation: deviation.error, default=Deviation("", 0.0))
        if own_worst.error <= tolerance:
            own_worst = Deviation(own_worst.name, own_worst.error)  # without the tensor, which need not be sent
        compared = {deviation.name for deviation in deviations}
        beyond = {deviation.name for deviation in deviations if deviation.error > tolerance}
        found = self.gathered((own_worst, compared, beyond))
        names = set[str]().union(*(compared for _, compared, _ in found))
        if not names:
            return  # the model has nothing of this kind
        rank, worst = max(enumerate(worst for worst, _, _ in found), key=lambda ranked: ranked[1].error)
        self.note(quantity, worst.name, worst.error, tolerance)
        if worst.error <= tolerance:
            return
        extent = Extent(
            differing=len(set[str]().union(*(beyond for _, _, beyond in found))),
            names=len(names),
            ranks=sum(bool(beyond) for _, _, beyond in found),
            world_size=self._ctx.world_size,
        )
        raise DiffersError(
            Discrepancy(
                quantity=quantity,
                name=worst.name,
                rank=rank,
                step=step,
                error=worst.error,
                tolerance=tolerance,
                fault=worst.fault,
                cause=self.from_first(lambda: cause(rank, worst.name, worst.found)),
                extent=extent,
            )
        )

    def compare_losses(self, step: int, loss: float, reference: float, tolerance: float) -> None:
        """Raises DiffersError on all ranks if the mean loss differs from the reference by more than the tolerance."""
        losses = self.gathered(loss)
        mean = self.mean_loss(step, losses, tolerance)
        size = max(abs(reference), math.fsum(map(abs, losses)) / len(losses))
        error = abs(mean - reference) / size if size else 0.0
        fault = f"is {mean:.6g} instead of {reference:.6g}, relative error {error:.3g}, tolerance {tolerance:g}"
        self.judge_losses(step, error, tolerance, fault)

    def mean_loss(self, step: int, losses: Sequence[float], tolerance: float) -> float:
        """Returns the mean of the ranks' losses. If it is inf or NaN, raises DiffersError, naming ``tolerance``."""
        for rank, loss in enumerate(losses):
            if not math.isfinite(loss):
                fault = f"is {loss}, but finite in a single process"
                where: dict[str, Any] = {"rank": rank, "step": step, "tolerance": tolerance}
                raise DiffersError(
                    Discrepancy(quantity="losses", name="the loss", error=math.inf, fault=fault, **where)
                )
        return math.fsum(losses) / len(losses)

    def judge_losses(self, step: int, error: float, tolerance: float, fault: str) -> None:
        """Records the mean loss's error; raises DiffersError with the text ``fault`` if the error is too large."""
        name = "the mean loss"
        self.note("losses", name, error, tolerance)
        if error > tolerance:
            found = Discrepancy(quantity="losses", name=name, step=step, error=error, tolerance=tolerance, fault=fault)
            raise DiffersError(found)

    def note(self, quantity: Quantity, name: str, error: float, tolerance: float) -> None:
        """Records the error of a quantity, such as a loss, if the error is the largest of this quantity so far."""
        known = self.agreements.get(quantity)
        if known is None or error > known.error:
            self.agreements[quantity] = Agreement(error=error, tolerance=tolerance, name=name)
