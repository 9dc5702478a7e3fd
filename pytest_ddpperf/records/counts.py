"""Counts of the work in one step, such as calls of collectives, which do not vary between runs or machines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddpperf.records.alike import Alike, RankCopy
from pytest_ddpperf.records.rhythm import Components, in_few_periods, period_of, rhythm_of_all, rhythm_text, unusual_of
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.units import exact_texts


@dataclass(frozen=True, kw_only=True, slots=True)
class CountRow:
    """The properties of one count: its unit, and rules for comparing it."""

    unit: str = "1"  # or B, or FLOP
    gated: bool = True  # whether it can fail a test; the others are only shown, as they are parts of another count
    numbered: bool = False  # whether its parts are numbered in an order that means nothing
    made_up: bool = False  # whether its parts are compared too; parts of other counts are modules, which may be renamed
    by_kernel: bool = False  # whether it depends on the kernels that torch picks: on the GPU's model and on CUDA
    follows: str = ""  # another count, whose change usually changes this count too
    symptom: bool = False  # whether it only shows the effect of changes that other counts name
    profiled: bool = False  # whether the profiler counts it on the device, if the device allows this
    floor: float = 0.0  # the largest change that is ignored, in its unit
    floor_share: float = 0.0  # the same as a share of the earlier value; the larger of the two floors applies
    floor_alone: bool = False  # whether its floor applies only if collective calls, FLOPs and waits did not grow
    of_work: bool = False  # whether it is the amount of work of a step: less is worse, and more means another step
    wanted_of: str = ""  # the count of which this one should be a large part: less is worse, more is no change
    needed: bool = False  # whether a training without any is worse
    guessed: bool = False  # whether a run may be unable to determine it; then it is not reported as lost


COUNTS: Mapping[str, CountRow] = {
    "collective_calls": CountRow(made_up=True),
    "blocking_collectives": CountRow(made_up=True, follows="collective_calls"),
    "collective_bytes": CountRow(unit="B", made_up=True),
    "collective_send_bytes": CountRow(unit="B", follows="collective_bytes"),
    "flops": CountRow(unit="FLOP"),
    "flops_forward": CountRow(unit="FLOP", gated=False),
    "flops_backward": CountRow(unit="FLOP", gated=False),
    "flops_recomputed": CountRow(unit="FLOP", gated=False),
    "full_precision_flops": CountRow(unit="FLOP", follows="flops"),
    "operators": CountRow(by_kernel=True, symptom=True, floor_share=0.01, floor_alone=True),
    "compiled_operators": CountRow(by_kernel=True, wanted_of="operators"),
    "recorded_operators": CountRow(by_kernel=True, follows="operators", floor_share=0.01, floor_alone=True),
    "operator_bytes": CountRow(unit="B", gated=False),
    "synchronisations": CountRow(),
    "optimizer_steps": CountRow(made_up=True, needed=True),
    "optimizers_made": CountRow(guessed=True),
    "scheduler_steps": CountRow(needed=True),
    "backward_passes": CountRow(of_work=True, needed=True),
    "gradients_dropped": CountRow(),
    "eval_passes": CountRow(),
    "slow_modes": CountRow(),
    "collector_paused": CountRow(wanted_of="backward_passes"),
    "batch_rows": CountRow(of_work=True, guessed=True),
    "host_to_device_bytes": CountRow(unit="B"),
    "allocator_calls": CountRow(made_up=True),
    "processes_started": CountRow(),
    "checkpoints_saved": CountRow(),
    "workers_restarted": CountRow(guessed=True),
    "loaders_without_workers": CountRow(guessed=True),
    "loaders_unpinned": CountRow(guessed=True),
    "loaders_unsharded": CountRow(guessed=True),
    "loaders_kept": CountRow(guessed=True),
    "loaders_repeating": CountRow(guessed=True),
    "ddp_buckets": CountRow(made_up=True, numbered=True),
    "graph_breaks": CountRow(),
    "recompiles": CountRow(),
    "kernel_launches": CountRow(by_kernel=True, symptom=True, profiled=True),
    "device_copies": CountRow(by_kernel=True, profiled=True),
    "device_synchronisations": CountRow(profiled=True),
    "peak_tensor_bytes": CountRow(unit="B", symptom=True, floor=4096.0, floor_share=0.001),
    "model_state_bytes": CountRow(unit="B"),
    "parameters": CountRow(gated=False),
    "model_size": CountRow(unit="B", gated=False),
    "retained_bytes": CountRow(unit="B", floor=1024.0),
    "python_objects": CountRow(floor=8.0),
    "graphs_kept": CountRow(guessed=True),
}
"""The counts by name, in the order of reports. A new count needs a row here, and code in instruments/counting."""


def count_row(metric: str) -> CountRow:
    """Returns the properties of a count; defaults for an unknown count of another version of the plugin."""
    return COUNTS.get(metric, CountRow())


_OF_TWO_RHYTHMS = 4  # most values of a component in which two kinds of work come in some steps, or both
_OF_RHYTHM = 2  # most different values of a component that is compared step by step
Pair = tuple[float, float]  # a value before and now
_BY_CHANCE = 0.005  # a larger probability that steps drawn at random differ like these proves nothing
_OF_WRAPPER = 4  # operators that a wrapper may add or remove, such as those of DDP's forward
_ROUNDED = 1e-9  # relative rounding error of sums of fractions
WORK = ("collective_calls", "flops", "synchronisations")  # counts that name additional work of a step
_MAIN = ("collective_calls", "collective_bytes", "flops", "operators", "peak_tensor_bytes")  # those that repr shows
SHOWN = 5  # the most changes that are named; reports give only the number of the others

COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"),
    *("send", "recv", "barrier"),
)
"""The names under which calls of collectives and of point-to-point communication are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """The counts of one step, on one rank or on all ranks, by metric; ``COUNTS`` has the names."""

    # The number in one step, which is one call of the measured function. If many steps were counted, the mean, over
    # whole periods if the steps repeat.
    totals: Mapping[str, float]
    # The parts of the total: operators, modules, buckets, categories of memory. They add up to the total, except for
    # ``ddp_buckets``: its parts are bytes of buckets, and its total is their number.
    details: Mapping[str, Mapping[str, float]]
    # Metrics that cannot be compared exactly because they differ irregularly between steps, each with its difference.
    # For metrics that are counted in whole steps, ``totals`` and ``details`` have the largest step.
    unstable: Mapping[str, str]
    # The totals by rank of metrics that differ between ranks; ``totals`` has the largest one.
    by_rank: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # The details by rank of collectives and optimizer steps, if they differ between ranks.
    details_by_rank: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    # The lines of code that cause the total, on the rank that ``details`` describe; only shown. By other ranks: a key
    # such as ``"1 3"`` names the ranks with these lines.
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)
    sites_by_rank: Mapping[str, Mapping[str, tuple[CallSite, ...]]] = field(default_factory=dict)
    copy: RankCopy | None = field(default=None, compare=False)  # checksums of a rank's model; only for one rank
    alike: Alike | None = field(default=None, compare=False)  # None if no ranks were compared
    steps: int = 2  # the number of steps in which the cheap counts, such as calls of collectives, were taken
    # By metric and part (``""``: the total), the values in these steps, if they differ, as components (see ``rhythm``).
    # Only collectives, optimizer steps and similar counts have parts here.
    varying: Mapping[str, Mapping[str, Components]] = field(default_factory=dict)

    @property
    def differing(self) -> dict[str, str]:
        """The metrics that differ between steps, each with a description of the difference."""
        found = ((metric, next(filter(None, parts), ""), parts) for metric, parts in self.varying.items())
        told = {metric: f"{part} {rhythm_text(parts[part][0])}".strip() for metric, part, parts in found}
        return {**told, **self.unstable}

    def __repr__(self) -> str:
        """Returns only the most important totals, because all of them would fill pages."""
        main = [metric for metric in _MAIN if metric in self.totals]
        shown = [f"{metric} {quantity_texts(metric, [self.totals[metric]])[0]}" for metric in main]
        left = [f"{len(self.totals) - len(main)} more"] if len(self.totals) > len(main) else []
        return f"<Counts {', '.join([*shown, *left]) or 'of nothing'}>"


def on_ranks(metric: str, then: Counts, now: Counts) -> list[tuple[float, float]]:
    """Returns a metric's (before, now) totals for each rank; empty if ranks differ neither before nor now."""
    return _by_rank(*((counts.by_rank.get(metric, ()), counts.totals[metric]) for counts in (then, now)))


def parts_on_ranks(metric: str, then: Counts, now: Counts) -> dict[str, list[tuple[float, float]]]:
    """Returns (before, now) pairs by rank for the parts of a count, such as operators, that differ between ranks."""
    sides = (then, now)
    if any(metric in counts.by_rank and metric not in counts.details_by_rank for counts in sides):
        return {}  # of a baseline from before details were kept by rank
    names = dict.fromkeys(name for counts in sides for name in counts.details_by_rank.get(metric, {}))

    def side(counts: Counts, name: str) -> tuple[Sequence[float], float]:
        return counts.details_by_rank.get(metric, {}).get(name, ()), counts.details.get(metric, {}).get(name, 0.0)

    return {name: _by_rank(side(then, name), side(now, name)) for name in names}


def _by_rank(then: tuple[Sequence[float], float], now: tuple[Sequence[float], float]) -> list[tuple[float, float]]:
    """Returns (before, now) pairs by rank; if ``then`` or ``now`` has only a single value, each rank gets it."""
    number = max(len(ranks) for ranks, _ in (then, now))
    before, after = (ranks or (value,) * number for ranks, value in (then, now))
    return list(zip(before, after, strict=False))  # if world sizes differ, the ranks that both have


def beyond_floor(metric: str, then: Counts, now: Counts) -> list[tuple[float, float]]:
    """Returns (before, now) totals of a count, for all ranks and each rank, whose difference is too large to ignore."""
    row, pairs = count_row(metric), [(then.totals[metric], now.totals[metric]), *on_ranks(metric, then, now)]
    pairs = surely_changed(metric, "", then, now, pairs)
    works = [(then.totals.get(work, 0.0), now.totals.get(work, 0.0)) for work in WORK]
    if row.floor_alone and any(after - before > _ROUNDED * after for before, after in works):
        return pairs
    switched = row.follows and now.totals.get(row.follows, 0.0) <= then.totals.get(row.follows, 0.0)  # a lost no_grad
    share, whole = row.floor_share, then.totals.get(row.follows, 0.0)  # what comes with more operators has their floor
    floors = [0.0 if switched and new > old else max(row.floor, share * max(old, whole)) for old, new in pairs]
    return [pair for pair, floor in zip(pairs, floors, strict=True) if abs(pair[1] - pair[0]) > floor]


def surely_changed(metric: str, part: str, then: Counts, now: Counts, pairs: Iterable[Pair]) -> list[Pair]:
    """Returns those (before, now) ``pairs`` whose difference cannot come from counting other steps than before.

    The pairs are means over counted steps: of one ``part``, or of the total if ``part`` is empty. If two means prove
    nothing, but every step of one side has more than most steps of the other side, the result has values of such steps.
    """
    more, less = _doubt(metric, part, then, now)
    found: list[Pair] = []
    for old, new in pairs:
        sure = (new - old >= more or old - new >= less) and abs(new - old) > _ROUNDED * max(old, new)
        fell = [(most, least) for least, most in _grown_steps(metric, part, now, then, (new, old)) if new < old]
        found += [(old, new)] if sure else _grown_steps(metric, part, then, now, (old, new)) or fell
    return found


def changed_parts(metric: str, then: Counts, now: Counts) -> list[tuple[float, float]]:
    """Returns (before, now) of each changed part of a count, overall and by rank, without uncertain changes."""
    parts = {name: [pair] for name, pair in _parts(metric, then, now).items()}
    found = [*parts.items(), *parts_on_ranks(metric, then, now).items()]
    before, after = (sorted(counts.details.get(metric, {}).values()) for counts in (then, now))
    if count_row(metric).numbered and before == after:
        return []  # two models take their steps in another order
    return [pair for name, pairs in found for pair in surely_changed(metric, name, then, now, pairs)]


def _parts(metric: str, then: Counts, now: Counts) -> dict[str, tuple[float, float]]:
    before, after = then.details.get(metric, {}), now.details.get(metric, {})
    return {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}


def steps_to_tell(metric: str, then: Counts, now: Counts) -> int:
    """Returns the number of steps needed to decide whether a count changed; 0 if the counted steps decide it."""
    row, needed = count_row(metric), 0.0
    parts = {"": (then.totals[metric], now.totals[metric]), **_parts(metric, then, now)}
    for part in dict.fromkeys((*then.varying.get(metric, {}), *now.varying.get(metric, {}))):
        old, new = parts[part]
        same = _as_before(metric, part, then, now, (old, new))
        floor = math.inf if same else max(row.floor, row.floor_share * old)
        if abs(new - old) > floor and not surely_changed(metric, part, then, now, [(old, new)]):
            doubt = _doubt(metric, part, then, now)[new < old]
            needed = max(needed, min(then.steps, now.steps) * doubt / abs(new - old))
    return math.ceil(needed - _ROUNDED)


def _as_before(metric: str, part: str, then: Counts, now: Counts, pair: Pair) -> bool:
    """Returns whether usual and unusual steps have the same values as before, so that only their frequency differs."""
    sides = [counts.varying.get(metric, {}).get(part, ()) for counts in (then, now)]
    (old, before, *_), (new, after, *_) = map(unusual_of, sides)
    levels = max((len(set(values)) for side in sides for values in side), default=0)
    alike = levels <= _OF_RHYTHM and old == new and metric not in {**then.by_rank, **now.by_rank}
    return alike and abs(pair[1] - after - (pair[0] - before)) <= _ROUNDED * max(pair)


def _grown_steps(metric: str, part: str, then: Counts, now: Counts, pair: Pair) -> list[Pair]:
    """Returns [(most frequent value before, smallest value now)] if the second is surely larger, else an empty list."""
    varying = [counts.varying.get(metric, {}).get(part, ()) for counts in (then, now)]
    if any(len(set(values)) > _OF_TWO_RHYTHMS for values in (*varying[0], *varying[1])):
        return []  # neighbouring steps may be alike, as if lengths rise slowly
    (_, before, _, above), (_, after, least, _) = map(unusual_of, varying)
    usual, every, first = pair[0] - before, then.steps + now.steps, pair[1] - after + least
    others = every - math.floor(then.steps * max(0.0, 1 - above) + _ROUNDED)  # than the steps that are surely below
    chance = math.comb(others, now.steps) / math.comb(every, now.steps)
    by_rank = metric in {**then.by_rank, **now.by_rank}  # of which the values by step are one rank's
    return [(usual, first)] * (first - usual > _ROUNDED * max(pair) and chance <= _BY_CHANCE and not by_rank)


def _doubt(metric: str, part: str, then: Counts, now: Counts) -> tuple[float, float]:
    """Returns by how much the mean of ``part`` may have grown, and fallen, only because other steps were counted.

    The values of steps are a sum of components, each with a period (see ``rhythm``). Equal components of ``then`` and
    ``now`` cause no doubt. If one of both has more components, the counted steps of the other may lack a component.
    """
    sides = [Counter(counts.varying.get(metric, {}).get(part, ())) for counts in (then, now)]
    old, new = (tuple((side - other).elements()) for side, other in (sides, sides[::-1]))
    before, after = rhythm_of_all(old), rhythm_of_all(new)
    size = max((max(values) - min(values) for values in (*old, *new)), default=0.0)
    unseen = size / then.steps * (len(old) < len(new)) + size / now.steps * (len(new) < len(old))
    seen = [set(map(period_of, side)) for side in sides]
    gone = tuple(each for each in old if period_of(each) not in seen[1])
    come = tuple(each for each in new if period_of(each) not in seen[0])
    if gone and come:  # they may be the same work, of which an epoch's end has cut a period
        unseen += in_few_periods(gone, then.steps) + in_few_periods(come, now.steps)
    more = after.mean - after.low + before.high - before.mean + unseen
    less = after.high - after.mean + before.mean - before.low + unseen
    return more * (1 - _ROUNDED), less * (1 - _ROUNDED)


def may_be_another_step(metric: str, then: Counts, now: Counts) -> bool:
    """Returns whether a count and the FLOPs of forward both grew or both fell, or whether the FLOPs are unknown."""
    before, after = (counts.totals.get("flops_forward", 0.0) for counts in (then, now))
    return not (before or after) or (now.totals[metric] - then.totals[metric]) * (after - before) > 0


def has_other_shapes(metric: str, then: Counts, now: Counts) -> bool:
    """Returns whether batches have as many rows as before, but another shape, such as longer sequences."""
    known = metric in then.details and metric in now.details and then.totals[metric] == now.totals[metric]
    before, after = (counts.totals.get("flops_forward", 0.0) for counts in (then, now))
    return known and abs(after - before) > _ROUNDED * after and bool(changed_parts(metric, then, now))


def is_lost(metric: str, then: Counts, now: Counts) -> bool:
    """Returns whether ``metric``, a part of a larger count, vanished, or fell while the rest of that count grew."""
    if not any(after < before for before, after in beyond_floor(metric, then, now)):
        return False
    whole, fall = count_row(metric).wanted_of, then.totals[metric] - now.totals[metric]
    moved = fall + now.totals.get(whole, 0.0) - then.totals.get(whole, 0.0)
    return not now.totals[metric] or (fall > max(_OF_WRAPPER, 0.01 * then.totals[metric]) and moved >= fall / 2)


def quantity_texts(metric: str, values: Iterable[float]) -> tuple[str, ...]:
    """Returns the values of a metric as texts in one unit, with all digits if fewer digits would hide a difference."""
    return tuple(exact_texts(count_row(metric).unit, values))
