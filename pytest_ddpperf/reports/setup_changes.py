"""Says which changes of wrappers, settings, checkpoints or optimizers explain the change of a count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pytest_ddpperf.records.counts import Counts, beyond_floor, changed_parts, count_row
from pytest_ddpperf.records.sites import BACKWARD, CHECKPOINT, SETTINGS, CallSite, part_of, same_lines, setting_of
from pytest_ddpperf.reports.count_words import place_text
from pytest_ddpperf.reports.lines import some_of, words_of
from pytest_ddpperf.units import format_count

_MEMORY = ("model_state_bytes", "peak_tensor_bytes")
_SENT = ("collective_calls", "collective_bytes")
_OF_BATCH = ("flops", "peak_tensor_bytes", "operators")  # that the shape of batches moves
_MOVES = {  # by kind or setting, the counts that it moves, those first that name most
    "find_unused_parameters": _SENT,
    "broadcast_buffers": _SENT,
    "comm_hook": ("collective_bytes", "collective_calls", "operators"),
    "bucket_cap_mb": ("ddp_buckets", "collective_calls", "peak_tensor_bytes"),
    "gradient_as_bucket_view": ("peak_tensor_bytes", "operators"),
    "retain_graph": ("peak_tensor_bytes", "retained_bytes"),
    "create_graph": ("flops", "recorded_operators", "peak_tensor_bytes"),
    "reshard_after_forward": (*_SENT, *_MEMORY),
    "mesh": (*_SENT, "collective_send_bytes", *_MEMORY),
    CHECKPOINT: ("peak_tensor_bytes", "flops", *_SENT),
    "optimizer": ("optimizer_steps", *_MEMORY, "synchronisations", "operators"),
}
_OPTIMIZER, _OF = "optimizer", " of "
_BLOCK = re.compile(r"^.*?\b\d+\b|^.*$")  # a module up to the first number in its name
_MOVED = (*_SENT, "ddp_buckets", *_MEMORY, "full_precision_flops", "host_to_device_bytes", "operators")  # by any other


class _Side(NamedTuple):
    numbers: Mapping[str, float]  # by kind, and by name of a setting
    sites: Mapping[str, CallSite]  # one of each, if possible one that the other side does not have

    @classmethod
    def of(cls, counts: Counts, other: Counts) -> _Side:
        known = {(site.part, site.source) for site in other.sites.get(SETTINGS, ())}
        sites = sorted(counts.sites.get(SETTINGS, ()), key=lambda site: (site.part, site.source) in known)
        numbers: dict[str, float] = {}
        for site in sites:
            numbers[site.part] = numbers.get(site.part, 0.0) + site.value
        return cls(numbers, {site.part: site for site in reversed(sites)})

    def place(self, part: str, verb: str = "made ") -> str:
        """Returns ``: made at FILE:LINE`` for a wrapper or a setting, or an empty text if the line is unknown."""
        site = self.sites.get(part) or self.sites.get(setting_of(part)[0])
        return f": {verb}at {place_text(site)}" if site is not None and site.file else ""


def setup_changes(metric: str, then: Counts, now: Counts) -> list[str]:
    """Returns lines on changes of the setup (wrappers, settings) that explain the change of the count ``metric``."""
    before, after = _Side.of(then, now), _Side.of(now, then)
    if not (before.numbers and after.numbers):
        return []  # of a baseline from before settings were kept
    every = [*_batches(then, now), *_checkpoints(then, now), *_kinds(before, after, then, now)]
    every += _settings(before, after)
    return [text for text, moves in every if _explained(moves, then, now) == metric]


def _explained(moves: Iterable[str], then: Counts, now: Counts) -> str:
    both = [metric for metric in moves if metric in then.totals and metric in now.totals]
    moved = [
        metric
        for metric in both
        if beyond_floor(metric, then, now)
        or (count_row(metric).made_up and any(old != new for old, new in changed_parts(metric, then, now)))
    ]
    more = [metric for metric in moved if now.totals[metric] >= then.totals[metric]]
    return next(iter([*more, *moved]), "")


_Change = tuple[str, Iterable[str]]  # a text, and the counts that the change affects


def _batches(then: Counts, now: Counts) -> list[_Change]:
    old, new = (list(counts.details.get("batch_rows", {})) for counts in (then, now))
    return [(f"a step has {some_of(new)}, {some_of(old)} before", _OF_BATCH)] if old and new and old != new else []


def _checkpoints(then: Counts, now: Counts) -> list[_Change]:
    """Returns a change if the activations of some modules are no longer recomputed in backward; else an empty list."""
    again, still = (counts.details.get("flops_recomputed", {}) for counts in (then, now))
    lost = [module for module in again if module not in still and module in now.details.get("flops", {})]
    if not lost:
        return []
    made = [site for site in then.sites.get(SETTINGS, ()) if site.part == CHECKPOINT]
    kept = [site for site in now.sites.get(SETTINGS, ()) if site.part == CHECKPOINT]
    before, after = ({(site.file, site.source) for site in sites} for sites in (made, kept))
    gone = [site for site in made if (site.file, site.source) not in after]
    other = next((site for site in kept if site.file and (site.file, site.source) not in before), None)
    saving = bool(made) and not (gone or still)  # the same checkpoints recompute only what needs no FLOPs
    change = "saves more" if saving else f"is lost{' in part' * bool(still)}"
    place = next((_place_then(site, then, now) for site in (gone or made) if site.file), "")
    at = f", {'checkpointed' if saving else 'as they were'} at {place}" if place else ""
    blocks = list(dict.fromkeys(_BLOCK.findall(module)[0] for module in lost))
    are = "is" if len(blocks) == 1 else "are"
    if gone and other is not None:
        moved = f"{CHECKPOINT} is at {place_text(other)} now, and was at {_place_then(gone[0], then, now)}"
        return [(f"{moved}: {some_of(blocks)} {are} recomputed without FLOPs", _MOVES[CHECKPOINT])]
    return [(f"{CHECKPOINT} {change}: {some_of(blocks)} {are} not recomputed any more{at}", _MOVES[CHECKPOINT])]


def _place_then(site: CallSite, then: Counts, now: Counts) -> str:
    """Returns a code line of the reference as text, with its present line number if the line still exists."""
    lines = ([each for sites in counts.sites.values() for each in sites] for counts in (then, now))
    line = same_lines(*lines).get((site.file, site.line))
    return place_text(replace(site, line=line or site.line))


def _kinds(before: _Side, after: _Side, then: Counts, now: Counts) -> list[_Change]:
    new, lost = _more_of(after, before), _more_of(before, after)
    told: list[_Change] = []
    for kind, number in new.items():
        head, of = _split(kind)
        same = next((old for old, less in lost.items() if _split(old)[0] == head and less == number), None)
        if same is not None:
            del lost[same]  # a renamed class of a wrapper is no change
        if same is None:
            told.append((f"{_kind_text(kind, number)} is new{after.place(kind)}", _MOVES.get(head, _MOVED)))
        elif head == _OPTIMIZER:
            told.append((f"the optimizer is {of}, {_split(same)[1]} before{after.place(kind)}", _MOVES[head]))
    for kind, number in lost.items():
        site = before.sites[kind]
        were = f": previously created at {_place_then(site, then, now)}" if site.file else ""
        told.append((f"{_kind_text(kind, number)} is lost{were}", _MOVES.get(_split(kind)[0], _MOVED)))
    return told


def _more_of(one: _Side, other: _Side) -> dict[str, float]:
    kinds = [part for part in one.numbers if not setting_of(part)[1] and part not in {CHECKPOINT, BACKWARD}]
    return {kind: more for kind in kinds if (more := one.numbers[kind] - other.numbers.get(kind, 0.0)) > 0}


def _split(kind: str) -> tuple[str, str]:
    """Splits the name of a wrapper into wrapper and class: ``fully_shard of Block`` into ``fully_shard``, ``Block``."""
    head, _, of = kind.partition(" " if kind.startswith(f"{_OPTIMIZER} ") else _OF)
    return head, of


def _kind_text(kind: str, number: float) -> str:
    head, of = _split(kind)
    alone = number <= 1 or head == _OPTIMIZER or not of
    return kind if alone else f"{head}{_OF}{format_count(round(number), f'{of} module')}"


def _settings(before: _Side, after: _Side) -> list[_Change]:
    found: dict[_Change, list[str]] = {}  # kinds by their common change
    parts = [setting_of(part) for part in (*after.numbers, *before.numbers) if setting_of(part)[1]]
    for kind, name in dict.fromkeys((kind, name) for kind, name, _ in parts):
        if kind != BACKWARD and not (kind in before.numbers and kind in after.numbers):
            continue
        old, new = (
            [value for *of, value in map(setting_of, side.numbers) if of == [kind, name]] for side in (before, after)
        )
        if set(old) == set(new):
            continue
        value, was = (next((each for each in one if each not in other), "") for one, other in ((new, old), (old, new)))
        text = f"{name}={value} now{f', {was} before' * bool(was)}" if value else f"no {name}={was} any more"
        place = after.place(part_of(kind, name, value), "made " * (kind != BACKWARD))
        moves = _MOVES.get(name, _MOVES.get(_split(kind)[0], _MOVED))
        found.setdefault((f"{text}{place}", moves), []).append(kind.removeprefix(f"{_OPTIMIZER} "))
    return [
        (f"{words_of([first, *(_split(kind)[1] or kind for kind in more)])} ha{'ve' if more else 's'} {text}", moves)
        for (text, moves), (first, *more) in found.items()
    ]
