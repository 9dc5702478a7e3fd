"""The results and messages of a run, collected while its tests run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.baselines.store import SavedRecord
    from pytest_ddpperf.judge.calibration import Calibrated
    from pytest_ddpperf.records.finding import Finding
    from pytest_ddpperf.records.measurement import Measurement
    from pytest_ddpperf.records.predictions import Predicted, StrategyAdvice
    from pytest_ddpperf.records.results import Result
    from pytest_ddpperf.records.verbs import Convergence, Search
    from pytest_ddpperf.stats.intervals import CommonChange


@dataclass(kw_only=True, slots=True)
class Stored:
    """The outcome of saving baselines; names of files are relative to the root of the project."""

    saved: list[tuple[Result, SavedRecord]] = field(default_factory=list)
    unfit: list[Result] = field(default_factory=list)  # which do not fit into memory, and whose baselines stay
    removed: list[Result] = field(default_factory=list)  # whose baselines were removed, for they do not fit any more
    failed: set[str] = field(default_factory=set)  # tests of which nothing is stored
    without_commit: str = ""  # why what is saved names no commit that has the code, and the cure


@dataclass(kw_only=True, slots=True)
class Outputs:
    """The results of tests, in the order in which they were made, and the notes on the run."""

    results: list[Result] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)  # for the largest batch
    convergences: list[Convergence] = field(default_factory=list)  # of trainings to the end
    predictions: list[Predicted] = field(default_factory=list)  # steps that were predicted and not run
    advice: list[StrategyAdvice] = field(default_factory=list)  # on how to train
    calibrated: list[Calibrated] = field(default_factory=list)
    measured: dict[str, list[Measurement]] = field(default_factory=dict)  # by test, compared with nothing
    traces: list[tuple[str, str]] = field(default_factory=list)  # tests, and lines on traces that were written
    complaints: list[str] = field(default_factory=list)  # on the session itself
    stored: Stored = field(default_factory=Stored)
    common_change: CommonChange | None = None  # of the step times of tests
    recorded: str = ""  # a line on the run's number in the history; empty without one
    accepting: bool = False  # whether the results become the baseline (--ddpperf-save)
    here: str = ""  # the commit that was measured, as it is shown; empty if none is known
    added: list[tuple[str, str]] = field(default_factory=list)  # title and text of parts that hooks add
    unmeasured: dict[str, str] = field(default_factory=dict)  # by test that could not be measured, the reason
    interrupted: str | None = None  # why the run ended before all its tests had run

    @property
    def _of_tests(self) -> tuple[list[Any], ...]:
        """All lists of results; each item has the attribute ``test``."""
        return self.results, self.searches, self.convergences, self.calibrated, self.predictions, self.advice

    @property
    def silent(self) -> bool:
        """Returns whether the terminal's summary would be empty."""
        return not any((*self._of_tests, self.recorded, self.complaints))

    @property
    def measured_text(self) -> str:
        """Returns the measurements of ``ddpperf.measure``, a line for each."""
        measured = [(test, each) for test, several in self.measured.items() for each in several]
        return "".join(
            f"ddpperf.measure: {test} {each.name}, {format_count(each.world_size, 'rank')}: {each.figure}, compared "
            "with nothing\n"
            for test, each in measured
        )

    def forget(self, test: str) -> None:
        """Removes the results of a test that runs again."""
        self.stored.failed.discard(test)
        self.measured.pop(test, None)
        self.traces[:] = [(of_test, line) for of_test, line in self.traces if of_test != test]
        for listed in self._of_tests:
            listed[:] = [each for each in listed if each.test != test]

    def remark(self, test: str, key: tuple[str, int], *findings: Finding) -> None:
        """Adds findings to the result of the test's benchmark ``key``: its name and number of ranks."""
        for i, each in enumerate(self.results):
            if (each.test, each.measurement.key) == (test, key):
                self.results[i] = replace(each, findings=(*each.findings, *findings))
