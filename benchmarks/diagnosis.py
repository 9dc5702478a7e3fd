"""How often the diagnosis of a step names its true bottleneck: trainings with a planted one, and the confusion matrix.

The tests in ``benchmarks/diagnosed`` have their true causes in their names: ``[data__slow_dataset]``, or two of equal
weight: ``[data_or_compute__both]``. A person who did not know the rules wrote ``test_held_out.py``, and nobody looked
at it while they were written. Another one, who knew the list of causes alone, wrote ``test_second_held_out.py``, of
which ten are scripts.

    python benchmarks/diagnosis.py
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import pytest
from tabulate import tabulate

from pytest_ddpperf.analysis.diagnosis import diagnosis_of
from pytest_ddpperf.records.finding import Diagnosis
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.reports.diagnosis import cause_text

HALVES = {"held out": "test_held_out.py", "held out, scripts": "test_second_held_out.py"}
FOLDER = Path(__file__).parent / "diagnosed"
GOAL = 0.9  # of a half
UNHEARD = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of the plugin, which this script has imported
NAME = re.compile(r"\w+\[(.+?)__")


class Gathered:
    """A pytest plugin that keeps the diagnosis of each test's last measurement."""

    def __init__(self) -> None:
        self.found: dict[str, Diagnosis | None] = {}
        self.failed: list[str] = []

    def pytest_ddpperf_measured(self, test: str, measurement: Measurement) -> None:
        """Keeps what the last measurement of a test is bound by."""
        self.found[test.rpartition("::")[2]] = diagnosis_of(measurement)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the names of tests that failed."""
        if report.failed:
            self.failed.append(report.nodeid)


def causes_of(test: str) -> set[str]:
    """The true causes in the name of a test."""
    found = NAME.match(test)
    if found is None:
        raise ValueError(f"{test}: its name tells no cause, such as [data__slow_dataset]")
    return set(found[1].split("_or_"))


def shown(half: str, found: dict[str, Diagnosis | None], *, every: bool) -> tuple[int, int]:
    """Prints one half; returns how many were right and how many there are."""
    matrix: Counter[tuple[str, str]] = Counter()
    right = unclear = 0
    for test, diagnosis in found.items():
        true = causes_of(test)
        told = "nothing" if diagnosis is None else str(diagnosis.bottleneck)
        hit = told in true
        right += hit
        unclear += told == "unclear" and not hit
        matrix[told if hit else "/".join(sorted(true)), told] += 1
        if every or not hit:
            causes = (
                "" if diagnosis is None else "; ".join(f"{p.bottleneck} {cause_text(p)}" for p in diagnosis.causes[:4])
            )
            print(f"{'right' if hit else 'WRONG'} {test}: {told}; {causes}")
    columns = sorted({told for _, told in matrix})
    rows = [[truth, *(matrix[truth, told] or "" for told in columns)] for truth in sorted({t for t, _ in matrix})]
    print(f"\n{half}: rows are true causes, columns what the diagnosis says")
    print(tabulate(rows, headers=["", *columns]))
    print(f"{half}: {right} of {len(found)} right, {unclear} unclear, {len(found) - right - unclear} wrong\n")
    return right, len(found)


def main() -> int:
    """Runs all of them; returns 1 if a test fails or a half misses the goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-k", default="", help="only tests of such names, as pytest's -k")
    parser.add_argument("--every", action="store_true", help="print what every test was told")
    options = parser.parse_args()
    status = 0
    for half, file in HALVES.items():
        gathered = Gathered()
        arguments = [str(FOLDER / file), "-q", "-p", "no:cacheprovider", "-k", options.k, *UNHEARD]
        code = pytest.main([*arguments, "--ddpperf-world-size=2"], plugins=[gathered])
        right, number = shown(half, gathered.found, every=options.every)
        status |= code != pytest.ExitCode.OK or right < GOAL * number
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
