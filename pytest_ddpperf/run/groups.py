"""Who is launched at the same time, to time steps in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.run.terms import Budget
from pytest_ddpperf.run.variant import Variant

Groups: TypeAlias = "tuple[tuple[int, ...], ...]"
"""Variants, by their numbers, that are launched at the same time; each is in one group."""


def can_take_turns(variants: Sequence[Variant]) -> bool:
    """Whether launches of these may run at the same time, as far as can be told before any.

    On the CPU only: a GPU would have to hold all of them, and ranks that wait for their turn there do not leave it
    alone.
    """
    return all(one.environment.device == "cpu" for one in variants)


def grouped(
    variants: Sequence[Variant], background: Sequence[bool], nbytes: Sequence[int], budget: Budget
) -> tuple[Groups, tuple[Finding, ...]]:
    """The groups, and why not all variants are in one where nothing spoke against it before.

    All where all can: what is held against each other has to be timed alike. Else both sides of each that can. Turns do
    not suit what works on in the background meanwhile: data would be there before it is waited for.
    """
    everybody = tuple(range(len(variants)))
    alone: Groups = tuple((i,) for i in everybody)
    if len(variants) == 1 or not budget.turns or not can_take_turns(variants):
        return alone, ()
    sides: dict[tuple[str, int], list[int]] = {}
    for i, one in enumerate(variants):
        sides.setdefault(one.key, []).append(i)
    busy = {one.key: one.name for one, works in zip(variants, background, strict=True) if works}

    def fit(group: Sequence[int]) -> bool:
        return budget.memory is None or sum(nbytes[i] for i in group) <= budget.memory

    slotted = budget.slots is None or len(sides) <= budget.slots
    if not busy and slotted and fit(everybody):
        return (everybody,), ()
    pairs = [tuple(pair) for key, pair in sides.items() if len(pair) > 1 and key not in busy and fit(pair)]
    paired = {i for pair in pairs for i in pair}
    if busy:
        finding = Finding("background_work", {"paired": bool(pairs), "benchmarks": tuple(busy.values())})
    else:
        finding = Finding("short_of_memory", {"paired": bool(pairs)})
    return (*pairs, *(one for one in alone if one[0] not in paired)), (finding,)


def together(groups: Groups, order: Sequence[int]) -> list[tuple[int, ...]]:
    """The groups in the order of a round's launches, in which the first of a group has the first turn."""
    group_of = {i: group for group in groups for i in group}
    ordered: dict[tuple[int, ...], list[int]] = {}
    for i in order:
        ordered.setdefault(group_of[i], []).append(i)
    return [tuple(group) for group in ordered.values()]
