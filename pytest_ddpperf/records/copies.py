"""What ranks have in common that train copies of one model: samples, batches, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddpperf.records.sites import CallSite


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCopy:
    """What one rank shows of the copy that it trains."""

    place: tuple[str, ...] = ()  # its coordinates in meshes, of each dimension that does not share out data
    samples: tuple[int, ...] = ()  # checksums of what its loaders drew; empty if none draws samples by number
    batch: int | None = None  # a checksum of what its models were given; None if that was no tensor
    loaded: bool = False  # whether a DataLoader gave it
    model: int = 0  # a checksum of the names and shapes of ``parameters``
    # Of each parameter that is no shard: by how much it may differ, and some sums of it.
    parameters: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    peers: tuple[int, ...] = ()  # the ranks between which DistributedDataParallel keeps them equal; empty without it
    # What draws its samples ("drawn"), and what defers gradients of the last micro-batch of a step ("deferred").
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """What ranks have in common; None if that is unknown."""

    samples: tuple[int, ...] | None = None  # the ranks that drew the same samples as another one
    batches: tuple[int, ...] | None = None  # the ranks that trained on the same batches as another one
    loaded: bool = False  # whether DataLoaders gave them
    apart: tuple[int, ...] | None = None  # the ranks whose parameters differ after steps, though they train one model
    parameter: str = ""  # the first that differs; empty if none does
    wrapped: bool = False  # whether DistributedDataParallel keeps parameters equal
    model: int = 0  # as of the first rank
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)  # the same; only shown


def alike(ranks: Sequence[RankCopy]) -> Alike | None:
    """Returns what ranks have in common; None of fewer than two."""
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
    """The ranks that share a value with another one of their place; None if one is unknown, or all places differ."""
    places = Counter((each.place, value) for each, value in zip(ranks, values, strict=True))
    if None in values or len({each.place for each in ranks}) == len(ranks):
        return None
    return tuple(rank for rank, each in enumerate(ranks) if places[each.place, values[rank]] > 1)


def _apart(ranks: Sequence[RankCopy]) -> tuple[tuple[int, ...] | None, str]:
    """The ranks whose parameters differ from those of the first one with a copy, that one too, and a parameter."""
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
