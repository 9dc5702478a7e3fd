"""How far the verdicts can be trusted: false alarms and finds on recorded launches, beside the rules of other tools.

    python benchmarks/verdict_quality.py gather --data launches.jsonl.gz
    python benchmarks/verdict_quality.py judge --data launches.jsonl.gz

``gather`` runs launches of real training steps (DDP, gloo), unchanged and made slower in known ways, and keeps what it
measured; it may be called again to add more. ``judge`` puts what was gathered through the code that judges, and
through the rules of other tools, and prints the rates of each. So a changed rule is judged on the same data at once.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well

from benchmarks.quality.launches import BrokenFile, Cell, read
from benchmarks.quality.rates import OURS, RULES, SHOWN, STORED, CellFindings, Effect, judged
from benchmarks.quality.record import Wanted, gather
from benchmarks.quality.steps import CONDITIONS, LENGTHS, OF_CAMPAIGNS, UNCHANGED
from benchmarks.quality.tables import COLUMNS, NOTHING, goal_lines, rule_rows
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.errors import DdpperfError, SettingError
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.reports.terminal import render

HOW = """\
Each rate is that of comparisons drawn from the same launches, in stretches that keep their order. They share launches:
the 95 % intervals (Clopper-Pearson) rest on the number of comparisons without a common launch, at most, that the data
hold ("independent"). A stored baseline comes from the first half of the campaign, the run beside it from later on; its
launches lay further apart than in a run of their own: what drifts over minutes is more alike on both sides than in two
runs a day apart, so false alarms beside a stored baseline come out too few. "first launch" means the first one of a
run: ours leaves that one out, the other rules have no other. Seconds, launches and what could have been seen are
medians. What is added to steps was calibrated by itself: "really slower by" is what it came to, beside unchanged
launches that took turns with its own. Step times are cut to the steps that the plugin would have timed, CPU times are
those of all that were recorded. Side by side rests on launches that took turns, all else on ones that ran alone.
An all-reduce takes longer in a step than by itself, and the smallest one more than 5 % of a short step. What the plugin
runs after the timed steps of the first launches, to tell where time goes, was left out: a real run has fewer launches
in its time. So has one that is drawn from few rounds: it ends with them."""


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
    cells = judged(campaign, options.comparisons, options.seed)
    machines = ", ".join(environment_key(env) for env in campaign.environments.values())
    print(
        f"{len(campaign.launches)} launches since {campaign.began} on {machines}; {options.comparisons} comparisons",
        HOW,
        *map(cell_text, cells),
        sep="\n\n",
    )


def cell_text(found: CellFindings) -> str:
    """A cell's tables and goals."""

    def effects(label: str, cell: Callable[[Effect], str]) -> tuple[str, ...]:
        known = found.effects
        return (label, *(cell(known[condition]) if condition in known else NOTHING for condition in CONDITIONS))

    rows = [
        effects("really slower by, typical step", lambda effect: _percent(effect.typical)),
        effects("95 % interval of that", _ends),
        effects("really slower by, mean step", lambda effect: _percent(effect.mean)),
    ]
    for rule in (*OURS, *RULES):
        labels = tuple(COLUMNS) if rule in OURS else ("alarms",)
        rows += rule_rows(rule, found.tallies[rule], tuple(CONDITIONS), labels)
    title = f"{found.cell}: {1e3 * found.step:.1f} ms a step, {found.rounds} rounds"
    table = Table(headers=("rule", *CONDITIONS), rows=tuple(rows), title=title)
    lines = (*goal_lines(found.tallies), *peer_lines(found))
    return "\n".join((render(table), *lines, "", render(scatter_table(found))))


def scatter_table(found: CellFindings) -> Table:
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
            for name, scatter in found.scatter.items()
        ),
        title="how far two launches of the same differ, by what they are reduced to",
        right=0,
    )


def peer_lines(found: CellFindings) -> list[str]:
    """A line for each other rule that has fewer false alarms and finds more than a stored baseline of ours does."""
    better = []
    ours = found.tallies[STORED]
    for rule in RULES:
        theirs = found.tallies[rule]
        slower = [name for name in theirs if CONDITIONS[name].alarm and name in ours]
        if UNCHANGED in theirs and UNCHANGED in ours and slower:
            quieter = theirs[UNCHANGED].alarms.value < ours[UNCHANGED].alarms.value
            sharper = [name for name in slower if theirs[name].alarms.value > ours[name].alarms.value]
            if quieter and sharper:
                better.append(f"better than ours in false alarms and at {', '.join(sharper)}: {rule}")
    return better or ["no other rule is better than ours in both false alarms and any slowdown"]


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %"


def _ends(effect: Effect) -> str:
    return NOTHING if effect.interval is None else "{:+.1f} .. {:+.1f}".format(*(100 * end for end in effect.interval))


if __name__ == "__main__":
    main()
