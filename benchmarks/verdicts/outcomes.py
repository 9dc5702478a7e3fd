"""What a real run came to, as far as the tables need it, and the file that keeps it: a JSON object a line."""

from __future__ import annotations

import json
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.quality.project import BrokenFile
from benchmarks.quality.steps import Calibration
from benchmarks.verdicts.cells import Cell, Goal
from benchmarks.verdicts.programs import SAMPLES

QUIET = 0.10  # of the cores, that others may use
WITHIN = 0.01  # of what the result's own step times say
GREEN = ("unchanged", "ok", "improved")
RED = ("regressed", "broken")
LONG = "times as long as the median step"  # in a finding on long steps


@dataclass(frozen=True)
class Ran(ABC):
    """What is kept of every run; shares are fractions, and times seconds."""

    cell: str
    number: int  # of the run in its cell, which decides its programs
    tree: str  # of the package, as git names it
    machine: str  # the environment's key
    began: str  # UTC, ISO 8601
    seconds: float  # with start-up and all that is not measuring
    left_out: str = ""  # why the run does not count
    others: float | None = None  # share of the cores that other processes took
    others_saved: float | None = None  # the same of the run that saved the baseline
    said: str = ""  # by pytest, or by the report

    @property
    def counts(self) -> bool:
        """Whether it counts in its cell."""
        return not self.left_out

    @property
    @abstractmethod
    def summary(self) -> str:
        """What it came to, in a few words."""

    @abstractmethod
    def tally(self, goal: Goal) -> tuple[int, int]:
        """In how many cases it came to what a goal is about, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Outcome(Ran):
    """One comparison of two programs; changes are those of the step time, and ``others`` those of the median launch."""

    verdict: str  # none if there was none; ``said`` tells why
    programs: Mapping[str, Any] = field(default_factory=dict)  # of what is compared, where not by default
    red: Sequence[str] = ()  # gated metrics
    change: float | None = None
    true: float | None = None  # by the means of all timed steps of both sides
    bound: float | None = None
    mde: float | None = None
    paired: bool = False
    launches: int = 0
    steps: int = 0  # timed, of a launch
    measuring: float = 0.0
    apart: Sequence[float] = ()  # by how much step time and throughput differ from what its own step times say
    long: bool = False  # whether the report tells of long steps

    @property
    def is_red(self) -> bool:
        """Whether the test failed for the benchmark's own verdict."""
        return self.verdict in RED

    @property
    def is_green(self) -> bool:
        """Whether it was shown to be no slower, or said to be ok."""
        return self.verdict in GREEN

    @property
    def agrees(self) -> bool:
        """Whether what is told agrees with the result's own step times."""
        return all(apart <= WITHIN for apart in self.apart)

    @property
    def summary(self) -> str:
        """What it came to, in a few words."""
        return self.verdict if self.true is None else f"{self.verdict}, truly {self.true:+.1%}"

    def tally(self, goal: Goal) -> tuple[int, int]:
        """Whether it came to what a goal is about, of one case."""
        return int(self.is_red if goal.what == "red" else self.is_green), 1


@dataclass(frozen=True, kw_only=True)
class SuiteOutcome(Ran):
    """One run of the example suite.

    Launches of several benchmarks that take turns do not know what others took: ``others`` are those of all of pytest.
    """

    verdicts: Mapping[str, str] = field(default_factory=dict)  # of benchmarks in which nothing was planted
    planted: Mapping[str, str] = field(default_factory=dict)  # verdicts by test; none if there was none
    true: Mapping[str, float] = field(default_factory=dict)  # by test, how much slower the planted one truly is
    took: float | None = None  # until pytest ended, without the clone and the run that saves; None without results

    @property
    def red(self) -> list[str]:
        """Benchmarks that failed though nothing was planted in them."""
        return [name for name, verdict in self.verdicts.items() if verdict in RED]

    @property
    def green(self) -> list[str]:
        """Benchmarks that were shown to be no slower, or said to be ok."""
        return [name for name, verdict in self.verdicts.items() if verdict in GREEN]

    @property
    def open(self) -> list[str]:
        """All other benchmarks in which nothing was planted."""
        return [name for name, verdict in self.verdicts.items() if verdict not in (*RED, *GREEN)]

    @property
    def missed(self) -> list[str]:
        """The tests whose planted slowdown was not found; a broken one shows nothing."""
        return [test for test, verdict in self.planted.items() if verdict != "regressed"]

    @property
    def summary(self) -> str:
        """What it came to, in a few words."""
        found = len(self.planted) - len(self.missed)
        planted = f", {found} of {len(self.planted)} planted found" if self.planted else ""
        return f"{len(self.red)} red, {len(self.green)} green, {len(self.open)} open{planted}"

    def tally(self, goal: Goal) -> tuple[int, int]:
        """How many benchmarks are what a goal is about; of the test or of the seconds that it names, of one case.

        A run without results counts as one benchmark without a verdict.
        """
        if goal.seconds is not None:
            return int(self.took is not None and self.took <= goal.seconds), 1
        if goal.test:
            return int(goal.test in self.planted and goal.test not in self.missed), 1
        return len(self.red if goal.what == "red" else self.green), len(self.verdicts) or 1


def told(result: Mapping[str, Any], samples: int = SAMPLES) -> dict[str, Any]:
    """What the result of a run says, in fields of an outcome; ``samples``: of a step of each of two ranks."""
    metrics, steps = result["metrics"], [times for times in result["step_times"] if times]
    step, throughput = metrics.get("step_time", {}), metrics.get("throughput")
    if not steps or not step:
        return {"verdict": result["verdict"], "said": "; ".join(result["findings"])[-500:]}
    mean = _mean(steps)
    told_values = [(step["value"], mean), *([] if throughput is None else [(throughput["value"], 2 * samples / mean)])]
    base = [sample for sample in step.get("baseline_samples", ()) if sample]
    return {
        "verdict": result["verdict"],
        "red": [name for name, each in metrics.items() if each["gated"] and each["verdict"] == "regressed"],
        "change": step.get("change"),
        "true": mean / statistics.fmean(base) - 1 if base else None,
        "bound": step.get("bound"),
        "mde": step.get("mde"),
        "paired": bool(step.get("paired")),
        "launches": result["launches"],
        "steps": len(steps[0]),
        "measuring": result["seconds"],
        "others": others_of(result),
        "apart": [abs(value / own - 1) for value, own in told_values],
        "long": any(LONG in finding for finding in result["findings"]),
    }


def _mean(launches: Sequence[Sequence[float]]) -> float:
    return math.fsum(map(math.fsum, launches)) / sum(map(len, launches))


def suite_told(results: Sequence[Mapping[str, Any]], planted: Sequence[str] = ()) -> dict[str, Any]:
    """What the results of the example suite say, in fields of an outcome; ``planted``: the tests that are slower."""
    tests = {test: result for result in results for test in planted if result["test"].endswith(f"::{test}")}
    others = [result for result in results if not any(result is each for each in tests.values())]
    slower = {test: told(result).get("true") for test, result in tests.items()}
    return {
        "verdicts": {f"{each['test']} {each['name']} w{each['world_size']}": each["verdict"] for each in others},
        "planted": {test: tests[test]["verdict"] if test in tests else "none" for test in planted},
        "true": {test: true for test, true in slower.items() if true is not None},
        "said": "\n".join(map(_why_red, (each for each in others if each["verdict"] in RED)))[-2000:],
    }


def _why_red(result: Mapping[str, Any]) -> str:
    """A red benchmark, with the gated metrics that are worse and their changes, or else with what was found."""
    worse = {name: each for name, each in result["metrics"].items() if each["gated"] and each["verdict"] in RED}
    changes = {name: f" {each['change']:+.3g}" if "change" in each else "" for name, each in worse.items()}
    metrics = [f"{name}{changes[name]} {each['note']}".strip() for name, each in worse.items()]
    return f"{result['test']} {result['name']}: {'; '.join(metrics or result['findings'])}"


def others_of(result: Mapping[str, Any]) -> float | None:
    """The share of the cores that others and a hypervisor took, of the median launch; None if nothing tells it."""
    seen = [each["cpu"] for each in result.get("health") or [] if each is not None and each.get("cpu")]
    shares = [cpu["others"] + (cpu["steal"] or 0.0) for cpu in seen if cpu["others"] is not None]
    return statistics.median(shares) if shares else None


def why_left_out(cell: Cell, outcome: Ran) -> str:
    """Why a run does not count in its cell; empty if it does. A run without a verdict counts."""
    for busy, others, when in (
        (cell.busy, outcome.others, "compared"),
        (cell.saved_busy, outcome.others_saved, "saved"),
    ):
        if busy is False and others is not None and others > QUIET:
            return f"not quiet: others used {others:.0%} of the cores while it was {when}"
    true = outcome.true if isinstance(outcome, Outcome) else None
    if cell.least is not None and true is not None and true < cell.least:
        return f"its mean step is {true:+.1%}: it takes {cell.least:+.0%}"
    return ""


@dataclass(frozen=True)
class Kept:
    """What a file holds."""

    outcomes: tuple[Ran, ...] = ()
    calibrations: Mapping[tuple[str, str], Calibration] = field(default_factory=dict)  # by machine and length

    def of(self, cell: str, tree: str) -> list[Ran]:
        """The runs of a cell by one tree, those that do not count too."""
        return [each for each in self.outcomes if (each.cell, each.tree) == (cell, tree)]


def read(file: Path) -> Kept:
    """What was written so far; nothing if there is no file. A last line that was cut off is left out."""
    if not file.exists():
        return Kept()
    outcomes: list[Ran] = []
    calibrations: dict[tuple[str, str], Calibration] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            data = json.loads(line)
            if "calibration" in data:
                calibrations[data["machine"], data["calibration"]] = Calibration(data["step"], data["product"])
            else:
                outcomes.append(_outcome_from(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokenFile(f"{file}, line {number}: not a real run: {type(error).__name__}: {error}") from None
    return Kept(tuple(outcomes), calibrations)


def _outcome_from(data: Mapping[str, Any]) -> Ran:
    """A run as it was written, other fields apart; what compares two programs has one verdict."""
    kind = Outcome if "verdict" in data else SuiteOutcome
    names = {column.name for column in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in names})


def append(file: Path, outcome: Ran) -> None:
    """Add a run."""
    defaults = {column.name: column.default for column in fields(outcome)}
    found = {
        name: value for name, value in asdict(outcome).items() if value != defaults[name] and value not in ([], {})
    }
    _append(file, {name: _rounded(value) for name, value in found.items()})


def append_calibration(file: Path, machine: str, length: str, calibration: Calibration) -> None:
    """Add what steps of a length take on a machine."""
    _append(file, {"calibration": length, "machine": machine, **asdict(calibration)})


def _append(file: Path, data: Mapping[str, Any]) -> None:
    """Add a line, in place of one that was cut off."""
    with file.open("ab+") as out:
        out.seek(0)
        out.truncate(out.read().rfind(b"\n") + 1)
        out.write(json.dumps(data, separators=(",", ":")).encode() + b"\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
