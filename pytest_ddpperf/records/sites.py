"""The lines of code that cause a count, and their changes. The lines explain a verdict, but do not decide it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

STRATEGIES = "pytest_ddpperf/strategies/"  # the path of the plugin's own strategies
SETTINGS = "settings"  # the key of lines with settings; values are numbers of wrappers, optimizers or calls in a step
RECORDED_LINES = "recorded_lines"  # the key of lines that record operators for autograd, not of lines that call models
CHECKPOINT, BACKWARD = "activation checkpointing", "backward"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class CallSite:
    """A line of code that causes a part of a count, such as all calls of one operator."""

    part: str  # of the count: all_reduce
    file: str = ""  # relative to the project or to its import path, else the name; empty for torch's code
    line: int  # its number
    function: str = ""  # around the line
    source: str = ""  # a digest of the text of the line that called torch; empty if unknown
    backward: bool = False  # whether autograd's backward called the line
    value: float  # for one step
    strategy: str = ""  # the strategy that contains the line, or made torch run it; empty for the user's own code
    through: str = ""  # line of another package that it called, and that called torch: a.py:1 in f; else empty
    caller: str = ""  # line of the project that called the function: a.py:1 in f; empty if unknown
    caller_source: str = ""  # a digest of the text of that line; empty if unknown


SiteChange = tuple[CallSite | None, CallSite | None]
"""A site before and after; None if it is new or gone."""


def changed_sites(
    then: Iterable[CallSite], now: Iterable[CallSite], same: Mapping[tuple[str, int], int] | None = None
) -> list[SiteChange]:
    """Returns the changed lines of code: first new ones, then grown ones, then shrunk ones, then lines that are gone.

    Lines are paired by equal text, and lines between such pairs by their order; line numbers do not matter. A line may
    also have moved to another function or file. If several lines have the same text, ``same`` (from ``same_lines``)
    decides. A change names a caller only if some, but not all, of the line's callers changed.
    """
    old_lines, new_lines = (_grouped(sites, caller="", caller_source="") for sites in (then, now))
    before, after = _by_place(old_lines), _by_place(new_lines)
    pairs = [
        pair
        for place in {**before, **after}
        for pair in _aligned(before.get(place, []), after.get(place, []), same or {})
    ]
    gone = [old for old, new in pairs if new is None and old is not None]
    changes: list[SiteChange] = []
    for old, new in pairs:
        if new is not None and old is None:
            moved = [site for site in gone if _moved(site, new)]
            old = max(moved, key=lambda site: site.function == new.function, default=None)  # noqa: PLW2901 - before
            if old is not None:
                gone.remove(old)
        if new is not None and (old is None or not math.isclose(old.value, new.value)):
            called = old_lines.get(old, ()) if old is not None else ()
            changes += _by_caller((old, new), called, new_lines[new])
    changes += [(old, None) for old in gone]
    lost = {(site.part, site.backward, site.value) for site in gone}
    return sorted(changes, key=lambda change: _rank(change, lost))


def _grouped(sites: Iterable[CallSite], **common: str) -> dict[CallSite, list[CallSite]]:
    """Groups sites that are equal except for value and the fields in ``common``; a group's key has the summed value."""
    groups: dict[CallSite, list[CallSite]] = {}
    for site in sites:
        groups.setdefault(replace(site, value=0.0, **common), []).append(site)  # type: ignore[arg-type]  # all are str
    return {replace(common, value=math.fsum(each.value for each in group)): group for common, group in groups.items()}


def _by_caller(change: SiteChange, then: Sequence[CallSite], now: Sequence[CallSite]) -> list[SiteChange]:
    """Returns the changes of a line's callers if only some of the callers changed, else the change of the line."""
    if not all(site.caller for site in (*then, *now)):  # of a baseline from before callers were kept
        return [change]
    before, after = ({_caller_of(site): site for site in sites} for sites in (then, now))
    changes = changed_sites(before, after)
    if sum(new is not None for _, new in changes) == len(now):
        return [change]
    return [(old and before[old], new and after[new]) for old, new in changes]


def _caller_of(site: CallSite) -> CallSite:
    place, _, function = site.caller.rpartition(" in ")
    file, _, line = place.rpartition(":")
    where = replace(site, caller="", caller_source="", through="", source=site.caller_source)
    return replace(where, file=file, line=int(line), function=function)


def _by_place(sites: Iterable[CallSite]) -> dict[tuple[object, ...], list[CallSite]]:
    """Groups sites with equal part, file, function and ``through`` (a function of another package), sorted by line."""
    places: dict[tuple[object, ...], list[CallSite]] = {}
    for site in sorted(sites, key=lambda site: (site.line, site.through)):
        through = re.sub(r":\d+ ", " ", site.through)
        places.setdefault((site.part, site.file, site.function, site.backward, through), []).append(site)
    return places


def of_lines(sites: Iterable[CallSite]) -> tuple[CallSite, ...]:
    """Returns one site for each line of code; its value is the sum over all parts of the count, such as operators."""
    return tuple(_grouped(sites, part="all"))


def same_lines(then: Iterable[CallSite], now: Iterable[CallSite]) -> dict[tuple[str, int], int]:
    """Returns the present line number for each (file, earlier line number), found by the text and order of lines."""
    sides = [
        sorted({(site.file, site.line, site.source) for site in sites if not site.through}) for sites in (then, now)
    ]
    before, after = ([(file, source) for file, _, source in lines] for lines in sides)
    found: dict[tuple[str, int], int] = {}
    for first, start, size in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        for (file, line, _), (_, moved, _) in zip(sides[0][first:], sides[1][start : start + size], strict=False):
            found[file, line] = moved
    return found


def _aligned(
    before: Sequence[CallSite], after: Sequence[CallSite], same: Mapping[tuple[str, int], int]
) -> list[SiteChange]:
    """Pairs a function's sites before and after by equal text, and the sites between such pairs by order."""
    lines = {(site.source, same.get((site.file, site.line))) for site in before}  # their present lines
    there = {site.source for site in after if (site.source, site.line) in lines}
    copies = [site.source in there and (site.source, site.line) not in lines for site in after]
    texts = ["" if copy else site.source for site, copy in zip(after, copies, strict=True)]
    matcher = SequenceMatcher(None, [site.source for site in before], texts, autojunk=False)
    pairs: list[SiteChange] = []
    for _, first, last, start, end in matcher.get_opcodes():
        common = min(last - first, end - start)
        pairs += zip(before[first : first + common], after[start : start + common], strict=True)
        pairs += [(old, None) for old in before[first + common : last]]
        pairs += [(None, new) for new in after[start + common : end]]
    return pairs


def _moved(old: CallSite, new: CallSite) -> bool:
    """Returns whether ``new`` may be ``old``, moved to another function or file."""
    return bool(old.source) and (old.part, old.source, old.backward) == (new.part, new.source, new.backward)


def _rank(change: SiteChange, lost: Collection[tuple[str, bool, float]]) -> tuple[int, float]:
    old, new = change
    before, after = (0.0 if site is None else site.value for site in change)
    kind = 0 if old is None else 4 if new is None else 2 if after > before else 3
    moved = new is not None and old is None and (new.part, new.backward, new.value) in lost
    return kind + moved, -abs(after - before)


def part_of(kind: str, name: str, value: object) -> str:
    """Returns the name of a class's setting in the counts, such as ``DistributedDataParallel: static_graph=True``."""
    return f"{kind}: {name}={value}"


def setting_of(part: str) -> tuple[str, str, str]:
    """Splits a part's name, as ``part_of`` makes it, into class, setting and value; the last two may be empty."""
    kind, _, setting = part.partition(": ")
    name, _, value = setting.partition("=")
    return kind, name, value
