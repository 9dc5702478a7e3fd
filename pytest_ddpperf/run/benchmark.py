"""One call of a verb that measures: its variants launched in rounds, until somebody is content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pytest_ddpperf.instruments.health import watch_health
from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.reports.progress import progress_line
from pytest_ddpperf.run.passes import Passes
from pytest_ddpperf.run.rounds import measure
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.run.terms import Observer, Progress
from pytest_ddpperf.run.variant import Variant, counted_only
from pytest_ddpperf.settings import Settings

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches

JudgeCall: TypeAlias = "Callable[[tuple[Measurement, ...], Look], Next]"


class BenchmarkRun:
    """One call of a verb of the fixture.

    Attributes:
        measured: what it has measured so far, of the candidate.
        passes: its launches.

    Args:
        session: launches, and keeps results.
        test: pytest node id.
        settings: of the call.
        sections: titles and texts for the test's report.
        paired: the launches of both sides, where the call is held against another revision; else None.
    """

    def __init__(
        self,
        session: Session,
        test: str,
        settings: Settings,
        sections: list[tuple[str, str]],
        paired: PairedLaunches | None = None,
    ) -> None:
        self.measured: tuple[Measurement, ...] = ()
        self._session = session
        self._test = test
        self._settings = settings
        self._sections = sections
        self._paired = paired
        self.passes = Passes(session, test, settings, sections, paired)

    def measure(
        self, variants: Sequence[Variant], judge: JudgeCall, which: str = "", *, compared: bool = True
    ) -> tuple[Measurement, ...]:
        """Measures prepared variants side by side until the judge is content."""
        __tracebackhide__ = True
        if self._settings.counted_only:
            measurements = tuple(map(counted_only, variants))
            judge(measurements, Look(0.0, 0.0, last=True))
            self.measured = _of_candidate(variants, measurements)
            return measurements
        variants = self.passes.profiled(variants)
        observer = Observer(
            judge,
            lambda progress: self._show(f"{variants[0].name}{which}", progress),
            watch=lambda: watch_health(self._session.ranks_parents, gpus=variants[0].environment.device == "cuda"),
            settled=self.passes.keep,
        )
        with self.passes.shown():
            self.passes.ready()
            budget = self.passes.budget(compared=compared)
            measurements = measure(variants, budget, self.passes.timed(), observer)
        self.measured = _of_candidate(variants, measurements)
        return measurements

    def _show(self, what: str, progress: Progress) -> None:
        name = f"{self._test} {what}"
        self._session.line.show(progress_line(name, progress.launch, progress.of, progress.elapsed, progress.expected))


def _of_candidate(variants: Sequence[Variant], measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return tuple(measured for variant, measured in zip(variants, measurements, strict=True) if not variant.of_reference)
