"""False alarms and finds on recorded launches that took turns, beside the rules of other tools.

    python benchmarks/verdict_quality.py gather --data launches.jsonl.gz
    python benchmarks/verdict_quality.py judge --data launches.jsonl.gz

``gather`` runs launches of real training steps (DDP, gloo), unchanged and made slower in known ways, and keeps what it
measured; it may be called again to add more. ``judge`` puts what was gathered through the code that judges, and
through the rules of other tools, and prints the rates of each. So a changed rule is judged on the same data at once.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well

from benchmarks.quality.campaign import BrokenFile, Campaign, Cell, Recorded, of_cell, partners, read
from benchmarks.quality.rates import COLUMNS, NOTHING, OURS, RULES, Tallies, goal_lines, judged, rule_rows
from benchmarks.quality.record import Wanted, gather
from benchmarks.quality.steps import CONDITIONS, FIRST, LENGTHS, OF_CAMPAIGNS, UNCHANGED
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.errors import DdpperfError, SettingError
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.summaries import median_step, quantile

HOW = """\
Each rate is that of comparisons drawn from the same launches, in stretches that keep their order. They share launches:
the 95 % intervals (Clopper-Pearson) rest on the number of comparisons without a common launch, at most, that the data
hold ("independent"). "first launch" means the first one of a run: ours leaves that one out, the other rules have no
other. Seconds, launches and what could have been seen are medians. What is added to steps was calibrated by itself:
"really slower by" is what it came to, beside unchanged launches that took turns with its own. Step times are cut to the
steps that the plugin would have timed, CPU times are those of all that were recorded. Side by side rests on launches
that took turns, all else on ones that ran alone. An all-reduce takes longer in a step than by itself, and the smallest
one more than 5 % of a short step. A run that is drawn from few rounds ends with them."""


def _faster(steps: Sequence[float], share: float) -> float:
    return statistics.fmean(sorted(steps)[: max(1, round(share * len(steps)))])


MEAN, CPU_TIME = "mean", "CPU time"
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {  # what a launch's steps could be reduced to
    MEAN: statistics.fmean,
    "minimum": min,
    "lower tenth": partial(quantile, q=0.1),
    "lower quartile": partial(quantile, q=0.25),
    "median": statistics.median,
    "mean of the faster half": partial(_faster, share=0.5),
    "mean of the faster 90%": partial(_faster, share=0.9),
    "harmonic mean": statistics.harmonic_mean,
}
SHOWN = "+10%"


class Scatter(NamedTuple):
    """How far launches of one condition differ by a statistic: standard deviations on the scale of logarithms."""

    alone: float  # of single launches
    paired: float  # of the differences of two launches that took turns
    shown: float | None  # by how much steps that are 10 % slower are slower by it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="gather|judge")
    gather = verbs.add_parser("gather", help="measure launches and keep them")
    gather.add_argument("--data", type=Path, required=True, help="the file; if it is there, launches are added")
    gather.add_argument("--minutes", type=float, default=10, help="how long (default: %(default)s)")
    gather.add_argument("--lengths", nargs="+", metavar="NAME", help="of steps (default: all: 4ms 12ms 78ms)")
    gather.add_argument("--conditions", nargs="+", metavar="NAME", help="of steps (default: all; ? lists them)")
    gather.add_argument("--ranks", nargs="+", type=int, metavar="N", default=[2], help="sizes of groups (default: 2)")
    gather.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    gather.set_defaults(command=_gather)
    judge = verbs.add_parser("judge", help="judge what was gathered")
    judge.add_argument("--data", type=Path, required=True, help="the file that gather has written")
    judge.add_argument(
        "--comparisons", type=int, default=400, help="resampled ones of each rule and condition (default: %(default)s)"
    )
    judge.add_argument("--seed", type=int, default=0, help="of the resampling (default: %(default)s)")
    judge.set_defaults(command=_judge)
    options = parser.parse_args()
    try:
        options.command(options)
    except (BrokenFile, DdpperfError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; what was written so far can be judged, and added to")


def _gather(options: argparse.Namespace) -> None:
    lengths, conditions = options.lengths or OF_CAMPAIGNS, options.conditions or CONDITIONS
    for option, names, known in (("lengths", lengths, LENGTHS), ("conditions", conditions, CONDITIONS)):
        for name in names:
            if name not in known:
                raise SettingError(f"--{option} {name}: there are {', '.join(known)}")
    if min(options.ranks) < 2:
        raise SettingError(f"--ranks {min(options.ranks)}: a group has two ranks or more")
    cells = tuple(Cell(length, ranks) for length in lengths for ranks in options.ranks)
    gather(
        options.data, Wanted(cells, tuple(CONDITIONS[name] for name in conditions), 60 * options.minutes, options.seed)
    )


def _judge(options: argparse.Namespace) -> None:
    if options.comparisons < 1:
        raise SettingError(f"--comparisons {options.comparisons}: a rate takes one or more")
    campaign = read(options.data)
    cells = sorted({launch.cell for launch in campaign.launches}, key=lambda cell: (cell.ranks, cell.length))
    tallies = {cell: judged(campaign, cell, options.comparisons, options.seed) for cell in cells}
    machines = ", ".join(environment_key(env) for env in campaign.environments.values())
    print(
        f"{len(campaign.launches)} launches since {campaign.began} on {machines}; {options.comparisons} comparisons",
        HOW,
        *(cell_text(campaign, cell, found) for cell, found in tallies.items()),
        sep="\n\n",
    )


def cell_text(campaign: Campaign, cell: Cell, tallies: Tallies) -> str:
    """A cell's tables and goals."""
    same = of_cell(campaign.launches, cell, UNCHANGED)
    step = statistics.median(launch.mean for launch in same) if same else math.nan
    rounds = len({launch.round for launch in campaign.launches if launch.cell == cell})
    effects = [effect_of(campaign.launches, cell, condition) for condition in CONDITIONS]
    labels = ("really slower by, mean step", "95 % interval of that", "really slower by, median step")
    rows = [
        (label, *(NOTHING if effect is None else texts(effect)[number] for effect in effects))
        for number, label in enumerate(labels)
    ]
    for rule in (OURS, *RULES):
        rows += rule_rows(rule, tallies[rule], tuple(CONDITIONS), tuple(COLUMNS) if rule == OURS else ("alarms",))
    table = Table(("rule", *CONDITIONS), tuple(rows), title=f"{cell}: {1e3 * step:.1f} ms a step, {rounds} rounds")
    scatter = scatter_table(scatters(campaign.launches, cell))
    return "\n".join((render(table), *goal_lines(tallies), *peer_lines(tallies), "", render(scatter)))


class Effect(NamedTuple):
    """By how much a condition's launches are slower than their round's unchanged ones."""

    mean: float  # of the mean step
    interval: tuple[float, float] | None  # 95 %, of that
    median: float  # of the median step


def effect_of(launches: Sequence[Recorded], cell: Cell, condition: str) -> Effect | None:
    """By how much a condition was really slower than the unchanged launches that it took turns with (geometric)."""
    pairs = [] if condition in (UNCHANGED, FIRST) else partners(launches, cell, condition)
    if not pairs:
        return None
    ratio, interval = center(ratios(pairs, partial(_of_steps, statistics.fmean)), "ratio")
    median, _ = center(ratios(pairs, partial(_of_steps, median_step)), "ratio")
    return Effect(ratio - 1, None if interval is None else (interval.low - 1, interval.high - 1), median - 1)


def texts(effect: Effect) -> tuple[str, str, str]:
    """In per cent."""
    ends = NOTHING if effect.interval is None else "{:+.1f} .. {:+.1f}".format(*(100 * end for end in effect.interval))
    return _percent(effect.mean), ends, _percent(effect.median)


def scatters(launches: Sequence[Recorded], cell: Cell) -> dict[str, Scatter]:
    """How far a cell's launches differ, by statistic, and by the busiest rank's CPU time where that is known."""
    alone = [of_cell(launches, cell, condition) for condition in CONDITIONS]
    paired = [partners(launches, cell, condition) for condition in CONDITIONS if condition != FIRST]
    slower = partners(launches, cell, SHOWN)
    figures = {name: partial(_of_steps, statistic) for name, statistic in STATISTICS.items()}
    if all(None not in launch.cpu for launch in launches if launch.cell == cell):
        figures[CPU_TIME] = partial(_cpu_time)
    return {
        name: Scatter(
            alone=_within([[figure(launch) for launch in same] for same in alone]),
            paired=_within([ratios(pairs, figure) for pairs in paired]),
            shown=center(ratios(slower, figure), "ratio")[0] - 1 if slower else None,
        )
        for name, figure in figures.items()
    }


def _within(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation of logarithms within groups of positive figures, all together; 0 if nothing tells it."""
    logs = [[math.log(figure) for figure in group] for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in logs)
    squares = math.fsum((len(group) - 1) * statistics.variance(group) for group in logs)
    return math.sqrt(squares / freedom) if freedom else 0.0


def _of_steps(statistic: Callable[[Sequence[float]], float], launch: Recorded) -> float:
    return statistic(launch.step_times)


def _cpu_time(launch: Recorded) -> float:
    return max(seconds for seconds in launch.cpu if seconds is not None)


def scatter_table(found: Mapping[str, Scatter]) -> Table:
    """How far two launches differ by each statistic that they could be reduced to."""
    return Table(
        headers=("statistic of a launch", "alone\n(sd)", "in turns\n(sd)", f"{SHOWN}\nshows as"),
        rows=tuple(
            (
                name,
                f"{math.sqrt(2) * scatter.alone:.1%}",
                f"{scatter.paired:.1%}",
                NOTHING if scatter.shown is None else _percent(scatter.shown),
            )
            for name, scatter in found.items()
        ),
        title="how far two launches of the same differ, by what they are reduced to",
        right=0,
    )


def peer_lines(tallies: Tallies) -> list[str]:
    """A line for each other rule that has fewer false alarms and finds more than ours does."""
    better = []
    ours = tallies[OURS]
    for rule in RULES:
        theirs = tallies[rule]
        slower = [name for name in theirs if CONDITIONS[name].alarm and name in ours]
        if UNCHANGED in theirs and UNCHANGED in ours and slower:
            quieter = theirs[UNCHANGED].alarms.value < ours[UNCHANGED].alarms.value
            sharper = [name for name in slower if theirs[name].alarms.value > ours[name].alarms.value]
            if quieter and sharper:
                better.append(f"better than ours in false alarms and at {', '.join(sharper)}: {rule}")
    return better or ["no other rule is better than ours in both false alarms and any slowdown"]


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %"


def ratios(pairs: Sequence[tuple[Recorded, Recorded]], figure: Callable[[Recorded], float]) -> list[float]:
    """What the second launch of each pair has, over what the first has."""
    return [figure(new) / figure(base) for base, new in pairs]


if __name__ == "__main__":
    main()
