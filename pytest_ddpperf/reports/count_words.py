"""The change of a count in words: by how much, in which steps, and at which lines of code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.records.counts import Counts, count_row, surely_changed
from pytest_ddpperf.records.rhythm import Levels, levels_of
from pytest_ddpperf.records.sites import RECORDED_LINES, CallSite, SiteChange, changed_sites, of_lines, same_lines
from pytest_ddpperf.reports.lines import words_of
from pytest_ddpperf.units import exact_texts, format_count, format_difference, format_number

LOADERS = {
    "workers_restarted": "DataLoaders that start workers again at each epoch",
    "loaders_kept": "DataLoaders of earlier epochs that stay in memory",
    "loaders_repeating": "DataLoaders that give all epochs in one order",
    "loaders_without_workers": "DataLoaders without workers",
    "loaders_unpinned": "DataLoaders without pinned memory",
    "loaders_unsharded": "DataLoaders whose workers load equal samples, as if the dataset ignored get_worker_info()",
}
_MOST_PERCENT = 1000  # in a text: a larger change has only its two values
_NOUNS = {
    "collective_calls": " calls",
    "blocking_collectives": " blocking calls",
    "synchronisations": " waits for the device",
    "allocator_calls": " calls",
    "checkpoints_saved": " calls",
    "optimizers_made": " made",
    "slow_modes": " backward passes",
    "gradients_dropped": " calls that drop unused gradients",
    "eval_passes": " forward passes in eval mode",
    "graph_breaks": " graph breaks",
    "recompiles": " recompilations",
    "python_objects": " that stay",
    "graphs_kept": " kept without detach()",
}
_EVERY = {  # what is not counted by the step
    "peak_tensor_bytes": " at the peak",
    **dict.fromkeys(("model_state_bytes", "graph_breaks", "recompiles", "collector_paused", *LOADERS), ""),
}
_SITES = 3  # lines of code that are named, one of an operator; of the others only the number is shown
_MADE = ("ddp_buckets", "python_objects", "graphs_kept")


def change_text(metric: str, before: float, after: float) -> str:
    """Returns the change of a count as text: ``5 -> 9 calls per step (+4)``."""
    first, second = exact_texts(count_row(metric).unit, [before, after])
    every = _EVERY.get(metric, " per step")
    return f"{first} -> {second}{_NOUNS.get(metric, '')}{every} ({_by(metric, before, after)})"


def part_text(metric: str, part: str, then: Counts, now: Counts, *, alone: bool) -> str:
    """Returns the change of a count's ``part``, such as an operator, as text: ``1 -> 3 calls in 1 of 10 steps (+2)``.

    An empty ``part`` means the total. ``alone``: whether no other part changed in the opposite direction.
    """
    before, after = (value_of(metric, part, counts) for counts in (then, now))
    levels = _levels(metric, part, then, now, alone=alone)
    if levels is None:
        ((old_step, new_step),) = surely_changed(metric, part, then, now, [(before, after)]) or [(before, after)]
        elsewhere = " in most steps" * ((old_step, new_step) != (before, after))
        return f"{change_text(metric, old_step, new_step)}{elsewhere}"
    old, new = levels
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
    """Returns steps / unusual steps if a count changed only in unusual steps, such as every 10th step; else 1."""
    levels = _levels(metric, part, then, now, alone=True)
    if levels is None:
        return 1.0
    old, new = levels
    rare = new if new.times else old
    same = (old.times, old.of) == (new.times, new.of) or not (old.times and new.times)
    return rare.of / rare.times if same and math.isclose(old.usual, new.usual) else 1.0


def _levels(metric: str, part: str, then: Counts, now: Counts, *, alone: bool) -> tuple[Levels, Levels] | None:
    """Returns the Levels of a ``part`` (its two values by step), then and now; None unless steps have two values.

    Some counts have values by step only for their total. Then ``part`` gets the total's less frequent steps, but only
    if ``alone`` is true (no other part changed in the opposite direction).
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


def reference_text(paired: bool) -> str:  # noqa: FBT001 - a fact
    """Returns the words for the reference: the other revision, or the baseline."""
    return "the other revision" if paired else "the baseline"


def changed_at(metric: str, name: str | None, then: Counts, now: Counts) -> str:
    """Returns a text on lines of code that changed the part ``name`` of a count, or its total if ``name`` is None."""
    every = _sites_of(metric, then, now)
    sides = [of_lines(sites) if name is None else [site for site in sites if site.part == name] for sites in every]
    (before, old), (after, new) = (
        (each.totals.get("collective_calls", 0.0), each.details.get("collective_calls", {})) for each in (then, now)
    )
    if metric == "collective_bytes" and before < after and old.get(name or "") != new.get(name or ""):
        return ""  # the text on the calls, which grew too, names the lines
    counted = [value_of(metric, name or "", counts) for counts in (then, now)]
    if metric == "operators" and counted[0] and not sides[0]:
        return _line_of_operator(name, *every)
    if any(value and not sites for value, sites in zip(counted, sides, strict=True)):
        return ""  # of a baseline from before sites were kept
    lines_of = [{(site.file, site.line, site.backward, site.through) for site in side} for side in sides]
    alone = max(map(len, lines_of)) == 1 and metric != "peak_tensor_bytes"  # no other line has a part of the value
    unit = count_row(metric).unit
    lines = [[site for sites in counts.sites.values() for site in sites] for counts in (then, now)]
    same, scale = same_lines(*lines), scale_of(metric, name or "", then, now)
    changes = changed_sites(sides[0], sides[1], same)
    most = 1 if metric == "operators" else _SITES
    if metric == "operators":  # lines of forward come first, because all operators of backward have one line
        changes.sort(key=lambda change: change[1] is None or change[1].backward)
    told = [_change_text(change, unit, scale, same, alone=alone) for change in changes[:most]]
    more = [f"and {format_count(len(changes) - most, 'other line')}"] if len(changes) > most else []
    return f": {', '.join([*told, *more])}" if told else ""


def _line_of_operator(name: str | None, then: Sequence[CallSite], now: Sequence[CallSite]) -> str:
    """Returns a text on lines that call the operator ``name`` and run more operators in total than before; or empty."""
    lines = {(site.file, site.line) for site in now if site.part == name}
    more = [
        place_text(new)
        for old, new in (changed_sites(then, of_lines(now)) if then else ())
        if new is not None and (new.file, new.line) in lines and (old is None or old.value < new.value)
    ]
    others = f", and {format_count(len(more) - 1, 'other line')}"
    return f": more at {more[0]}{others * (len(more) > 1)}" if more else ""


def _sites_of(metric: str, then: Counts, now: Counts) -> list[tuple[CallSite, ...]]:
    """Returns the lines of code that cause a count, then and now.

    For ``recorded_operators``, returns the lines that call models if one of these lines is new. Otherwise returns the
    lines at which autograd records operators.
    """
    called, own = ([counts.sites.get(name, ()) for counts in (then, now)] for name in (metric, RECORDED_LINES))
    if metric != "recorded_operators" or not all(own):
        return called
    return called if any(old is None for old, _ in changed_sites(called[0], called[1])) else own


def _change_text(
    change: SiteChange, unit: str, scale: float, same: Mapping[tuple[str, int], int], *, alone: bool
) -> str:
    """Returns the change of the count of one line of code as text, such as ``2 -> 3 at train.py:41 in step``."""
    (old, new), calls = change, unit == "1"

    def size(*values: float) -> str:
        return " -> ".join(exact_texts(unit, [round(value * scale, 6) for value in values]))

    if new is None:
        if old is None:
            return ""
        now = None if old.caller else same.get((old.file, old.line))
        place = place_text(replace(old, line=now or old.line))
        return f"{size(old.value)} gone from {place}{'' if now else ', a line of the reference'}"
    place = place_text(new)
    if old is not None:
        return f"all at {place}" if alone and not new.caller else f"{size(old.value, new.value)} at {place}"
    if calls and math.isclose(new.value * scale, 1):
        return f"the new one at {place}"
    return f"{size(new.value)} new {'ones ' if calls else ''}at {place}"


def place_text(site: CallSite) -> str:
    """Returns a site as text, ``train.py:41 in step, under backward``; also names strategy and caller, if any."""
    by = f"strategy {site.strategy}" if site.strategy else ""
    place = f"{site.file}:{site.line}{f' in {site.function}' * bool(site.function)}" if site.file else ""
    through, called = f"through {site.through}" * bool(site.through), f"called at {site.caller}" * bool(site.caller)
    return ", ".join(filter(None, (by, place, through, called, "under backward" * site.backward))) or "an unknown place"


def made_at(metric: str, then: Counts, now: Counts) -> list[str]:
    """Returns one text on the lines that make DDP buckets or lasting objects, or on changed lines only; else empty."""
    before, after = (counts.sites.get(metric, ()) for counts in (then, now))
    sites = ([new for _, new in changed_sites(before, after) if new] or list(after))[:_SITES]
    return [f"made at {words_of(map(place_text, sites))}"] if sites and metric in _MADE else []
