"""What counts see of public regressions: each is rebuilt as a tiny program, run by pytest, and told in a table.

    python benchmarks/regressions/run.py              all cases: writes docs/what-it-catches.md
    python benchmarks/regressions/run.py --case 7     one case, with what its failure says
    python benchmarks/regressions/run.py --missing    those that benchmarks/results/regressions.json lacks

For each case pytest saves a baseline of the better version, and then judges the worse one, a harmless twin if there is
one, and the better version by a baseline of the worse one. These runs count only: no clock decides anything. If only
times can tell a case, its versions are timed side by side, each with the commit of the other one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.common.project import RESULTS, commit, pytest_run, repository, write
from benchmarks.regressions.case import Case, Row, all_cases
from benchmarks.regressions.page import PAGE, page, table

FILE = RESULTS / "regressions.json"
SECONDS = 300.0  # for a session of pytest
TOGETHER = 4  # cases of a session
TOLD = 2000  # characters of a failure that are kept
BETTER, WORSE = "baselines", "baselines_worse"
INI = """\
[pytest]
pythonpath = .
addopts = -p no:cacheprovider -p no:randomly
ddpperf_counts = only
ddpperf_device = cpu
"""
TEST = """\
from pytest_ddpperf import Script


def test_{name}(ddpperf):
    {imported}
    ddpperf.check({subject}, samples_per_step=8, world_size={ranks}{more})
"""
TIMED = ("-o", "ddpperf_counts=on", "--ddpperf-against=HEAD", "--ddpperf-max-time=60")
FIRST = "def test_first(ddpperf):\n    ddpperf.check(lambda ctx: lambda: None, verify=False)\n"  # ranks start once


@dataclass(frozen=True)
class Judged:
    """What a session of pytest says of a case."""

    verdict: str
    red: tuple[str, ...]
    better: tuple[str, ...]
    said: str
    seconds: float


def programs(cases: Sequence[Case], version: str, suffix: str = "") -> dict[str, str]:
    """Returns the files of this version of each case's program; a case without a twin has none."""
    return {f"{case.name}{suffix}.py": getattr(case, f"{version}_text")() for case in cases}


def project_of(cases: Sequence[Case], suffix: str = "") -> dict[str, str]:
    """Returns the files of a project that has a test for each case."""
    files = {"pytest.ini": INI, "test_0_first.py": FIRST}
    for case in cases:
        name = f"{case.name}{suffix}"
        files[f"test_{name}.py"] = TEST.format(
            name=name,
            imported="" if case.script else f"import {name}\n",
            subject=f'Script("{name}.py")' if case.script else f"{name}.build",
            ranks=case.ranks,
            more=f", {case.check}" if case.check else "",
        )
    return files


def judged(folder: Path, cases: Sequence[Case], *options: str) -> dict[int, Judged]:
    """Returns what a run of pytest says of these cases."""
    names = [f"test_{case.name}" for case in cases]
    ran = pytest_run(folder, ["test_0_first.py", *(f"{name}.py" for name in names), *options], seconds=SECONDS)
    if not ran.results:
        raise RuntimeError(f"pytest ended with status {ran.status}\n{ran.printed}")
    by_test = {result["test"]: result for result in ran.results}
    found: dict[int, Judged] = {}
    for case, name in zip(cases, names, strict=True):
        test, result = ran.tests[f"{name}::{name}"], by_test.get(f"{name}.py::{name}", {})
        metrics = result.get("metrics", {})
        failure = next((part for part in test if part.tag in ("failure", "error", "skipped")), None)
        found[case.number] = Judged(
            verdict=result.get("verdict", "broken" if failure is not None else "none"),
            red=tuple(name for name, metric in metrics.items() if metric["gated"] and metric["verdict"] == "regressed"),
            better=tuple(name for name, metric in metrics.items() if metric["verdict"] == "improved"),
            said="" if failure is None else failure.text or str(failure.get("message")),
            seconds=float(str(test.get("time"))),
        )
    return found


def run(cases: Sequence[Case]) -> list[Row]:
    """Run these cases, in one session a version."""
    rows = [Row(case.number, skipped=reason) for case in cases if (reason := left_out(case))]
    rows += [run_timed(case) for case in cases if case.clock and not left_out(case)]
    cases = [case for case in cases if not (case.clock or left_out(case))]
    if not cases:
        return rows
    with tempfile.TemporaryDirectory(prefix="ddpperf-regressions-") as aside:
        folder = Path(aside)
        write(folder, {**project_of(cases), **programs(cases, "better")})
        judged(folder, cases, "--ddpperf-save", f"--ddpperf-baseline-dir={BETTER}")
        write(folder, programs(cases, "worse"))
        worse = judged(folder, cases, f"--ddpperf-baseline-dir={BETTER}")
        judged(folder, cases, "--ddpperf-save", f"--ddpperf-baseline-dir={WORSE}")
        write(folder, programs(cases, "better"))
        back = judged(folder, cases, f"--ddpperf-baseline-dir={WORSE}")
        with_twin = [case for case in cases if case.twin]
        write(folder, programs(with_twin, "twin"))
        twins = judged(folder, with_twin, f"--ddpperf-baseline-dir={BETTER}") if with_twin else {}
    return rows + [row(case, worse[case.number], back[case.number], twins.get(case.number)) for case in cases]


def run_timed(case: Case) -> Row:
    """Run a case that only times can tell, each version side by side with the commit of the other one."""
    with tempfile.TemporaryDirectory(prefix="ddpperf-regressions-") as aside:
        folder, found = Path(aside), list[Judged]()
        repository(folder, {**project_of([case]), **programs([case], "better")})
        for committed, version in (("better", "worse"), ("worse", "better")):
            write(folder, programs([case], committed))
            if found:
                commit(folder, committed)
            write(folder, programs([case], version))
            found.append(judged(folder, [case], *TIMED)[case.number])
    return replace(row(case, found[0], found[1], None), clock=True)


def row(case: Case, worse: Judged, back: Judged, twin: Judged | None) -> Row:
    """What came out, compared with what has to."""
    said = " ".join(worse.said.split())
    return Row(
        number=case.number,
        verdict=worse.verdict,
        red=worse.red,
        lacking=tuple(sorted(case.red - set(worse.red))),
        moved=tuple(sorted(case.same & set(worse.red))),
        cause=case.cause in said and worse.verdict == case.verdict,
        line=re.search(rf"\b{case.name}\.py:{case.guilty()}\b", said) is not None,
        seconds=worse.seconds,
        twin=twin.verdict if twin else "",
        twin_red=twin.red if twin else (),
        back=back.verdict,
        both=case.trade <= set(worse.better) and case.trade <= set(back.red),
        said=worse.said[:TOLD],
    )


def left_out(case: Case) -> str:
    """Why a case is not run; empty if it is."""
    missing = case.missing()
    return case.left_out or (f"needs {', '.join(missing)}" if missing else "")


def kept() -> dict[int, Row]:
    """What came out before, by number."""
    if not FILE.exists():
        return {}
    return {row["number"]: Row(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))}


def keep(rows: Sequence[Row]) -> None:
    """Put these rows into the file of results, and write the page; what ran elsewhere stays if it cannot run here."""
    before = kept()
    found = {row.number: row for row in rows if not row.skipped or row.number not in before}
    rows = [row for _, row in sorted({**before, **found}.items())]
    FILE.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(all_cases(), rows), encoding="utf-8")


def main() -> None:
    """Run what is asked for; each session's rows are kept when it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, nargs="+", help="numbers of cases; their failures are printed")
    parser.add_argument("--missing", action="store_true", help="only cases without a result")
    parser.add_argument("--page", action="store_true", help="only write the page again, from the results that are kept")
    arguments = parser.parse_args()
    if arguments.page:
        keep(())
        return
    cases = all_cases()
    wanted = [case for number, case in cases.items() if not arguments.case or number in arguments.case]
    if arguments.missing:
        done = kept()
        wanted = [case for case in wanted if case.number not in done]
    start = time.monotonic()
    for first in range(0, len(wanted), TOGETHER):
        rows = run(wanted[first : first + TOGETHER])
        keep(rows)
        if arguments.case:
            for found in rows:
                print(f"--- {found.number}\n{found.said}")
        print(table(cases, rows))
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
