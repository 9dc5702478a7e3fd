"""How often verdicts are right on launches whose noise is known, by simulation.

    python benchmarks/decision.py
    python benchmarks/decision.py --max-time 20

Made-up launches go through the very code that judges real ones, beside a stored baseline and side by side: unchanged,
slower in known ways, and (side by side) faster, on machines where launches scatter by 1 to 5 %, with and without some
that are disturbed, and on two about as noisy as two cores of a shared virtual one, where alone CPU times are known.
Each comparison has launches of its own, so that the 95 % intervals (Clopper-Pearson) rest on all of them. A launch
takes 0.3 s to start and times 80 steps of 12.5 ms, side by side 40, whose noise is 5 % where nothing else is said;
beside a stored baseline either run deviates as a whole by 1 %, which is what verdicts take for granted, and alike in
all of its steps, so that their tail does not. Memory and losses are the same in all launches. Real runs have fewer
launches in their time, for the first ones are also asked where time goes; what they are like,
benchmarks/verdict_quality.py and benchmarks/against.py tell.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

COMPARISONS = 250


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; the processes of a pool get it as well
    options = _parser().parse_args()
    from benchmarks.quality.decisions import MAX_TIME, MORE, document, machine_text, simulated

    max_time = MAX_TIME if options.max_time is None else options.max_time

    print(
        f"{options.comparisons} comparisons for each rate, {MORE * options.comparisons} of what is unchanged; "
        f"max_time {max_time:g} s; seconds, launches and what could have been seen are medians",
        flush=True,
    )
    found = []
    for machine, tallies in simulated(options.comparisons, options.seed, options.processes, max_time):
        found.append((machine, tallies))
        print(f"\n{machine_text(machine, tallies)}", flush=True)
    if options.json is not None:
        import json

        data = document(found, options.comparisons, options.seed, max_time)
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--comparisons", type=_positive, default=COMPARISONS, help="for each rate (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: %(default)s)")
    parser.add_argument("--max-time", type=float, metavar="S", help="of a benchmark (default: the plugin's own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    parser.add_argument(
        "--processes",
        type=_positive,
        default=len(os.sched_getaffinity(0)),
        help="at a time (default: the usable cores)",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: takes one or more")
    return number


if __name__ == "__main__":
    main()
