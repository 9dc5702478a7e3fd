"""Describes changes of counts in words, part by part."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from pytest_ddpperf.records.counts import SHOWN, Counts, count_row, on_ranks, parts_on_ranks, surely_changed
from pytest_ddpperf.records.ranks import as_rank
from pytest_ddpperf.records.sites import RECORDED_LINES, CallSite, changed_sites, of_lines
from pytest_ddpperf.reports import count_words as words
from pytest_ddpperf.reports.setup_changes import setup_changes
from pytest_ddpperf.units import exact_texts, format_change, format_count, format_percent

_SHARE = 0.01  # of the parameters: a smaller change is not shown
_ONE_PASS = 2.5  # FLOPs of backward / FLOPs of forward, at most; calls of autograd.grad add more
_FUSED = re.compile("_foreach_|_fused_|_scaled_dot_product_(?!.*backward)")  # operators in the place of many
_LEAST_SHARE = 0.001  # of a count: a smaller change is shown in bytes or FLOPs, a larger one in percent
_OF_STEP, _LINES = ("collective_calls", "operators"), 2
_SIBLINGS = {
    "collective_calls": ("collective_bytes", "bytes"),
    "collective_bytes": ("collective_calls", "calls"),
    "collective_send_bytes": ("collective_bytes", "bytes"),
}


def count_difference(metric: str, before: float, after: float) -> str:
    """Returns a count's change: ``+6``, ``+300.0 %`` (bytes and FLOPs), or ``other`` if only its parts changed."""
    unit, difference = count_row(metric).unit, after - before
    if not difference:
        return "other"
    telling = unit != "1" and abs(difference) >= _LEAST_SHARE * before > 0
    return format_change(difference / before) if telling else words.difference_of(unit, difference)


def difference_text(metric: str, then: Counts, now: Counts) -> list[str]:
    """Returns a line for each changed part of a count, the largest change first; empty if nothing changed.

    For example ``all_reduce 2 -> 3 calls per step (+1), bytes unchanged: the new one at train.py:41 in step``.
    """
    before, after = then.details.get(metric, {}), now.details.get(metric, {})
    on_each, alone = _rank_lines(metric, then, now, {"": on_ranks(metric, then, now)}), _alone(metric, then, now)
    if metric == "ddp_buckets":
        told = setup_changes(metric, then, now) + _bucket_text(before, after) + words.made_at(metric, then, now)
        return told * (before != after) + on_each
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    known = setup_changes(metric, then, now)
    lost = [] if known else [name for name in changes if not after.get(name) and _FUSED.search(name)]
    changed = sorted(
        (name for name in changes if changes[name]), key=lambda name: (name not in lost, -abs(changes[name]), name)
    )
    # A change that may come from the choice of the counted steps is omitted, unless there is no other.
    pairs = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in changed}
    sure = [name for name in changed if surely_changed(metric, "", then, now, [pairs[name]])]
    changed = sure or changed
    made_up, of_modules = count_row(metric).made_up, metric == "flops"
    places = words.changed_at(metric, None, then, now) if of_modules and len(changed) > 1 else ""
    one_way = len({changes[name] > 0 for name in changed}) == 1
    lines = [
        f"{_part(metric, name)} {words.part_text(metric, name, then, now, alone=made_up or one_way)}{alone}"
        f"{_sibling(metric, name, then, now)}"
        f"{'' if places else words.changed_at(metric, None if of_modules else name, then, now)}"
        for name in changed
    ]
    if not lines and then.totals[metric] != now.totals[metric]:
        lines = [whole_text(metric, then, now)]
    renamed = of_modules and 2 * len(before.keys() & after.keys()) < min(len(before), len(after))
    lines = ["most modules have other names now"] if renamed and len(changed) > SHOWN else lines
    lines[:0] = [f"{whole_text(metric, then, now)}{alone}{places}"] if places else []
    most = 1 if known and count_row(metric).unit == "B" else SHOWN
    lines = _shortened(lines, "smaller change", most) + words.made_at(metric, then, now)
    lines = known + ([] if known and metric == "flops" else _explained(metric, then, now)) + lines
    lines = _newly_recorded(metric, then, now) + lines
    # If all totals are as before, the parts of a rank may still have changed.
    return (lines if lines and alone else lines + on_each) or _rank_lines(
        metric, then, now, parts_on_ranks(metric, then, now)
    )


def _alone(metric: str, then: Counts, now: Counts) -> str:
    """Returns text such as `` on rank 3 alone`` if only one rank changed and now has the largest total; else empty."""
    changed = [(rank, new) for rank, (old, new) in enumerate(on_ranks(metric, then, now)) if old != new]
    return f" on rank {changed[0][0]} alone" if [value for _, value in changed] == [now.totals[metric]] else ""


def whole_text(metric: str, then: Counts, now: Counts) -> str:
    """Returns the change of a whole count: ``operators 120 -> 118 per step (-2)``."""
    return f"{metric} {words.part_text(metric, '', then, now, alone=True)}"


def _part(metric: str, name: str) -> str:
    """Returns the part ``name`` of a count as text: ``aten.mm``, ``module 3.1``, ``FLOPs in float32``."""
    if metric in words.LOADERS:
        return words.LOADERS[metric]
    if metric == "full_precision_flops":
        return f"FLOPs in {name}{' without autocast or TF32' * (name == 'float32')}"
    return f"module {name}" if name.replace(".", "").isdecimal() else name


def _explained(metric: str, then: Counts, now: Counts) -> list[str]:
    """Returns lines that explain the change of a count by the change of another count, such as recomputed FLOPs."""
    more = {part: value - then.totals.get(part, math.inf) for part, value in now.totals.items()}
    same = not (more.get("flops_forward", 1.0) or more.get("backward_passes", 0.0))
    of_new = same or not then.totals.get("flops_recomputed")  # else forward computes more, and so does its repetition
    if metric == "flops" and of_new and more.get("flops_recomputed", 0.0) > 0:
        why = "activations are computed again in backward (activation checkpointing)"
        return [f"{why}: {words.change_text(metric, then.totals['flops_recomputed'], now.totals['flops_recomputed'])}"]
    grown = min(more.get("flops_backward", 0.0), more.get("recorded_operators", 0.0)) > 0
    if grown and metric == "flops" and same and now.totals["flops_backward"] <= _ONE_PASS * now.totals["flops_forward"]:
        why = "backward computes more gradients, as after a lost no_grad, detach() or requires_grad_(False)"
        return [f"{why}: {words.change_text(metric, then.totals['flops_backward'], now.totals['flops_backward'])}"]
    sizes = [counts.details.get("model_state_bytes", {}) for counts in (then, now)]
    before, after = (size.get("gradients", 0.0) for size in sizes)
    if metric == "collective_bytes" and more[metric] > 0 and 0 < before < after:
        return [f"a rank has more gradients, {' -> '.join(exact_texts('B', [before, after]))}"]
    if metric != "model_state_bytes" or not all(size.get("parameters") for size in sizes):
        return []
    old, new = (size.get("gradients", 0.0) / size["parameters"] for size in sizes)
    if abs(new - old) < _SHARE or before == after:  # only parameters changed
        return []
    grew = "grew" if new > old else "fell"
    return [f"trainable parameters {grew}: {format_percent(new)} of them have gradients, {format_percent(old)} before"]


def _newly_recorded(metric: str, then: Counts, now: Counts) -> list[str]:
    """Names the lines at which autograd records more, although no more operators run there."""
    recorded, run = ([of_lines(c.sites.get(name, ())) for c in (then, now)] for name in (RECORDED_LINES, "operators"))
    if metric not in _OF_STEP or not all(recorded):
        return []
    ran = {new: _growth(old, new) for old, new in changed_sites(run[0], run[1]) if new and not new.backward}
    grown = {(new.file, new.line): more for new, more in ran.items()}
    lines = [
        new.caller or words.place_text(new)
        for old, new in changed_sites(recorded[0], recorded[1])
        if new and _growth(old, new) > max(0.0, grown.get((new.file, new.line), 0.0))
    ]
    places = ", ".join(_shortened([*dict.fromkeys(lines)], "more line", _LINES))
    return [f"autograd records more, as after a lost no_grad or detach(): at {places}"] if lines else []


def _growth(old: CallSite | None, new: CallSite) -> float:
    return new.value - (old.value if old else 0.0)


def _sibling(metric: str, name: str, then: Counts, now: Counts) -> str:
    """Returns a note if the calls of a collective changed but not their bytes, or the bytes but not the calls."""
    if metric not in _SIBLINGS:
        return ""
    other, noun = _SIBLINGS[metric]
    before, after = then.details.get(other, {}).get(name), now.details.get(other, {}).get(name)
    return f", {noun} unchanged" if before and before == after else ""


def _bucket_text(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    if len(before) != len(after):
        return [f"{len(before)} -> {format_count(len(after), 'bucket')}, {_layout(before)} -> {_layout(after)}"]
    changed = [name for name in after if before.get(name) != after[name]]
    told = [f"{name} {' -> '.join(exact_texts('B', [before.get(name, 0.0), after[name]]))}" for name in changed]
    return [f"{format_count(len(after), 'bucket')} as before, {', '.join(_shortened(told, 'more bucket'))}"]


def _layout(buckets: Mapping[str, float]) -> str:
    """Returns the bucket sizes: ``1.0 MiB + 25.0 MiB``; the smallest and the largest if there are many."""
    if len(buckets) <= SHOWN:
        return " + ".join(exact_texts("B", buckets.values())) or "none"
    smallest, largest = exact_texts("B", [min(buckets.values()), max(buckets.values())])
    return f"{smallest} to {largest} each"


def _rank_lines(
    metric: str, then: Counts, now: Counts, parts: Mapping[str, Sequence[tuple[float, float]]]
) -> list[str]:
    """Returns a line for each rank on which a part changed; ``parts`` has (before, now) pairs by rank for each part.

    If a part changed on all ranks, omits each rank with the change of the total at the total's changed lines of code.
    """
    lines, whole = list[str](), now.totals[metric] - then.totals[metric]
    for name, pairs in parts.items():
        everywhere = all(before != after for before, after in pairs)
        place = words.changed_at(metric, name or None, then, now)
        for rank, (before, after) in enumerate(pairs):
            at = words.changed_at(metric, name or None, as_rank(metric, rank, then), as_rank(metric, rank, now))
            as_total = everywhere and math.isclose(after - before, whole) and at in {"", place}
            text = f"rank {rank} {f'{name} ' if name else ''}{words.change_text(metric, before, after)}{at}"
            lines += [text] * (before != after and not as_total)
    return _shortened(lines, "more rank")


def _shortened(lines: list[str], noun: str, most: int = SHOWN) -> list[str]:
    more = [f"and {format_count(len(lines) - most, noun)}"] if len(lines) > most else []
    return [*lines[:most], *more]
