"""From what steps did to the counts of a step: means with their rhythms, and what steps that are alike have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.rhythm import components_of, rhythm_of, rhythm_of_all, rhythm_text
from pytest_ddpperf.units import format_number

Details = dict[str, dict[str, float]]
Whole: TypeAlias = "Mapping[str, Mapping[str, float]]"
Seen: TypeAlias = "dict[str, Mapping[Any, float]]"
"""What a step did, by metric, and by part and place: None of counts that have none."""

K = TypeVar("K")

_LEVELS = frozenset({"peak_tensor_bytes", "model_state_bytes"})  # of several steps the largest counts, not the mean
_OF_STEP = _LEVELS | {"retained_bytes"}  # counts that the steps counted whole tell
_UNUSUAL = "most steps do something else than those in which it was counted"


def per_step(steps: Sequence[Details]) -> Details:
    """Returns what a step does, from the steps of a period: of levels the largest, of all else the mean."""
    return {
        metric: max((step[metric] for step in steps), key=total_of)
        if metric in _LEVELS
        else _means([step[metric] for step in steps])
        for metric in _common(steps)
    }


def _common(found: Sequence[Whole]) -> list[str]:
    """Returns the metrics that all of ``found`` have; the profiler may have missed the device's metrics in some."""
    return [metric for metric in found[0] if all(metric in details for details in found)] if found else []


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: math.fsum(values) / len(found) for name, values in _values(found).items()}


def _values(found: Sequence[Mapping[K, float]]) -> dict[K, tuple[float, ...]]:
    """The values of each step by name."""
    names = dict.fromkeys(name for parts in found for name in parts)
    return {name: tuple(parts.get(name, 0.0) for parts in found) for name in names}


def usual_steps(counted: Sequence[Details], shown: Sequence[Seen], seen: Sequence[Seen]) -> list[list[Details]]:
    """Each of the steps counted whole that does what most of those seen do, or what one less does.

    ``shown``: what the steps counted whole, and those that follow, did.
    """
    most = max(map(seen.count, seen))
    return [[step] for step, does in zip(counted, shown, strict=False) if seen.count(does) >= most - 1]


def counts_of(alike: Sequence[Whole], of_device: Sequence[Whole], seen: Sequence[Seen], *, unusual: bool) -> Counts:
    """The counts of a step: of steps that are alike, metric by metric, the most, and the means of all that were seen.

    ``unusual``: whether the steps counted whole do what few steps do, so that nothing is known of what most do.
    """
    details: dict[str, Mapping[str, float]] = {}
    totals, unstable, varying = {}, {}, {}
    for steps in (alike, of_device):
        for metric in _common(steps):
            last = steps[-1][metric]
            details[metric] = max((each[metric] for each in reversed(steps)), key=total_of)
            totals[metric] = total_of(details[metric])
            differences = [_difference(each[metric], last) for each in steps]
            told = next(filter(None, differences), _UNUSUAL if unusual and metric in _OF_STEP else "")
            if told and count_row(metric).gated:
                unstable[metric] = told
    for metric in seen[0]:
        of_part: dict[str, list[tuple[float, ...]]] = {}
        for (part, _), values in _values([each[metric] for each in seen]).items():
            of_part.setdefault(part, []).append(values)
        every = [values for parts in of_part.values() for values in parts]
        details[metric] = {**details.get(metric, {}), **{part: _mean(parts) for part, parts in of_part.items()}}
        totals[metric] = totals.get(metric, 0.0) + _mean(every)
        made_of = of_part if count_row(metric).made_up else {}
        different = {part: components_of(parts) for part, parts in {"": every, **made_of}.items()}
        if different[""] and count_row(metric).gated:
            varying[metric] = {part: found for part, found in different.items() if found}
            if rhythm_of_all(different[""]).irregular:
                unstable[metric] = _widest(of_part)
    totals["ddp_buckets"] = float(len(details["ddp_buckets"]))
    return Counts(totals=totals, details=details, unstable=unstable, steps=len(seen), varying=varying)


def _mean(parts: Sequence[tuple[float, ...]]) -> float:
    """The mean of what is the sum of some parts, whose order changes nothing."""
    return math.fsum(rhythm_of(values).mean for values in parts)


def _widest(of_part: Mapping[str, Sequence[tuple[float, ...]]]) -> str:
    """Returns what steps differ in most."""
    sums = {part: tuple(map(math.fsum, zip(*parts, strict=True))) for part, parts in of_part.items()}
    part = max(sums, key=lambda part: max(sums[part]) - min(sums[part]))
    return f"{part} {rhythm_text(sums[part])}"


def _difference(first: Mapping[str, float], following: Mapping[str, float]) -> str:
    """Returns what two steps differ in most; empty if they are alike."""
    sizes = {name: abs(following.get(name, 0.0) - first.get(name, 0.0)) for name in {**following, **first}}
    name = max(sizes, key=sizes.__getitem__, default="")
    if not sizes.get(name):
        return ""
    before, after = (format_number(parts.get(name, 0.0)) for parts in (first, following))
    return f"{name} {before} in one step, {after} in the next"


def total_of(parts: Mapping[str, float]) -> float:
    """Returns the sum of the parts of a count."""
    return float(sum(parts.values()))
