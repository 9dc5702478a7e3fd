"""What ranks have in common that train copies of one model: samples, batches, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCopy:
    """What one rank shows of the copy that it trains.

    Attributes:
        place: its coordinates in meshes, of each dimension that does not share out data.
        samples: checksums of what its loaders drew; empty if none draws samples by number.
        batch: a checksum of what its models were given; None if that was no tensor.
        model: a checksum of the names and shapes of ``parameters``.
        parameters: for each that is no shard, by how much it may differ, and some sums of it.
        peers: the ranks between which DistributedDataParallel keeps these parameters equal; empty without it.
        loaded: whether a DataLoader gave what it trained on.
    """

    place: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    batch: int | None = None
    model: int = 0
    parameters: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    peers: tuple[int, ...] = ()
    loaded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """What ranks have in common; of each list None if it is unknown.

    Attributes:
        samples: the ranks that drew the same samples as another one.
        batches: the ranks that trained on the same batches as another one.
        loaded: whether a DataLoader gave each rank its batches.
        apart: ranks whose parameters differ after steps though they have copies of one model.
        parameter: the first that differs; empty if none does.
        wrapped: whether DistributedDataParallel keeps these parameters equal.
        model: a checksum of the names and shapes of the parameters of the first rank.
    """

    samples: tuple[int, ...] | None = None
    batches: tuple[int, ...] | None = None
    loaded: bool = False
    apart: tuple[int, ...] | None = None
    parameter: str = ""
    wrapped: bool = False
    model: int = 0


def alike(ranks: Sequence[RankCopy]) -> Alike | None:
    """Returns what ranks have in common; None of a rank that is alone."""
    if len(ranks) == 1:
        return None
    places = [each.place for each in ranks]
    apart, parameter = _apart(ranks)
    return Alike(
        samples=_shared(places, [each.samples or None for each in ranks]),
        batches=_shared(places, [each.batch for each in ranks]),
        loaded=all(each.loaded for each in ranks),
        apart=apart,
        parameter=parameter,
        wrapped=all(each.peers for each in ranks),
        model=ranks[0].model,
    )


def _shared(places: Sequence[Hashable], values: Sequence[Hashable]) -> tuple[int, ...] | None:
    """The ranks that have a value in common with another one of their place; None if a value or a second rank lacks."""
    if None in values or max(Counter(places).values()) == 1:
        return None
    pairs = list(zip(places, values, strict=True))
    return tuple(rank for rank, pair in enumerate(pairs) if pairs.count(pair) > 1)


def _apart(ranks: Sequence[RankCopy]) -> tuple[tuple[int, ...] | None, str]:
    """The ranks whose parameters differ from those of the first one with a copy, that one too, and a parameter."""
    teams: dict[Hashable, list[int]] = {}
    for rank, each in enumerate(ranks):
        teams.setdefault(each.peers or each.place, []).append(rank)
    found: dict[int, str] = {}
    for first, *others in teams.values():
        for rank in others:
            one, other = ranks[first], ranks[rank]
            if one.model != other.model:
                return None, ""
            differing = (name for name in one.parameters if _differ(one.parameters[name], other.parameters[name]))
            name = next(differing, None)
            if name is not None:
                found |= {first: name, rank: name}
    known = len(teams) < len(ranks) and all(each.parameters for each in ranks)
    return (tuple(sorted(found)), next(iter(found.values()), "")) if known else (None, "")


def _differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether sums differ by more than a parameter may; the first number says how much that is."""
    most = max(one[0], other[0])
    return any(abs(a - b) > most for a, b in zip(one[1:], other[1:], strict=True))
