"""What the correctness pass is told, what it finds, and how that reads. Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.strategy import Strategy
    from pytest_ddpperf.training.workload import Workload

Quantity = Literal[
    "start parameters", "start buffers", "losses", "gradients", "clipped gradients", "parameters", "own parameters"
]

_HEADS: Mapping[Quantity, str] = {
    "start parameters": "ranks start from different parameters",
    "start buffers": "ranks start from different buffers",
    "losses": "losses differ from a single process",
    "gradients": "gradients differ from a single process",
    "clipped gradients": "gradients differ from a single process after clipping",
    "parameters": "parameters differ from a single process",
    "own parameters": "parameters differ between ranks",
}


@dataclass(frozen=True)
class VerifyJob:
    """What every rank of the correctness pass has to do.

    Attributes:
        workload: what is trained; its batches are cut down to a few samples.
        strategy: what is to be verified.
        settings: precision, accumulation, clipping and the rest of what decides how the workload is trained.
    """

    workload: Workload
    strategy: Strategy
    settings: Settings


@dataclass(frozen=True)
class Extent:
    """How much of the model differs: ``differing`` of ``names`` parameters (or buffers), on some of the ranks."""

    differing: int
    names: int
    ranks: int
    world_size: int


@dataclass(frozen=True)
class Discrepancy:
    """The worst of what differs from a single process.

    Attributes:
        name: of the parameter or buffer; ``the mean loss`` where no single one is meant.
        rank: where it differs; None where no single rank is to blame.
        step: of the optimizer, from 1; 0 before the first.
        error: relative; infinite where numbers cannot say it.
        tolerance: that the error exceeds.
        fault: what is wrong, where the error alone does not say it.
        cause: what has probably happened, where the data tell; else empty.
        extent: how far it goes; None for losses.
    """

    quantity: Quantity
    name: str
    rank: int | None
    step: int
    error: float
    tolerance: float
    fault: str = ""
    cause: str = ""
    extent: Extent | None = None


@dataclass(frozen=True)
class Agreement:
    """The largest error that was seen of a quantity, and where; and what it may be."""

    error: float
    tolerance: float
    name: str


@dataclass(frozen=True)
class Verification:
    """What the correctness pass found; the same on every rank.

    Attributes:
        discrepancy: what differs; None where all is as it should be.
        unverified: why there is nothing to compare with; empty where there is.
        agreements: how near everything came, by quantity.
        leniency: how the standard was looser than for other strategies at this precision; empty where it was not.
    """

    discrepancy: Discrepancy | None = None
    unverified: str = ""
    agreements: Mapping[Quantity, Agreement] = field(default_factory=dict)
    leniency: str = ""


def discrepancy_text(found: Discrepancy) -> str:
    """A discrepancy in one line: what differs, where, by how much, why, and how far it goes."""
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
    return f"broken: {_HEADS[found.quantity]}: {'; '.join(parts)}"
