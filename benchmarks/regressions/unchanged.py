"""How often counts call unchanged code regressed or broken: programs that are compared with themselves.

    python benchmarks/regressions/unchanged.py                       1,000 comparisons
    python benchmarks/regressions/unchanged.py --comparisons 100     by the torch of this interpreter

The programs are all versions in the corpus that a run can save, the example suite and the trainings of ``diagnosed/``.
Each is counted and saved once. Then all of them are counted again and compared, until there are as many comparisons as
asked for. Nothing is timed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.common.project import ROOT, pytest_results, write
from benchmarks.regressions.case import all_cases
from benchmarks.regressions.run import left_out, programs, project_of
from pytest_ddpperf.parsers import argument, positive_int
from pytest_ddpperf.stats.intervals import clopper_pearson

VERSIONS = ("better", "worse", "twin")
FOLDERS = (ROOT / "perf_tests", ROOT / "benchmarks" / "diagnosed")
WRONG = ("regressed", "broken")


def make(folder: Path) -> None:
    """Makes a project with a test for each program."""
    for case in all_cases().values():
        for version in VERSIONS[: 2 + bool(case.twin)] if not (case.clock or left_out(case)) else ():
            suffix = f"_{version}"
            write(folder, {**project_of([case], suffix), **programs([case], version, suffix)})
    for found in FOLDERS:
        shutil.copytree(found, folder / found.name, ignore=shutil.ignore_patterns("__pycache__"))


def wrong_of(result: dict[str, Any]) -> str:
    """Returns what is wrong with a comparison of unchanged code, in a line; empty if nothing is."""
    red = [
        f"{name} {m.get('baseline')} -> {m['value']}"
        for name, m in result.get("metrics", {}).items()
        if m["verdict"] in WRONG
    ]
    if result["verdict"] not in WRONG and not red:
        return ""
    said = "; ".join(red) or "; ".join(result.get("findings", ())) or result.get("failure", "")
    return f"{result['test']} {result['name']}: {result['verdict']}: {said}"


def compare(folder: Path, wanted: int, options: Sequence[str] = ()) -> tuple[Counter[str], list[str]]:
    """Saves all programs and compares them until there are enough comparisons; returns verdicts and what was wrong."""
    saved = pytest_results(folder, ("--ddpperf-save", *options))
    broken = {(result["test"], result["name"]) for result in saved if result["verdict"] == "broken"}
    print(f"{len(saved) - len(broken)} programs; {len(broken)} are broken and left out", flush=True)
    verdicts, wrong = Counter[str](), list[str]()
    while verdicts.total() < wanted:
        begun = time.monotonic()
        for result in pytest_results(folder, options):
            if (result["test"], result["name"]) in broken:
                continue
            verdicts[result["verdict"]] += 1
            wrong += filter(None, [wrong_of(result)])
        print(f"{verdicts.total()} comparisons, {time.monotonic() - begun:.0f} s", *wrong, sep="\n  ", flush=True)
    return verdicts, wrong


def main() -> None:
    """Prints how many comparisons were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=argument(positive_int), default=1000, help="at least so many")
    wanted = parser.parse_args().comparisons
    with tempfile.TemporaryDirectory(prefix="ddpperf-unchanged-") as aside:
        folder = Path(aside)
        make(folder)
        verdicts, wrong = compare(folder, wanted)
    print(f"torch {torch.__version__}: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    most = clopper_pearson(len(wrong), verdicts.total()).high
    print(f"wrong: {len(wrong)} of {verdicts.total()}, so at most {most:.2%} with 97.5 % confidence")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
