"""What one step does, counted: no time in it, so it is the same in every run and on every machine. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddpperf.units import format_count, format_difference, format_number, format_values


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRow:
    """One count: what is special to it.

    Attributes:
        unit: ``1``, ``B`` or ``FLOP``.
        gated: whether it is judged; what adds up to another count is only shown.
        made_up: whether it matters what it is made of. Others have names of modules in it, which may be renamed.
        by_kernel: whether it depends on the kernels that torch picks, on GPUs by their model and the version of CUDA.
        follows: the count that it moves with, but not with it alone: on the size of a group it depends what its ranks
            send; empty for none.
        symptom: whether it only shows what other counts name.
    """

    unit: str = "1"
    gated: bool = True
    made_up: bool = False
    by_kernel: bool = False
    follows: str = ""
    symptom: bool = False


COUNTS: Mapping[str, CountRow] = {
    "collective_calls": CountRow(made_up=True),
    "collective_bytes": CountRow(unit="B", made_up=True),
    "collective_send_bytes": CountRow(unit="B", follows="collective_bytes"),
    "flops": CountRow(unit="FLOP"),
    "flops_forward": CountRow(unit="FLOP", gated=False),
    "flops_backward": CountRow(unit="FLOP", gated=False),
    "operators": CountRow(by_kernel=True, symptom=True),
    "synchronisations": CountRow(),
    "optimizer_steps": CountRow(made_up=True),
    "host_to_device_bytes": CountRow(unit="B"),
    "ddp_buckets": CountRow(made_up=True),
    "graph_breaks": CountRow(),
    "recompiles": CountRow(),
    "kernel_launches": CountRow(by_kernel=True, symptom=True),
    "device_copies": CountRow(by_kernel=True),
    "device_synchronisations": CountRow(),
    "peak_tensor_bytes": CountRow(unit="B", symptom=True),
    "model_state_bytes": CountRow(unit="B"),
    "retained_bytes": CountRow(unit="B"),
}
"""The counts by name, in the order in which they are told; a new one is a row and an instrument that counts it."""


def count_row(metric: str) -> CountRow:
    """The row of a count; a plain one for a count of another version."""
    return COUNTS.get(metric, CountRow())


_MAIN = ("collective_calls", "collective_bytes", "flops", "operators", "peak_tensor_bytes")
SHOWN = 5
"""Changes that are named; the others are only told to be there."""
_FLOPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_NOUNS = {"collective_calls": " calls", "synchronisations": " waits for the device"}
_TOLD_BY_RANK = ("collective_calls", "collective_bytes", "optimizer_steps")  # where ranks differ in what they do
_SIBLINGS = {
    "collective_calls": ("collective_bytes", "bytes"),
    "collective_bytes": ("collective_calls", "calls"),
    "collective_send_bytes": ("collective_bytes", "bytes"),
}


COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"),
    *("send", "recv", "barrier"),
)
"""The names by which calls of collectives are counted, point-to-point ones too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What one step does on one rank, or on all of them.

    Attributes:
        totals: by metric (``COUNTS`` has all their names), for one step: one call of the function that is measured.
            Where only several steps together do the same again, the mean of these, and of memory the most.
        details: by metric, what the total is made of: operators, modules, buckets, categories of memory. They add up
            to the total, but for ``ddp_buckets``, which are as many as there are details, and these are their bytes.
        unstable: metrics that cannot be compared exactly because two steps differed in them, and in what; ``totals``
            and ``details`` have the step with the most, but for collectives and optimizer steps: of these each detail
            is the most of any step.
        by_rank: metrics that are not equal on all ranks, and their totals by rank; ``totals`` has the largest.
        details_by_rank: of collectives and optimizer steps the details that are not, likewise, each by rank.
    """

    totals: Mapping[str, float]
    details: Mapping[str, Mapping[str, float]]
    unstable: Mapping[str, str]
    by_rank: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    details_by_rank: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The totals that tell most: all of them, with their details, fill pages."""
        told = [
            f"{metric} {quantity_texts(metric, [self.totals[metric]])[0]}" for metric in _MAIN if metric in self.totals
        ]
        left = len(self.totals) - len(told)
        return f"<Counts {', '.join([*told, *([f'{left} more'] if left else [])]) or 'of nothing'}>"


def merged(ranks: Sequence[Counts]) -> Counts:
    """The counts of all ranks in one: equal ones as they are, of others the largest, with ``by_rank`` to tell.

    The details of a metric are those of the first rank with the largest total. Where ranks share out work unequally
    (ZeRO's optimizer states), that is no fault, and each rank's counts are still the same in every run.

    Args:
        ranks: by rank; one at least.
    """
    metrics = list(dict.fromkeys(metric for counts in ranks for metric in counts.totals))
    totals, details, unstable, by_rank = {}, {}, {}, {}
    for metric in metrics:
        values = tuple(counts.totals.get(metric, 0.0) for counts in ranks)
        largest = values.index(max(values))
        totals[metric] = values[largest]
        details[metric] = ranks[largest].details.get(metric, {})
        if len(set(values)) > 1:
            by_rank[metric] = values
        reasons = {rank: counts.unstable[metric] for rank, counts in enumerate(ranks) if metric in counts.unstable}
        if reasons:
            rank, reason = next(iter(reasons.items()))
            everywhere = len(reasons) == len(ranks) and len(set(reasons.values())) == 1
            unstable[metric] = reason if everywhere else f"rank {rank}: {reason}"
    parts = {metric: _unequal_parts(metric, ranks) for metric in _TOLD_BY_RANK}
    return Counts(
        totals=totals,
        details=details,
        unstable=unstable,
        by_rank=by_rank,
        details_by_rank={metric: unequal for metric, unequal in parts.items() if unequal},
    )


def _unequal_parts(metric: str, ranks: Sequence[Counts]) -> dict[str, tuple[float, ...]]:
    names = dict.fromkeys(name for counts in ranks for name in counts.details.get(metric, {}))
    parts = {name: tuple(counts.details.get(metric, {}).get(name, 0.0) for counts in ranks) for name in names}
    return {name: values for name, values in parts.items() if len(set(values)) > 1}


def on_ranks(metric: str, then: Counts, now: Counts) -> list[tuple[float, float]]:
    """A metric's totals then and now, by rank; empty where all ranks do the same, now and then."""
    return _by_rank(*((counts.by_rank.get(metric, ()), counts.totals[metric]) for counts in (then, now)))


def parts_on_ranks(metric: str, then: Counts, now: Counts) -> dict[str, list[tuple[float, float]]]:
    """Those of a metric's details that are not the same on all ranks, now or then: each then and now, by rank."""
    sides = (then, now)
    if any(metric in counts.by_rank and metric not in counts.details_by_rank for counts in sides):
        return {}  # of a baseline from before they were told
    names = dict.fromkeys(name for counts in sides for name in counts.details_by_rank.get(metric, {}))

    def side(counts: Counts, name: str) -> tuple[Sequence[float], float]:
        return counts.details_by_rank.get(metric, {}).get(name, ()), counts.details.get(metric, {}).get(name, 0.0)

    return {name: _by_rank(side(then, name), side(now, name)) for name in names}


def _by_rank(then: tuple[Sequence[float], float], now: tuple[Sequence[float], float]) -> list[tuple[float, float]]:
    """Values then and now, by rank; on either side they may be one for all ranks."""
    number = max(len(ranks) for ranks, _ in (then, now))
    before, after = (ranks or (value,) * number for ranks, value in (then, now))
    return list(zip(before, after, strict=False))  # of other world sizes, those that both have


def difference_text(metric: str, then: Counts, now: Counts) -> list[str]:
    """What a metric's change is made of, the largest change first, a line each; empty where nothing changed.

    ``all_reduce 5 -> 9 calls per step (+4), bytes unchanged``.
    """
    if metric not in then.totals or metric not in now.totals:
        return [] if metric not in {*then.totals, *now.totals} else [_only_one(metric, then, now)]
    before, after = then.details.get(metric, {}), now.details.get(metric, {})
    if metric == "ddp_buckets":
        return _bucket_text(before, after) + _rank_text(metric, then, now)
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    changed = sorted((name for name in changes if changes[name]), key=lambda name: (-abs(changes[name]), name))
    lines = [
        f"{name} {_change(metric, before.get(name, 0.0), after.get(name, 0.0))}{_sibling(metric, name, then, now)}"
        for name in changed[:SHOWN]
    ]
    if len(changed) > SHOWN:
        lines.append(f"and {format_count(len(changed) - SHOWN, 'smaller change')}")
    if not lines and then.totals[metric] != now.totals[metric]:
        lines.append(f"{metric} {_change(metric, then.totals[metric], now.totals[metric])}")
    return lines + _rank_text(metric, then, now) or _rank_parts_text(metric, then, now)


def quantity_texts(metric: str, values: Iterable[float]) -> tuple[str, ...]:
    """Values of a metric in one unit, to the last digit where less would hide that they differ."""
    return tuple(_texts(count_row(metric).unit, values))


def _only_one(metric: str, then: Counts, now: Counts) -> str:
    value = now.totals.get(metric, then.totals.get(metric, 0.0))
    (text,) = _texts(count_row(metric).unit, [value])
    return (
        f"{metric} is {text} now, and was not counted then"
        if metric in now.totals
        else (f"{metric} was {text} then, and is not counted now")
    )


def _change(metric: str, before: float, after: float) -> str:
    """``5 -> 9 calls per step (+4)``."""
    unit = count_row(metric).unit
    first, second = _texts(unit, [before, after])
    percent = round(100 * (after - before) / before) if before and unit != "1" else 0
    share = f", {percent:+d} %" if percent else ""
    return f"{first} -> {second}{_NOUNS.get(metric, '')} per step ({_difference(unit, after - before)}{share})"


def _sibling(metric: str, name: str, then: Counts, now: Counts) -> str:
    """Of calls that their bytes are the same, and the other way round; where they are not, they have their own line."""
    if metric not in _SIBLINGS:
        return ""
    other, noun = _SIBLINGS[metric]
    before, after = then.details.get(other, {}).get(name), now.details.get(other, {}).get(name)
    return f", {noun} unchanged" if before is not None and before == after else ""


def _bucket_text(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    if before == after:
        return []
    if len(before) != len(after):
        return [f"{len(before)} -> {format_count(len(after), 'bucket')}, {_layout(before)} -> {_layout(after)}"]
    count = f"{format_count(len(after), 'bucket')} as before"
    layouts = _layout(before), _layout(after)
    if layouts[0] != layouts[1] and len(after) <= SHOWN:
        return [f"{count}, {layouts[0]} -> {layouts[1]}"]
    changed = [name for name in after if before.get(name) != after[name]]
    told = [f"{name} {' -> '.join(_texts('B', [before.get(name, 0.0), after[name]]))}" for name in changed[:SHOWN]]
    more = [f"{len(changed) - SHOWN} more"] if len(changed) > SHOWN else []
    return [f"{count}, {', '.join([*told, *more])}"]


def _layout(buckets: Mapping[str, float]) -> str:
    """``1.0 MiB + 25.0 MiB``; what is too long is summed up."""
    texts = _texts("B", buckets.values())
    if len(texts) <= SHOWN:
        return " + ".join(texts) or "none"
    smallest, largest = _texts("B", [min(buckets.values()), max(buckets.values())])
    return f"{smallest} to {largest} each"


def _rank_text(metric: str, then: Counts, now: Counts) -> list[str]:
    """The ranks that changed, where not all do the same, now or then."""
    changed = [
        f"rank {rank} {_change(metric, before, after)}"
        for rank, (before, after) in enumerate(on_ranks(metric, then, now))
        if before != after
    ]
    return _first(changed)


def _rank_parts_text(metric: str, then: Counts, now: Counts) -> list[str]:
    """What changed on some rank that does as much as before."""
    changed = [
        f"rank {rank} {name} {_change(metric, before, after)}"
        for name, pairs in parts_on_ranks(metric, then, now).items()
        for rank, (before, after) in enumerate(pairs)
        if before != after
    ]
    return _first(changed)


def _first(changed: Sequence[str]) -> list[str]:
    more = [f"and {format_count(len(changed) - SHOWN, 'more rank')}"] if len(changed) > SHOWN else []
    return [*changed[:SHOWN], *more]


def _difference(unit: str, difference: float) -> str:
    if unit == "B" and abs(difference) >= 1024:  # noqa: PLR2004 - below, bytes are told to the last digit
        return format_difference(difference, unit)
    size = _texts(unit, [abs(difference)])[0] if unit == "FLOP" else f"{format_number(abs(difference))} {unit}"
    return f"{'-' if difference < 0 else '+'}{size.removesuffix(' 1')}"


def _texts(unit: str, values: Iterable[float]) -> list[str]:
    """Values in one scale; to the last byte, or the last digit, where that would hide that they differ."""
    values = list(values)
    plain = [f"{format_number(value)} {unit}".removesuffix(" 1") for value in values]
    texts = plain
    if unit != "1":
        texts = list(format_values(values, unit)) if unit == "B" else _flop_texts(values)
    for choice in (texts, plain):
        if len(set(choice)) == len(set(values)):
            return choice
    return [f"{value!r} {unit}".removesuffix(" 1") for value in values]


def _flop_texts(values: Sequence[float]) -> list[str]:
    largest = max(map(abs, values), default=0.0)
    factor, prefix = next((step for step in _FLOPS if largest >= step[0]), _FLOPS[-1])
    return [f"{value / factor:.4g} {prefix}FLOP" for value in values]
