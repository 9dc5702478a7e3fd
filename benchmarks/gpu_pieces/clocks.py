"""How long a warm-up has to be, and whether events tell the same as the wall clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.plugin import WAITS, job_of, launcher, workloads
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.training.jobs import LaunchJob

WARMUPS = {"5 steps": (5, 0.0), "12 steps": (12, 0.0), "12 steps and 0.5 s": (12, 0.5)}
NEXT = 20  # steps after a warm-up, beside the last ones
SIZES = (2, 5, 20, 100)  # steps of a block
MAX_DEVIATION = 0.05  # of events' sum from the wall clock


def run(place: Place, notes: Notes) -> None:
    with launcher() as started:
        for name, work in workloads(place).items():
            for _ in range(place.chosen(4, 1)):
                seconds = place.chosen(4.0, 0.3)
                result = started.run(
                    stepped,
                    job_of(work, steps=1),
                    seconds,
                    place.chosen(SIZES, SIZES[:2]),
                    world_size=1,
                    device=place.device,
                    backend=place.backend,
                    timeout=120,
                )
                steps, blocks = result.rank(0)
                before = notes.found.get(name, {"steps": [], "blocks": []})
                notes(**{name: {"steps": [*before["steps"], steps], "blocks": [*before["blocks"], blocks]}})


def stepped(
    ctx: RankContext, job: LaunchJob, seconds: float, sizes: Sequence[int]
) -> tuple[list[float], dict[str, list[tuple[float, float]]]]:
    """Seconds of all steps from the first one on, and events' sums beside the wall clock of blocks, by their size."""
    from pytest_ddpperf.instruments.clock import clock_for, collector_paused
    from pytest_ddpperf.training.step import build_step
    from pytest_ddpperf.training.timing import timed_block

    with closing(build_step(ctx, job)) as step, collector_paused():
        clock = clock_for(ctx.device, marks=1000)
        clock.settle()
        until, marks = time.perf_counter() + seconds, [clock.mark()]
        while time.perf_counter() < until:
            step.run()
            marks.append(clock.mark())
        steps = list(clock.seconds(marks))
        blocks: dict[str, list[tuple[float, float]]] = {}
        for size in sizes:
            until = time.perf_counter() + seconds / len(sizes)
            while time.perf_counter() < until or not blocks.get(str(size)):
                clock.settle()
                begun = time.perf_counter()
                times, _ = timed_block(step.run, size, clock)  # ends when the device is done
                blocks.setdefault(str(size), []).append((sum(times), time.perf_counter() - begun))
    return steps, blocks


def after_warmup(steps: Sequence[float], number: int, seconds: float) -> float | None:
    """The median of the steps that follow a warm-up of a number and of seconds, over that of the last half."""
    ends = list(accumulate(steps))
    begin = max(number, sum(end < seconds for end in ends))
    following, last = steps[begin : begin + NEXT], steps[len(steps) // 2 :]
    return statistics.median(following) / statistics.median(last) if following else None


def lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    for name, of_work in found.items():
        steps, blocks = of_work["steps"], of_work["blocks"]
        first = statistics.median(each[0] for each in steps)
        last = statistics.median(statistics.median(each[len(each) // 2 :]) for each in steps)
        told.append(f"{name}, {WAITS[name]}: first step {1e3 * first:.1f} ms, the last half {1e3 * last:.3f} ms a step")
        for title, (number, seconds) in WARMUPS.items():
            ratios = [after_warmup(each, number, seconds) for each in steps]
            known = [f"{ratio:.3f}" for ratio in ratios if ratio is not None]
            told.append(
                f"  the {NEXT} steps after {title} take {', '.join(known) or '-'} times as long as the last half"
            )
        for size in blocks[0]:
            shares = [events / wall for each in blocks for events, wall in each[size]]
            apart = sum(abs(share - 1) > MAX_DEVIATION for share in shares)
            told.append(
                f"  blocks of {size} steps: events tell {statistics.median(shares):.4f} of the wall clock "
                f"({min(shares):.4f} .. {max(shares):.4f}); {apart} of {len(shares)} apart by over {MAX_DEVIATION:.0%}"
            )
    return told


PIECE = Piece(
    name="clocks",
    question="Are 5 steps of warm-up enough, or 12, or half a second? Do events agree with the wall clock?",
    seconds=120,
    run=run,
    lines=lines,
    dry="the CPU's clock in place of events",
)
