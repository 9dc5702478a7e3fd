"""What the reports say of random faults: are they in time, do they name the guilty rank and the right reason.

    python benchmarks/faults.py run --cases 500 --seed 1
    python benchmarks/faults.py run --seed 1 --case 17
    python benchmarks/faults.py sessions --cases 60 --seed 1
    python benchmarks/faults.py report faults.jsonl

Each case is a kind of fault in a phase of a launch, on a rank of 2 to 4; seed and number tell them all. ``run`` has 20
faulty tests in each pytest session, with a good test after each. ``sessions`` attacks pytest itself, its files and its
checkouts, in a session for each; it also leaves files of another user, damages a file that a command reads, and gives
hostile names to tests, files and branches. Both need root: workers have namespaces of their own, with small file
systems for /dev/shm and temporary files, so that nothing is left unseen. The status is 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.campaign

from benchmarks.campaign.cases import drawn
from benchmarks.campaign.kinds import Case
from benchmarks.campaign.verdicts import Verdict, line, printed
from benchmarks.campaign.worker import work

VERBS = {"run": "run faults of ranks", "sessions": "run attacks on sessions and commands"}


def run(options: argparse.Namespace) -> None:
    numbers = options.case or list(range(options.cases))
    if options.kind:
        sessions = options.verb == "sessions"
        numbers = [number for number in numbers if drawn(options.seed, number, session=sessions).kind in options.kind]
    output = Path(options.output).resolve()
    own = [Path(f"{output}.{worker}") for worker in range(options.workers)]
    isolated = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", sys.executable]
    workers = []
    for worker, part in enumerate(own):
        given = [f"--of={options.verb}", f"--seed={options.seed}", f"--output={part}"]
        given += map(str, numbers[worker :: options.workers])
        workers.append(subprocess.Popen([*isolated, __file__, "work", *given]))
    for process in workers:
        process.wait()
    with output.open("a", encoding="utf-8") as file:
        for part in own:
            file.write(part.read_text(encoding="utf-8"))
            part.unlink()
    report(argparse.Namespace(files=[str(output)]))


def work_here(options: argparse.Namespace) -> None:
    for verdict in work(options.seed, options.numbers, Path(options.output), sessions=options.of == "sessions"):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="run|sessions|report", dest="verb")
    for verb, words in VERBS.items():
        running = verbs.add_parser(verb, help=f"{words}, and print the table")
        running.add_argument("--cases", type=int, default=500, help="number of cases (default: %(default)s)")
        running.add_argument("--case", type=int, nargs="*", help="these cases alone")
        running.add_argument("--kind", nargs="*", help="of all cases those of these kinds")
        running.add_argument("--seed", type=int, default=1, help="what cases are drawn by (default: %(default)s)")
        running.add_argument("--workers", type=int, default=2, help="cases at a time (default: %(default)s)")
        running.add_argument("--output", default="faults.jsonl", help="file that verdicts are added to (%(default)s)")
        running.set_defaults(command=run)
    working = verbs.add_parser("work")
    working.add_argument("--of", choices=VERBS)
    working.add_argument("--seed", type=int, required=True)
    working.add_argument("--output", required=True)
    working.add_argument("numbers", type=int, nargs="*")
    working.set_defaults(command=work_here)
    reporting = verbs.add_parser("report", help="print the table of these files")
    reporting.add_argument("files", nargs="+")
    reporting.set_defaults(command=report)
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
