"""What the reports say of random faults: are they in time, do they name the guilty rank and the right reason.

    python benchmarks/faults.py run --cases 320 --seed 1
    python benchmarks/faults.py run --seed 1 --case 17
    python benchmarks/faults.py suites --cases 500 --seed 1
    python benchmarks/faults.py report faults.jsonl
    python benchmarks/faults.py endure --launches 500 --world-sizes 16 64

Each case is a kind of fault in a phase of a launch, on a rank of 2 to 4; seed and number tell them all. ``run`` has a
launch or a pytest session for each, ``suites`` has 20 faulty tests in each session, with a good test after each. It
needs root: workers have namespaces of their own, with small file systems for /dev/shm and temporary files, so that
nothing can be left unseen. ``report`` prints the table. ``endure`` needs no root: it prints what many launches of one
session, and launches of many ranks, take and leave. The status is 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.campaign

from benchmarks.campaign.endurance import endured
from benchmarks.campaign.kinds import Case, drawn
from benchmarks.campaign.report import line, printed
from benchmarks.campaign.suites import drawn_in_suite
from benchmarks.campaign.verdicts import Verdict
from benchmarks.campaign.worker import work, work_on_suites

CASES = {"run": "run each case by itself", "suites": "run cases in pytest sessions of 20"}
DRAWS = {"run": drawn, "suites": drawn_in_suite}
WORK = {"run": work, "suites": work_on_suites}


def run(options: argparse.Namespace) -> None:
    numbers = options.case or list(range(options.first, options.first + options.cases))
    draw = DRAWS[options.verb]
    if options.kind:
        numbers = [number for number in numbers if draw(options.seed, number).kind in options.kind]
    output = Path(options.output).resolve()
    own = [Path(f"{output}.{worker}") for worker in range(options.workers)]
    isolated = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", sys.executable]
    workers = [
        subprocess.Popen(
            [
                *isolated,
                __file__,
                "work",
                f"--of={options.verb}",
                f"--seed={options.seed}",
                f"--output={file}",
                *map(str, numbers[worker :: options.workers]),
            ]
        )
        for worker, file in enumerate(own)
    ]
    for worker in workers:
        worker.wait()
    with output.open("a", encoding="utf-8") as file:
        for part in own:
            file.write(part.read_text(encoding="utf-8"))
            part.unlink()
    report(argparse.Namespace(files=[str(output)]))


def work_here(options: argparse.Namespace) -> None:
    for verdict in WORK[options.of](options.seed, options.numbers, Path(options.output)):
        print(line(verdict), flush=True)


def report(options: argparse.Namespace) -> None:
    verdicts = []
    for name in options.files:
        for text in Path(name).read_text(encoding="utf-8").splitlines():
            fields = json.loads(text)
            verdicts.append(Verdict(**{**fields, "case": Case(**fields["case"])}))
    for text in printed(sorted(verdicts, key=lambda verdict: (verdict.case.seed, verdict.case.number))):
        print(text)
    if not all(verdict.good for verdict in verdicts):
        sys.exit(1)


def endure(options: argparse.Namespace) -> None:
    holds = True
    for text, good in endured(options.launches, options.world_sizes):
        print(text if good else f"{text}: DOES NOT HOLD", flush=True)
        holds = holds and good
    sys.exit(not holds)


def listed(options: argparse.Namespace) -> None:
    for number in range(options.cases):
        print(DRAWS[options.of](options.seed, number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="run|suites|report|endure|list", dest="verb")
    for verb, cases in CASES.items():
        _add_run(verbs.add_parser(verb, help=f"{cases}, and print the table"))
    working = verbs.add_parser("work")
    working.add_argument("--of", choices=CASES)
    working.add_argument("--seed", type=int, required=True)
    working.add_argument("--output", required=True)
    working.add_argument("numbers", type=int, nargs="*")
    working.set_defaults(command=work_here)
    reporting = verbs.add_parser("report", help="print the table of these files")
    reporting.add_argument("files", nargs="+")
    reporting.set_defaults(command=report)
    enduring = verbs.add_parser("endure", help="launch often, and many ranks")
    enduring.add_argument("--launches", type=int, default=500, help="launches of two ranks (default: %(default)s)")
    enduring.add_argument("--world-sizes", type=int, nargs="*", default=[16, 64], help="ranks (default: 16 64)")
    enduring.set_defaults(command=endure)
    listing = verbs.add_parser("list", help="print the first cases of a seed")
    listing.add_argument("--of", choices=CASES, default="run")
    listing.add_argument("--cases", type=int, default=320)
    listing.add_argument("--seed", type=int, default=1)
    listing.set_defaults(command=listed)
    options = parser.parse_args()
    options.command(options)


def _add_run(running: argparse.ArgumentParser) -> None:
    running.add_argument("--cases", type=int, default=320, help="number of cases (default: %(default)s)")
    running.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    running.add_argument("--case", type=int, nargs="*", help="these cases alone")
    running.add_argument("--kind", nargs="*", help="of all cases those of these kinds")
    running.add_argument("--seed", type=int, default=1, help="what cases are drawn by (default: %(default)s)")
    running.add_argument("--workers", type=int, default=2, help="cases at a time (default: %(default)s)")
    running.add_argument("--output", default="faults.jsonl", help="file that verdicts are added to (%(default)s)")
    running.set_defaults(command=run)


if __name__ == "__main__":
    main()
