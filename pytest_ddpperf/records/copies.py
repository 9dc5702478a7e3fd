"""The state that ranks share if they train copies of one model: samples, batches, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddpperf.records.sites import CallSite


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCopy:
    """One rank's checksums of the model copy that it trains."""

    place: tuple[str, ...] = ()  # its mesh coordinates in dimensions that do not split data
    samples: tuple[int, ...] = ()  # checksums of the samples its loaders drew; empty if none draws by number
    batch: int | None = None  # a checksum of its models' input; None if that was no tensor
    loaded: bool = False  # whether a DataLoader gave the batch
    model: int = 0  # a checksum of the names and shapes of ``parameters``
    # For each parameter that is no shard: the difference that rounding excuses, and some sums over the parameter.
    parameters: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    peers: tuple[int, ...] = ()  # the ranks whose parameters DistributedDataParallel keeps equal; empty without it
    # Code that draws samples ("drawn"), and code that defers a step's last micro-batch's gradients ("deferred").
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """Ranks with equal or different data and parameters; None if that is unknown."""

    samples: tuple[int, ...] | None = None  # the ranks that drew the same samples as another one
    batches: tuple[int, ...] | None = None  # the ranks that trained on the same batches as another one
    loaded: bool = False  # whether DataLoaders gave the batches
    apart: tuple[int, ...] | None = None  # the ranks whose parameters differ after steps, though they train one model
    parameter: str = ""  # name of the first differing parameter; empty if none differs
    wrapped: bool = False  # whether DistributedDataParallel keeps parameters equal
    model: int = 0  # checksum of the first rank
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)  # of ``RankCopy``; only shown


def alike(ranks: Sequence[RankCopy]) -> Alike | None:
    """Compares the copies that ranks train; None for fewer than two ranks."""
    if len(ranks) <= 1:
        return None
    apart, parameter = _apart(ranks)
    samples = _shared(ranks, [each.samples or None for each in ranks])
    return Alike(
        samples=samples,
        batches=_shared(ranks, [each.batch for each in ranks]),
        loaded=all(each.loaded for each in ranks),
        apart=apart,
        parameter=parameter,
        wrapped=all(each.peers for each in ranks),
        model=ranks[0].model,
        sites=ranks[min(samples or apart or (0,))].sites,
    )


def _shared(ranks: Sequence[RankCopy], values: Sequence[Hashable]) -> tuple[int, ...] | None:
    """Returns the ranks that share a value with another rank of their place; None if unknown or without copies."""
    places = Counter((each.place, value) for each, value in zip(ranks, values, strict=True))
    if None in values or len({each.place for each in ranks}) == len(ranks):
        return None
    return tuple(rank for rank, each in enumerate(ranks) if places[each.place, values[rank]] > 1)


def _apart(ranks: Sequence[RankCopy]) -> tuple[tuple[int, ...] | None, str]:
    """Returns ranks whose parameters differ, and the first such parameter; each is compared with its first peer."""
    teams: dict[Hashable, list[int]] = {}
    for rank, each in enumerate(ranks):
        teams.setdefault(each.peers or each.place, []).append(rank)
    found: dict[int, str] = {}
    for first, *others in teams.values():
        for rank in others:
            one, other = ranks[first], ranks[rank]
            if one.model != other.model or not one.parameters:
                return None, ""
            for name, (most, *sums) in one.parameters.items():
                if any(abs(a - b) > most for a, b in zip(sums, other.parameters[name][1:], strict=True)):
                    found |= {first: name, rank: name}
                    break
    return (tuple(sorted(found)), next(iter(found.values()), "")) if len(teams) < len(ranks) else (None, "")
