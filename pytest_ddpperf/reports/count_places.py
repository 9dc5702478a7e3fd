"""The lines of code that cause a change of a count, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.sites import RECORDED_LINES, CallSite, SiteChange, changed_sites, of_lines, same_lines
from pytest_ddpperf.reports.count_rates import scale_of, value_of
from pytest_ddpperf.reports.lines import words_of
from pytest_ddpperf.units import exact_texts, format_count

_SITES = 3  # lines of code that are named, one of an operator; of the others only the number is shown
_MADE = ("ddp_buckets", "python_objects")


def reference_text(paired: bool) -> str:  # noqa: FBT001 - a fact
    """Returns the words for the reference: the other revision, or the baseline."""
    return "the other revision" if paired else "the baseline"


def changed_at(metric: str, name: str | None, then: Counts, now: Counts) -> str:
    """Returns a text on lines that changed a count's part ``name``, such as an operator (None: total); may be empty."""
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
    """Returns the line at which an operator grew, as text, if baselines have lines only for all operators together."""
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

    For ``recorded_operators``, they are the lines that record operators, unless a line that calls models is new.
    """
    called, own = ([counts.sites.get(name, ()) for counts in (then, now)] for name in (metric, RECORDED_LINES))
    if metric != "recorded_operators" or not all(own):
        return called
    return called if any(old is None for old, _ in changed_sites(called[0], called[1])) else own


def _change_text(
    change: SiteChange, unit: str, scale: float, same: Mapping[tuple[str, int], int], *, alone: bool
) -> str:
    """Returns a text on a changed site (``alone``: the only one): ``the new one at train.py:41 in step``."""
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
    """Returns the lines of code that make buckets, or objects that stay in memory; new and grown lines come first."""
    before, after = (counts.sites.get(metric, ()) for counts in (then, now))
    sites = ([new for _, new in changed_sites(before, after) if new] or list(after))[:_SITES]
    return [f"made at {words_of(list(map(place_text, sites)))}"] if sites and metric in _MADE else []
