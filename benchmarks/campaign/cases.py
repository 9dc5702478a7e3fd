"""Draws cases by seed and number, and does on a rank what a case says. Ranks import it without torch."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.campaign import attacks, collectives, endings, hostile, sabotage
from benchmarks.campaign.kinds import KINDS, Case, Place

DECLARED = (attacks, collectives, endings, hostile, sabotage)  # all kinds
TIMEOUTS = {False: (4.0, 5.0), True: (6.0, 7.0, 8.0)}  # seconds, in suites and in sessions
WORLD_SIZES = (2, 2, 3, 4)


def drawn(seed: int, number: int, *, session: bool = False) -> Case:
    """Returns a case of a campaign: all kinds come in turn, and the rest is drawn."""
    names = sorted(name for name, kind in KINDS.items() if kind.session is session)
    Random(seed).shuffle(names)
    random, name = Random(f"{seed} {number}"), names[number % len(names)]
    kind, world_size = KINDS[name], random.choice(WORLD_SIZES)
    return Case(
        number=number,
        seed=seed,
        kind=name,
        phase=random.choice(kind.phases),
        ending=random.choice(kind.endings) if kind.endings else None,
        rank=random.randrange(world_size),
        world_size=world_size,
        timeout=random.choice(TIMEOUTS[session]),
        way="session" if session else "suite",
    )


def reach(case: Case, rank: int, phase: str, scratch: str) -> object:
    """Does what the case says if this rank is at its place; a mark in ``scratch`` tells that it was done."""
    if (phase, rank) != (case.phase, case.rank):
        return None
    place = Place(case=case, rank=rank, scratch=scratch)
    note(Path(scratch))
    done = KINDS[case.kind].act(place)
    if case.ending is not None:
        place.end()
        return None
    return done


def note(scratch: Path) -> None:
    """Notes down that it is done now."""
    (scratch / "acted").write_text(repr(time.time()), encoding="ascii")


def acted(scratch: Path) -> float | None:
    """Returns when it was done; None if it was not."""
    try:
        return float((scratch / "acted").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def add_up(ctx: Any) -> float:
    """A good launch: the sum over all ranks."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1) * (ctx.rank + 1)
    dist.all_reduce(total)
    return float(total)
