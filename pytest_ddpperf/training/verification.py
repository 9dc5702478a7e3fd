"""The findings and the texts of a verification. Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Quantity = Literal[
    "start parameters",
    "start buffers",
    "losses",
    "gradients",
    "clipped gradients",
    "parameters",
    "own parameters",
    "reference start",
    "optimizer steps",
]

_HEADS: Mapping[Quantity, str] = {
    "start parameters": "ranks start from different parameters",
    "start buffers": "ranks start from different buffers",
    "losses": "losses differ from a single process",
    "gradients": "gradients differ from a single process",
    "clipped gradients": "gradients differ from a single process after clipping",
    "parameters": "parameters differ from a single process",
    "own parameters": "parameters differ between ranks",
    "reference start": "the reference begins with another model or other weights",
    "optimizer steps": "optimizer steps differ from the reference",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """The numbers of tensors and ranks that a difference affects, and of all tensors and ranks."""

    differing: int
    names: int
    ranks: int
    world_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Discrepancy:
    """The largest difference between the ranks' training and a single process: tensor, error and likely cause."""

    quantity: Quantity
    name: str  # of the parameter or buffer; "the mean loss" if no single one is meant
    rank: int | None = None  # where it differs; None if no single rank is to blame
    step: int = 0  # of the optimizer, from 1; 0 before the first
    error: float  # relative; infinite if no number says it
    tolerance: float  # that the error exceeds
    fault: str = ""  # what is wrong, if the error alone does not say it
    cause: str = ""  # the likely one; empty if the data do not show one
    extent: Extent | None = None  # None for losses


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """The largest error of a quantity, the tolerance for this error, and the name of the tensor with this error."""

    error: float
    tolerance: float
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Leniency:
    """The reason why a strategy is compared with a single process less strictly than other strategies."""

    precision: str | None  # in which it sends or computes gradients; None if only convergence is checked
    exact_steps: int = 0  # first steps with the usual requirements, before only convergence is checked


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The result of comparing a training with a single process; the same on every rank."""

    discrepancy: Discrepancy | None = None
    unverified: str = ""  # why there is nothing to compare with; empty if there is
    agreements: Mapping[Quantity, Agreement] = field(default_factory=dict)
    leniency: Leniency | None = None  # None if the strategy has the same requirements as others


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedTensor:
    """A short description that represents a tensor in comparisons: its name, its shape and a sketch of its values."""

    name: str
    shape: tuple[int, ...]
    sketch: tuple[float, ...]  # its elements, with random signs, added up in buckets


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedStep:
    """The gradients and parameters of one optimizer step, in the optimizer's order."""

    gradients: tuple[TracedTensor, ...]  # zeros for a parameter without one
    before: tuple[TracedTensor, ...]  # parameters
    after: tuple[TracedTensor, ...]
    call: int = 0  # of the user's step, from 0, in which the optimizer stepped


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsTrace:
    """The first optimizer steps of one rank, or of the single process that the ranks are compared with."""

    steps: tuple[TracedStep, ...]
    losses: tuple[float | None, ...]  # that each call of the user's step returned
    precision: str  # the narrowest that was seen


def discrepancy_text(found: Discrepancy) -> str:
    """Returns a discrepancy as one line of text: tensor, step and rank, error, likely cause, and extent."""
    place = found.name
    if found.rank is not None:
        place += f" on rank {found.rank}"
    if found.step:
        place += f" at step {found.step}"
    numbers = f"relative error {found.error:.3g}, tolerance {found.tolerance:g}"
    parts = [f"{place} {found.fault}" if found.fault else f"{place}, {numbers}"]
    if found.cause:
        parts.append(f"likely cause: {found.cause}")
    if found.extent is not None:
        extent, kind = found.extent, "buffers" if found.quantity == "start buffers" else "parameters"
        parts.append(
            f"{extent.differing} of {extent.names} {kind} differ, on {extent.ranks} of {extent.world_size} ranks"
        )
    return f"{_HEADS[found.quantity]}: {'; '.join(parts)}"
