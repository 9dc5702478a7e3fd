"""Merges the counts of all ranks, compares the ranks' copies of the model, and extracts the counts of one rank."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from pytest_ddpperf.records.alike import Alike, RankCopy
from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.rhythm import Components, rhythm_of_all
from pytest_ddpperf.records.sites import RECORDED_LINES, SETTINGS, CallSite

_TOLD_BY_RANK = ("collective_calls", "collective_bytes", "optimizer_steps")  # details of these are kept by rank
_OTHERS = 3  # sets of other ranks' lines that are kept, in addition to the lines of the rank with the largest count


def merged(ranks: Sequence[Counts]) -> Counts:
    """Merges the counts of all ranks: ``totals`` has the largest value of each metric, ``by_rank`` all values.

    Details come from the first rank with the largest total. If a rank lacks a profiled or guessed metric, none has it.
    """
    metrics = [
        metric
        for metric in dict.fromkeys(metric for counts in ranks for metric in counts.totals)
        if not (count_row(metric).profiled or count_row(metric).guessed)
        or all(metric in counts.totals for counts in ranks)
    ]
    totals, details, unstable, by_rank, sites, varying = {}, {}, {}, {}, {}, {}
    for metric in metrics:
        values = tuple(counts.totals.get(metric, 0.0) for counts in ranks)
        largest = values.index(max(values))
        totals[metric] = values[largest]
        details[metric] = ranks[largest].details.get(metric, {})
        if metric in ranks[largest].sites:
            sites[metric] = ranks[largest].sites[metric]
        if len(set(values)) > 1:
            by_rank[metric] = values
        rhythms: dict[str, Components] = {}  # by part, the rank's components whose mean is least certain
        for counts in ranks:
            for name, components in counts.varying.get(metric, {}).items():
                varying[metric] = rhythms
                rhythms[name] = max(rhythms.get(name, ()), components, key=_unsure)
        if not any(rhythms.values()) and any(metric in counts.unstable.keys() - counts.varying for counts in ranks):
            varying.pop(metric, None)  # the usual step of one rank shows nothing of another rank
        reasons = {rank: counts.unstable[metric] for rank, counts in enumerate(ranks) if metric in counts.unstable}
        if reasons:
            rank, reason = next(iter(reasons.items()))
            everywhere = len(reasons) == len(ranks) and len(set(reasons.values())) == 1
            unstable[metric] = reason if everywhere else f"rank {rank}: {reason}"
    for name in (SETTINGS, RECORDED_LINES):
        sites |= next(({name: counts.sites[name]} for counts in ranks if name in counts.sites), {})
    apart = {metric: _other_sites(metric, sites.get(metric, ()), ranks) for metric in by_rank if metric != "operators"}
    parts = {metric: _unequal_parts(metric, ranks) for metric in _TOLD_BY_RANK}
    return Counts(
        totals=totals,
        details=details,
        unstable=unstable,
        by_rank=by_rank,
        sites_by_rank={metric: others for metric, others in apart.items() if others},
        details_by_rank={metric: unequal for metric, unequal in parts.items() if unequal},
        sites=sites,
        alike=alike([counts.copy for counts in ranks if counts.copy is not None]),
        steps=min(counts.steps for counts in ranks),
        varying=varying,
    )


def _unsure(components: Components) -> float:
    rhythm = rhythm_of_all(components)
    return rhythm.high - rhythm.low if components else -1.0


def _unequal_parts(metric: str, ranks: Sequence[Counts]) -> dict[str, tuple[float, ...]]:
    names = dict.fromkeys(name for counts in ranks for name in counts.details.get(metric, {}))
    parts = {name: tuple(counts.details.get(metric, {}).get(name, 0.0) for counts in ranks) for name in names}
    return {name: values for name, values in parts.items() if len(set(values)) > 1}


def _other_sites(metric: str, most: Sequence[CallSite], ranks: Sequence[Counts]) -> dict[str, tuple[CallSite, ...]]:
    """Returns the lines of code that cause the count ``metric``, for ranks whose lines differ from ``most``.

    The key ``"1 3"`` has the lines of ranks 1 and 3. ``most`` has the lines of the rank with the largest count.
    """
    found: dict[tuple[CallSite, ...], list[str]] = {}
    for rank, counts in enumerate(ranks):
        if (sites := counts.sites.get(metric, ())) and sites != most:
            found.setdefault(sites, []).append(str(rank))
    return {" ".join(numbers): sites for sites, numbers in list(found.items())[:_OTHERS]}


def as_rank(metric: str, rank: int, counts: Counts) -> Counts:
    """Returns ``counts`` with one rank's values of ``metric``: the total and, if known, parts and lines of code."""
    values = counts.by_rank.get(metric, ())
    if rank >= len(values):
        return counts
    others = counts.sites_by_rank.get(metric, {})
    same = counts.sites.get(metric, ()) if values[rank] == counts.totals[metric] else ()
    sites = next((sites for numbers, sites in others.items() if str(rank) in numbers.split()), same)
    parts = {part: of_rank[rank] for part, of_rank in counts.details_by_rank.get(metric, {}).items()}
    return replace(
        counts,
        totals={**counts.totals, metric: values[rank]},
        details={**counts.details, metric: {**counts.details.get(metric, {}), **parts}},
        sites={**counts.sites, metric: sites},
    )


def alike(ranks: Sequence[RankCopy]) -> Alike | None:
    """Compares the copies of the model that ranks train; returns None for fewer than two ranks."""
    if len(ranks) <= 1:
        return None
    apart, parameter = _apart(ranks)
    samples = _shared(ranks, [each.samples or None for each in ranks])
    drawn, models = all(each.samples for each in ranks), [each.model for each in ranks]
    data = [(each.samples if drawn else (), each.batch) for each in ranks]
    return Alike(
        samples=samples,
        batches=_shared(ranks, [each.batch for each in ranks]),
        loaded=all(each.loaded for each in ranks),
        apart=apart,
        parameter=parameter,
        wrapped=all(each.peers for each in ranks),
        model=models[0] if len(set(models)) == 1 else zlib.crc32(repr(models).encode()),
        sites=ranks[min(samples or apart or (0,))].sites,
        copies=_copies(ranks),
        data=tuple(map(data.index, data)) if drawn or all(batch is not None for _, batch in data) else (),
    )


def _shared(ranks: Sequence[RankCopy], values: Sequence[Hashable]) -> tuple[int, ...] | None:
    """Returns the ranks whose value another data-parallel rank also has; None if this is unknown."""
    teams = [(each.peers, each.place) for each in ranks]  # equal on data-parallel ranks
    alike = Counter(zip(teams, values, strict=True))
    if None in values or len(set(teams)) == len(ranks):
        return None
    return tuple(rank for rank, each in enumerate(zip(teams, values, strict=True)) if alike[each] > 1)


def _apart(ranks: Sequence[RankCopy]) -> tuple[tuple[int, ...] | None, str]:
    """Returns the ranks whose parameters differ but should be equal, and the name of the first such parameter.

    DistributedDataParallel should keep parameters equal on all its ranks. Without it, they should be equal on ranks
    with equal coordinates in the mesh dimensions that do not split data. None: nothing can be compared.
    """
    teams: dict[Hashable, list[int]] = {}
    for rank, each in enumerate(ranks):
        teams.setdefault(each.peers or each.place, []).append(rank)
    found: dict[int, str] = {}
    for first, *others in teams.values():
        for rank in others:
            one, other = ranks[first], ranks[rank]
            if one.model != other.model or not one.parameters:
                return None, ""
            if name := _differing(one, other):
                found |= {first: name, rank: name}
    return (tuple(sorted(found)), next(iter(found.values()), "")) if len(teams) < len(ranks) else (None, "")


def _differing(one: RankCopy, other: RankCopy) -> str:
    """Returns the first parameter whose copies on two ranks differ by more than rounding; empty if there is none."""
    for name, (most, *sums) in one.parameters.items():
        pairs = zip(sums, other.parameters[name][1:], strict=True)
        if not all(abs(a - b) <= most or str(a) == str(b) for a, b in pairs):  # also NaN and infinity
            return name
    return ""


def _copies(ranks: Sequence[RankCopy]) -> tuple[int, ...]:
    """Returns, for each rank, the first rank with equal parameters; empty if some are unknown or differ by rounding."""
    found: list[int] = []
    for rank, each in enumerate(ranks if all(each.parameters for each in ranks) else ()):
        alike = (ranks[first].model == each.model and not _differing(ranks[first], each) for first in found)
        found.append(next((first for first, same in zip(found, alike, strict=True) if same), rank))
        if ranks[found[-1]].parameters != each.parameters:
            return ()
    return tuple(found)
