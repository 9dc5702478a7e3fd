"""Changes of counts per step, in words: in each step, or only in some steps."""

from __future__ import annotations

import math

from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.rhythm import Levels, levels_of
from pytest_ddpperf.units import exact_texts, format_difference, format_number

LOADERS = {
    "workers_restarted": "DataLoaders that start workers again at each epoch",
    "loaders_kept": "DataLoaders of earlier epochs that stay in memory",
    "loaders_without_workers": "DataLoaders without workers",
    "loaders_unpinned": "DataLoaders without pinned memory",
}
_MOST_PERCENT = 1000  # in a text: a larger change has only its two values
_NOUNS = {
    "collective_calls": " calls",
    "blocking_collectives": " blocking calls",
    "synchronisations": " waits for the device",
    "allocator_calls": " calls",
    "checkpoints_saved": " calls",
    "slow_modes": " backward passes",
    "graph_breaks": " graph breaks",
    "recompiles": " recompilations",
    "python_objects": " that stay",
}
_EVERY = {  # what is not counted by the step
    "peak_tensor_bytes": " at the peak",
    **dict.fromkeys(("model_state_bytes", "graph_breaks", "recompiles", *LOADERS), ""),
}


def change_text(metric: str, before: float, after: float) -> str:
    """Returns the change of a count as text: ``5 -> 9 calls per step (+4)``."""
    first, second = exact_texts(count_row(metric).unit, [before, after])
    every = _EVERY.get(metric, " per step")
    return f"{first} -> {second}{_NOUNS.get(metric, '')}{every} ({_by(metric, before, after)})"


def part_text(metric: str, part: str, then: Counts, now: Counts, *, alone: bool) -> str:
    """Returns the change of a count's ``part``, such as an operator, as text: ``1 -> 3 calls in 1 of 10 steps (+2)``.

    ``alone``: whether no other part changed in the opposite direction. The part '' is the total.
    """
    before, after = (value_of(metric, part, counts) for counts in (then, now))
    rates = _rates(metric, part, then, now, alone=alone)
    if rates is None:
        return change_text(metric, before, after)
    old, new = rates
    noun, unit = _NOUNS.get(metric, ""), count_row(metric).unit
    usual, rare, other, more = exact_texts(
        unit, [round(each, 6) for each in (old.usual, old.other, new.usual, new.other)]
    )
    if not math.isclose(old.usual, new.usual):
        rarely = [f", {more} {_in(new)}" if new.times else "", f", before {rare} {_in(old)}" if old.times else ""]
        return f"{usual} -> {other}{noun} per step ({_by(metric, old.usual, new.usual)}){''.join(rarely)}"
    by = f" ({_by(metric, old.other, new.other)})"
    if old.times and new.times and (old.times, old.of) != (new.times, new.of):
        if rare == more == "1" and other == "0":
            return f"{_in(old)} -> {_in(new)}"
        return f"{rare}{noun} {_in(old)} -> {more} {_in(new)}, {other} in others"
    return f"{rare} -> {more}{noun} {_in(new if new.times else old)}{by}"


def scale_of(metric: str, part: str, then: Counts, now: Counts) -> float:
    """Returns the factor by which to multiply counts per step for a text on unusual steps only; 1 for other texts."""
    rates = _rates(metric, part, then, now, alone=True)
    if rates is None:
        return 1.0
    old, new = rates
    rare = new if new.times else old
    same = (old.times, old.of) == (new.times, new.of) or not (old.times and new.times)
    return rare.of / rare.times if same and math.isclose(old.usual, new.usual) else 1.0


def _rates(metric: str, part: str, then: Counts, now: Counts, *, alone: bool) -> tuple[Levels, Levels] | None:
    """Returns a count's usual and unusual value of a ``part``, then and now; None unless steps have just two values.

    If only the total is known by step, its unusual steps are assumed to be those of a part that changed ``alone``.
    """
    named = part if count_row(metric).made_up else ""
    sides: list[Levels] = []
    for counts in (then, now):
        found, total = counts.varying.get(metric, {}).get(named, ()), value_of(metric, named, counts)
        if len(found) > 1 or any(len(set(values)) > 2 for values in found):  # noqa: PLR2004
            return None
        sides.append(levels_of(found[0], total) if found else Levels(total, total, 0, 1))
    old, new = sides
    if not (old.times or new.times):
        return None
    if named == part or all(counts.details.get(metric, {}).keys() == {part} for counts in (then, now)):
        return old, new
    if not alone or (old.times and new.times) or not math.isclose(old.usual, new.usual):
        return None
    rare, values = new if new.times else old, [value_of(metric, part, counts) for counts in (then, now)]
    usual = values[0 if new.times else 1]
    level = usual + abs(values[1] - values[0]) * math.copysign(rare.of / rare.times, rare.other - rare.usual)
    steady, varying = Levels(usual, usual, 0, 1), Levels(usual, level, rare.times, rare.of)
    return (steady, varying) if new.times else (varying, steady)


def _in(levels: Levels) -> str:
    return f"in {levels.times} of {levels.of} steps"


def _by(metric: str, before: float, after: float) -> str:
    unit = count_row(metric).unit
    percent = round(100 * (after - before) / before) if before and unit != "1" else 0
    return f"{difference_of(unit, after - before)}{f', {percent:+d} %' if 0 < abs(percent) < _MOST_PERCENT else ''}"


def difference_of(unit: str, difference: float) -> str:
    """Returns a difference with its sign: ``+4``, ``-2.00 MiB``."""
    if unit == "B" and abs(difference) >= 1024:  # noqa: PLR2004 - below, bytes are told to the last digit
        return format_difference(difference, unit)
    size = exact_texts(unit, [abs(difference)])[0] if unit == "FLOP" else f"{format_number(abs(difference))} {unit}"
    return f"{'-' if difference < 0 else '+'}{size.removesuffix(' 1')}"


def value_of(metric: str, part: str, counts: Counts) -> float:
    """Returns the value of a count's ``part``, such as an operator; the total if ``part`` is empty."""
    return counts.details.get(metric, {}).get(part, 0.0) if part else counts.totals[metric]
