"""Do two processes that hold contexts and take turns in blocks scatter less as pairs than launches that alternate?

What decides is a pair's seconds times the variance of its quotient: what a given certainty takes. Quotients of the
same code are 1 on average.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from scipy.special import chdtri  # scipy.stats takes a second to import

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.plugin import job_of, launcher, timed
from pytest_ddpperf.launch.interleaving import TurnSlot, run_interleaved
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.launch_figures import mean_step
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.training.jobs import LaunchJob

TIMED_SECONDS = 1.0  # of each launch
IN_TURNS, ALTERNATING = "sides take turns in blocks", "launches alternate"
FEWEST = 3  # pairs that are made: the first is left out
ENOUGH = 5  # pairs, to know a scatter by


def run(place: Place, notes: Notes) -> None:
    """Pairs of both kinds, in random order, until the time is up and there are a few."""
    until = time.monotonic() + place.chosen(470.0, 6.0)
    with launcher() as first, launcher() as second:
        pilot, _ = timed(first, place, job_of(place, place.chosen(30, 4)))
        steps = round(place.chosen(TIMED_SECONDS, 0.05) / stands_for(pilot[0])) + 1
        job = job_of(place, steps)
        made: dict[str, list[dict[str, Any]]] = {ALTERNATING: [], IN_TURNS: []}
        while time.monotonic() < until or len(made[IN_TURNS]) < FEWEST:
            for kind in random.Random(time.monotonic()).sample(list(made), 2):  # noqa: S311  no secret
                made[kind].append(pair((first, second), place, job, in_turns=kind == IN_TURNS))
            notes(steps=steps, pairs=made)


def pair(sides: Sequence[Launcher], place: Place, job: LaunchJob, *, in_turns: bool) -> dict[str, Any]:
    """Two launches of the same code: how far their steps are apart, and how far their blocks are."""
    begun = time.monotonic()

    def call(started: Launcher) -> Callable[[TurnSlot | None], RankLaunch]:
        return lambda turns: timed(started, place, job, turns=turns)[0][0]

    calls = [call(started) for started in sides]
    ranks = run_interleaved(calls, partial(abort, sides)) if in_turns else [each(None) for each in calls]
    blocks = [_logs(rank) for rank in ranks]
    return {
        "difference": math.log(stands_for(ranks[0]) / stands_for(ranks[1])),
        "blocks": [ours - theirs for ours, theirs in zip(*blocks, strict=True)],
        "seconds": time.monotonic() - begun,
    }


def stands_for(rank: RankLaunch) -> float:
    """The step time that the plugin would tell of a launch of this rank alone."""
    return mean_step(Launch(round=0, ranks=(rank,), seconds=0.0))


def _logs(rank: RankLaunch) -> list[float]:
    """The logarithm of the mean step of each block; none of a launch alone."""
    ends = accumulate(rank.blocks)
    blocks = [rank.step_times[end - size : end] for size, end in zip(rank.blocks, ends, strict=True)]
    return [math.log(statistics.fmean(block)) for block in blocks]


def abort(launchers: Sequence[Launcher]) -> None:
    """Ends what these are running."""
    for started in launchers:
        started.abort()


def apart(differences: Sequence[float]) -> str:
    """The root mean square of differences that are 0 on average, in per cent."""
    squares, number = math.fsum(difference**2 for difference in differences), len(differences)
    low, high = (math.sqrt(squares / chdtri(number, q)) for q in (0.025, 0.975))
    return f"{math.sqrt(squares / number):.1%} [{low:.1%} .. {high:.1%}]"


def costs(pairs: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of a pair times the variance of what its sides differ by."""
    squares = [float(pair["difference"]) ** 2 for pair in pairs]
    return float(statistics.median(pair["seconds"] for pair in pairs)) * statistics.fmean(squares)


def lines(found: Mapping[str, Any]) -> list[str]:
    # The first pair of each kind is slow.
    kept = {kind: pairs[1:] for kind, pairs in found["pairs"].items()}
    told = [f"{found['steps']} steps a launch; what the sides of a pair differ by, and what the same certainty takes"]
    for kind, pairs in kept.items():
        blocks = [_alone(pair["blocks"]) for pair in pairs if len(pair["blocks"]) > 1]
        told.append(
            f"  {kind:<26} {len(pairs):3} pairs, apart by {apart([pair['difference'] for pair in pairs])}, "
            f"{statistics.median(pair['seconds'] for pair in pairs):.1f} s a pair, "
            f"takes {costs(pairs) / costs(kept[ALTERNATING]):.2f}"
            + (f"; by their blocks alone apart by {statistics.median(blocks):.1%}" if blocks else "")
        )
    if min(map(len, kept.values())) < ENOUGH:
        return [*told, "too few pairs to decide"]
    best = min(kept, key=lambda kind: costs(kept[kind]))
    return [*told, f"the same certainty takes least where {best}"]


def _alone(differences: Sequence[float]) -> float:
    """What the blocks of a pair say that it scatters by, if they are independent."""
    return statistics.stdev(differences) / math.sqrt(len(differences))


PIECE = Piece(
    name="turns_small",
    question="A step waits for the host: do two processes with contexts take turns in blocks, or launches alternate?",
    seconds=500,
    run=run,
    lines=lines,
)
