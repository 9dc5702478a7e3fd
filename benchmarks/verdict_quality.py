"""How far the verdicts can be trusted: false alarms and finds on recorded launches, beside the rules of other tools.

    python benchmarks/verdict_quality.py gather --data launches.jsonl.gz
    python benchmarks/verdict_quality.py judge --data launches.jsonl.gz

``gather`` runs launches of real training steps (DDP, gloo), unchanged and made slower in known ways, and keeps what it
measured; it may be called again to add more. ``judge`` puts what was gathered through the code that judges, and
through the rules of other tools, and prints the rates of each. So a changed rule is judged on the same data at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

SHORT, LONG = 10, 600  # minutes


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well
    options = _parser().parse_args()
    from benchmarks.quality.launches import BrokenFile
    from pytest_ddpperf.errors import DdpperfError

    try:
        options.command(options)
    except (BrokenFile, DdpperfError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; what was written so far can be judged, and added to")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="gather|judge")
    gather = verbs.add_parser("gather", help="measure launches and keep them")
    gather.add_argument("--data", type=Path, required=True, help="the file; if it is there, launches are added")
    gather.add_argument("--minutes", type=float, help="how long (default: 10, or 600 with --long)")
    gather.add_argument("--long", action="store_true", help="four ranks as well as two, and ten hours")
    gather.add_argument("--lengths", nargs="+", metavar="NAME", help="of steps (default: all: 4ms 12ms 78ms)")
    gather.add_argument("--ranks", nargs="+", type=int, metavar="N", help="sizes of groups (default: 2, --long: 2 4)")
    gather.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    gather.set_defaults(command=_gather)
    judge = verbs.add_parser("judge", help="judge what was gathered")
    judge.add_argument("--data", type=Path, required=True, help="the file that gather has written")
    judge.add_argument(
        "--comparisons", type=int, default=400, help="resampled ones of each rule and condition (default: %(default)s)"
    )
    judge.add_argument("--seed", type=int, default=0, help="of the resampling (default: %(default)s)")
    judge.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    judge.set_defaults(command=_judge)
    return parser


def _gather(options: argparse.Namespace) -> None:
    from benchmarks.quality.conditions import CONDITIONS, LENGTHS, OF_CAMPAIGNS
    from benchmarks.quality.gather import Wanted, gather
    from benchmarks.quality.launches import Cell
    from pytest_ddpperf.errors import SettingError

    lengths = options.lengths or list(OF_CAMPAIGNS)
    unknown = [name for name in lengths if name not in LENGTHS]
    if unknown:
        raise SettingError(f"--lengths {unknown[0]}: there are {', '.join(LENGTHS)}")
    sizes = options.ranks or ([2, 4] if options.long else [2])
    if min(sizes) < 2:
        raise SettingError(f"--ranks {min(sizes)}: a group has two ranks or more")
    minutes = options.minutes or (LONG if options.long else SHORT)
    cells = tuple(Cell(length, ranks) for length in lengths for ranks in sizes)
    wanted = Wanted(cells, tuple(CONDITIONS.values()), 60 * minutes, options.seed)
    gather(options.data, wanted, environ=dict(os.environ))


def _judge(options: argparse.Namespace) -> None:
    from benchmarks.quality.judging import judged
    from benchmarks.quality.launches import read
    from benchmarks.quality.report import document, report
    from pytest_ddpperf.errors import SettingError

    if options.comparisons < 1:
        raise SettingError(f"--comparisons {options.comparisons}: a rate takes one or more")
    found = judged(read(options.data), options.comparisons, options.seed)
    print(report(found))
    if options.json is not None:
        import json

        options.json.write_text(json.dumps(document(found), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
