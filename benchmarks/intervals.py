"""How often 95 % intervals cover the truth, and what launches scatter by: recorded, and simulated.

    python benchmarks/verdict_quality.py gather --data pairs.jsonl.gz --lengths 12ms --conditions unchanged
    python benchmarks/intervals.py report

``report`` reads files of ``verdict_quality.py gather``, by default all that lie in ``benchmarks/results``, and prints

- how often intervals of pairs cover 0, with what their blocks tell and by the launches alone, and how often either side
  of them errs at a test's level,
- what pairs scatter by, what their blocks make of it, and what is left as a launch's own part (``OWN_IN_TURNS``),
- the same of launches that ran alone (``OWN_ALONE``), and by how much stretches of them deviate beyond what their
  launches explain,
- by simulation, what launches that add far more or far less of their own than is assumed make of intervals, for several
  values of ``CERTAINTY``, and how often launches deny what is expected of them (``DENIED``).
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality

from benchmarks.looks import centers
from benchmarks.quality.campaign import BrokenFile, Campaign, Cell, read
from benchmarks.quality.intervals import (
    MISS,
    Intervals,
    Known,
    Scatter,
    alone,
    in_short_turns,
    joined,
    of_pairs,
    pairs_of,
    root,
    root_mean,
    scatter_of,
    stretches_of,
    together,
)
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.stats.blocks import CERTAINTY, OWN_ALONE, OWN_IN_TURNS, variance_of
from pytest_ddpperf.stats.centers import DENIED
from pytest_ddpperf.stats.intervals import t_quantile

RESULTS = Path(__file__).parent / "results"
WIDTH = 120
LEVELS = (0.10, 0.05, 0.01)  # one-sided
POOLED = "all together"
IN_PAIRS = (1, 2, 3, 6)  # pairs of a stretch
STRETCHES = (2, 4, 6)  # launches of one
ASSUMED = (0.0, 0.005, 0.01, OWN_IN_TURNS, 0.03)
TOLD, OWN = (0.015, 0.04), (0.0, 0.015, 0.042, 0.07)  # what blocks tell, and what a launch adds, in simulations
LAUNCHES = (2, 3, 4, 6, 10)
CERTAINTIES = (0.0, CERTAINTY, 8.0, 12.0)
BLOCKS = 22  # of a simulated launch: a 12 ms step beside another revision
SEED = 20261123
SHOWN = 1000  # simulated runs whose median interval is printed

Array: TypeAlias = NDArray[np.float64]
Side: TypeAlias = tuple[Array, Array, Array]  # of many runs: means, squared standard errors, degrees of freedom


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["report"])
    parser.add_argument("files", type=Path, nargs="*", help="(default: those in benchmarks/results)")
    parser.add_argument("--runs", type=int, default=20_000, help="simulated ones of each kind (default: %(default)s)")
    options = parser.parse_intermixed_args()
    files = options.files or sorted([*RESULTS.glob("verdict_quality*.jsonl.gz"), *RESULTS.glob("pairs*.jsonl.gz")])
    try:
        campaigns = {file.name.removesuffix(".jsonl.gz").removeprefix("verdict_"): read(file) for file in files}
    except (BrokenFile, OSError) as error:
        sys.exit(str(error))
    print(head(campaigns))
    simulations = tables_of_simulations(options.runs)
    for table in itertools.chain(tables_of_pairs(campaigns), tables_of_runs(campaigns), simulations):
        print(f"\n{render(table, WIDTH)}", flush=True)


def head(campaigns: Mapping[str, Campaign]) -> str:
    """The date, the machines, and what was recorded."""
    machines = {environment_key(env) for campaign in campaigns.values() for env in campaign.environments.values()}
    lines = [f"python benchmarks/intervals.py report, {dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}"]
    lines += [f"recorded on {machine}" for machine in sorted(machines)]
    for name, campaign in campaigns.items():
        pairs = sum(launch.pair is not None for launch in campaign.launches) // 2
        single = len(campaign.launches) - 2 * pairs
        lines.append(f"{name}: {pairs} pairs in turns, {single} launches alone, {campaign.began[:16]}")
    return "\n".join(lines)


def _cells(campaigns: Mapping[str, Campaign]) -> Iterator[tuple[str, Campaign, Cell]]:
    for name, campaign in campaigns.items():
        for cell in sorted({launch.cell for launch in campaign.launches}, key=str):
            yield f"{name} {cell}", campaign, cell


def tables_of_pairs(campaigns: Mapping[str, Campaign]) -> Iterator[Table]:
    """Coverage and scatter of launches that took turns."""
    recent = {name: campaign for name, campaign in campaigns.items() if in_short_turns(campaign)}
    found = {name: pairs_of(campaign.launches, cell) for name, campaign, cell in _cells(recent)}
    cells = {name: pairs for name, pairs in found.items() if len(pairs) >= max(IN_PAIRS)}
    if cells:
        yield coverage(cells)
        yield scatters(cells)
        yield by_own_part(list(cells.values()))


def coverage(cells: Mapping[str, Sequence[Known]]) -> Table:
    """How often intervals of pairs of the same code cover 0, by cell and number of pairs."""
    found = {
        (name, size): [of_pairs(pairs, size, own) for own in (OWN_IN_TURNS, None)]
        for name, pairs in cells.items()
        for size in IN_PAIRS
    }
    pooled = {
        (POOLED, size): [together(sides) for sides in zip(*(found[name, size] for name in cells), strict=True)]
        for size in IN_PAIRS
    }
    rows = []
    for (name, size), (blocks, launches) in {**pooled, **found}.items():
        share = blocks.covers.interval
        known = f"{100 * share.low:.0f}..{share.high:.0%}"
        rows.append((name, str(size), str(len(blocks.p)), known, *_outcome(blocks), *_outcome(launches)))
    of_each = ("95%", *(f"{level:.0%}" for level in LEVELS), "+-")
    title = (
        "intervals of so many consecutive pairs of the same code, with what their blocks tell and with "
        "none of it: how often that of 95 % covers 0 (and how often it really may: Clopper-Pearson, by stretches "
        "that share no pair), how often a one-sided test at 10, 5 and 1 % errs, and half the width of 95 % "
        "(median). Where one side was made slower, that effect is taken off."
    )
    headers = ("", "pairs", "of", "really", *(f"{by}\n{name}" for by in ("with", "none") for name in of_each))
    return Table(headers, tuple(rows), title=title, right=0)


def _outcome(found: Intervals) -> tuple[str, ...]:
    if not found.p:
        return ("",) * (2 + len(LEVELS))
    return f"{found.covers.value:.1%}", *(f"{found.beyond(level):.1%}" for level in LEVELS), f"{found.median:.1%}"


def scatters(cells: Mapping[str, Sequence[Known]]) -> Table:
    """What pairs of launches differ by, and what their blocks make of it."""
    of_cells = {name: scatter_of(pairs) for name, pairs in cells.items()}
    rows = [_scatter_row(name, found) for name, found in {POOLED: joined(of_cells.values()), **of_cells}.items()]
    title = (
        "what pairs differ by (root mean square), what their blocks predict, and what is left for a "
        f"launch of its own: {OWN_IN_TURNS:.1%} is assumed. Negative: the blocks predict more than there is. Then "
        "the correlation of neighbours: of pairs of launches, and of pairs of blocks inside them."
    )
    headers = ("", "pairs", "scatter", "by blocks", "own part", "95 %", "neighbours\npairs", "correlate\nblocks")
    return Table(headers, tuple(rows), title=title, right=0)


def _scatter_row(name: str, found: Scatter) -> tuple[str, ...]:
    own, low, high = found.own
    pairs, blocks = (1.96 / number**0.5 for number in (len(found.neighbours), len(found.blocks)))
    return (
        name,
        str(len(found.shown)),
        f"{root_mean(found.shown):.1%}",
        f"{root_mean(found.told):.1%}",
        f"{own:.1%}",
        f"{low:.1%} .. {high:.1%}",
        f"{np.mean(found.neighbours):.2f} +- {pairs:.2f}",
        f"{np.mean(found.blocks):.2f} +- {blocks * np.std(found.blocks):.2f}",
    )


def by_own_part(cells: Sequence[Sequence[Known]]) -> Table:
    """What another figure for a launch's own part would make of the intervals of all cells together."""
    rows = []
    for own in ASSUMED:
        found = [together(of_pairs(pairs, size, own) for pairs in cells) for size in IN_PAIRS]
        figures = (figure for sizes in found for figure in (sizes.covers.value, sizes.median))
        rows.append((f"{own:.1%}", *(f"{figure:.1%}" for figure in figures)))
    title = f"{POOLED}: the same coverage and half the width, by what is assumed for a launch of its own"
    headers = ("own part", *(f"{size}\n{name}" for size in IN_PAIRS for name in ("95%", "+-")))
    return Table(headers, tuple(rows), title=title, right=0)


def tables_of_runs(campaigns: Mapping[str, Campaign]) -> Iterator[Table]:
    """Scatter and coverage of launches that ran alone."""
    found = {name: alone(campaign.launches, cell) for name, campaign, cell in _cells(campaigns)}
    cells = {name: launches for name, launches in found.items() if len(launches) >= 2 * min(STRETCHES)}
    if cells:
        yield stretches(cells)


def stretches(cells: Mapping[str, Sequence[Known]]) -> Table:
    """What launches within a stretch scatter by, and what stretches deviate by as a whole."""
    rows = []
    for name, launches in cells.items():
        told = root_mean(variance_of(launch.moved) for launch in launches)
        gap = float(np.median(np.diff([launch.started for launch in launches])))
        row = [name, str(len(launches)), f"{gap:.0f}", f"{told:.0%}"]
        for length in STRETCHES:
            found = stretches_of(launches, length)
            if found is None:
                row += [""] * 4
                continue
            own = root(found.usual**2 - told**2)
            row += [f"{found.scatter:.0%}", f"{found.usual:.1%}", f"{own:.1%}", f"{found.runs / found.scatter:.1f}"]
        rows.append(tuple(row))
    of_each = [f"{length}\n{name}" for length in STRETCHES for name in ("all", "usual", "own", "run")]
    title = (
        "launches alone: seconds from one to the next (median), what their blocks predict, and of stretches of 2, "
        "4 and 6 the scatter within: of all (root mean square), the usual one (by the median, as of normal "
        f"launches), its part that blocks do not explain ({OWN_ALONE:.0%} is assumed), and what a stretch deviates "
        "by as a whole, as a multiple of the scatter of all."
    )
    return Table(("", "n", "s apart", "blocks", *of_each), tuple(rows), title=title, right=0)


def tables_of_simulations(runs: int) -> list[Table]:
    """Of launches that add more or less of their own than is expected."""
    rng = np.random.default_rng(SEED)
    rows, denied = [], []
    for told, own, launches in itertools.product(TOLD, OWN, LAUNCHES):
        side, expected = drawn(rng, runs, launches, told, own)
        found = [simulated(side, launches, expected, certainty) for certainty in CERTAINTIES]
        rows.append((f"{told:.1%}", f"{own:.1%}", str(launches), *(cell for cells in found for cell in cells)))
        if own == OWN_IN_TURNS:
            share = float((side[1] * launches > DENIED * expected).mean())
            denied.append((f"{told:.1%}", str(launches), f"{share:.1%}", f"1 in {1 / share:.1f}"))
    of_each = [f"{name}\n{certainty:g}" for certainty in CERTAINTIES for name in ("covers", "at 1 %", "+-")]
    title = (
        f"{runs} simulated runs of each kind, Huber's estimate: how often the 95 % interval covers the truth, "
        f"one-sided errors at 1 %, and half the width (median), by CERTAINTY ({CERTAINTY:g}; with 0 by the launches "
        f"alone). Blocks tell so much ({BLOCKS} of a launch), a launch adds so much of its own, and {OWN_IN_TURNS:.1%} "
        "is assumed."
    )
    deny = f"how often launches that scatter as expected show more than {DENIED:g} times that variance (DENIED)"
    return [
        Table(("blocks\ntell", "own\npart", "n", *of_each), tuple(rows), title=title, right=0),
        Table(("blocks tell", "launches", "deny", ""), tuple(denied), title=deny, right=0),
    ]


def drawn(rng: np.random.Generator, runs: int, launches: int, told: float, own: float) -> tuple[Side, Array]:
    """The centers of normal launches of no change, and what their blocks make of the variance of one."""
    samples = rng.normal(0.0, np.hypot(told, own), size=(runs, launches))
    freedom = (BLOCKS - 1) * launches
    variance = told**2 * rng.chisquare(freedom, runs) / freedom
    return centers(samples, robust=True), variance + OWN_IN_TURNS**2


def simulated(side: Side, launches: int, expected: Array, certainty: float) -> tuple[str, str, str]:
    """How often intervals cover 0, how often one side errs at 1 %, and half the width."""
    error, df = moderated(side, launches, expected, certainty)
    p = stdtr(df, -abs(side[0]) / error)
    half = [t_quantile(0.975, freedom) * width for width, freedom in zip(error[:SHOWN], df[:SHOWN], strict=True)]
    return f"{(p >= MISS).mean():.1%}", f"{(p < 0.01).mean() / 2:.1%}", f"{np.median(half):.1%}"


def moderated(side: Side, launches: int, expected: Array, certainty: float) -> tuple[Array, Array]:
    """Standard errors and degrees of freedom of many centers at once, as ``stats/centers.py`` has them."""
    _, variance, df = side
    shown = variance * launches
    assumed = certainty / np.maximum(1.0, shown / expected / DENIED)
    return np.sqrt((assumed * expected + df * shown) / (assumed + df) / launches), assumed + df


if __name__ == "__main__":
    main()
