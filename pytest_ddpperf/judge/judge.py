"""Between measuring and comparing: looks at what was measured so far and says how to go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.context import DecisionContext
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.judge.sequential import (
    MIN_LAUNCHES,
    Look,
    Next,
    Phase,
    State,
    advance,
    alpha_of_metric,
    next_action,
)
from pytest_ddpperf.metrics.relating import DeriveSeries
from pytest_ddpperf.records.measurement import Measurement, Spread
from pytest_ddpperf.records.results import Comparison, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings

TOLERANCE, PAIRED_TOLERANCE = 0.03, 0.015
"""The worsening that is accepted where a test sets none: less where both sides are measured in the same minutes."""


class References(Protocol):
    """What the benchmarks of one call are compared with."""

    @property
    def paired(self) -> bool:
        """Whether the reference is measured in the same rounds."""

    @property
    def timed(self) -> bool:
        """Whether any reference has times that the candidate's are compared with."""

    def of(self, measured: Sequence[Measurement]) -> Sequence[Reference]:
        """The reference of each candidate; the candidates come first in ``measured``."""


@dataclass(frozen=True)
class StoredReferences:
    """The stored baseline of each variant, in the variants' order."""

    baselines: tuple[StoredBaseline, ...]
    paired: ClassVar[bool] = False

    @property
    def timed(self) -> bool:
        """Whether any baseline that is comparable has times."""
        records = [stored.record for stored in self.baselines if stored.record is not None and not stored.differs]
        return any(series.scale != "exact" for record in records for series in record.series)

    def of(self, _measured: Sequence[Measurement]) -> Sequence[Reference]:
        """The baselines, whatever was measured."""
        return self.baselines


class Judge:
    """Follows one benchmark through its looks; ``results`` are those of the last one."""

    def __init__(
        self,
        test: str,
        settings: Settings,
        references: References,
        derive: DeriveSeries,
        tests: int = 1,
        *,
        margin: float = EQUIVALENCE_MARGIN,
        scatter: Spread | None = None,
    ) -> None:
        self.results: tuple[Result, ...] = ()
        self._test = test
        self._settings = settings
        self._references = references
        self._derive = derive
        self._tests = tests
        self._margin = margin
        self._scatter = scatter
        self._state = State(settings.launches, settings.launches)
        self._proven: dict[tuple[str, int], dict[str, int]] = {}  # by variant, as of DecisionContext
        self._suspected: Mapping[tuple[str, int], frozenset[str]] | None = None  # likewise
        self._grown: Mapping[tuple[str, int], frozenset[str]] | None = None  # worse in diagnoses that count no more

    def __call__(self, measured: tuple[Measurement, ...], look: Look) -> Next:
        """Judge the variants and say what to measure next."""
        references = self._references.of(measured)
        benchmarks = self._tests - 1 + len(references)
        affordable = self._affordable(measured, look)

        def judged(point: Measurement, reference: Reference) -> Result:
            alpha = alpha_of_metric(benchmarks, len(_judged(point)), paired=self._references.paired)
            context = DecisionContext(
                tolerance=self._tolerance,
                alpha=alpha,
                margin=self._margin,
                affordable=affordable,
                last=look.last,
                screened=look.screened,
                proven=self._proven.setdefault(point.key, {}),
                suspected=self._may_be_worse(point),
                scatter=self._scatter,
                max_time_for=lambda more: look.elapsed + more * look.round_seconds,
            )
            return replace(compare(self._test, point, reference, context), seconds=look.elapsed)

        derived = self._derive(measured[: len(references)])
        self.results = tuple(judged(point, reference) for point, reference in zip(derived, references, strict=True))
        self._state = replace(self._state, launches=len(measured[0].launches))  # time may have cut some off
        # What is accepted as the new baseline is measured for all of its time: a baseline's own error stays in every
        # comparison with it, so it is worth the launches; and what it replaces need not be confirmed to be slower.
        # Counts are what they are: no launch changes them, and none has to confirm them.
        statistical = [
            c for result in self.results for c in result.comparisons if c.gated and c.series.scale != "exact"
        ]
        if look.diagnosed:
            return self._after_diagnosis()
        self._prove(statistical)
        screening = self._state.phase is Phase.SCREEN and not self._settings.accepting
        suspects = {result.measurement.key: _suspects(result) for result in self.results} if screening else {}
        action = next_action(
            self._state,
            [] if self._settings.accepting else [c.verdict for c in statistical],
            suspects=any(suspects.values()),
            last=look.last,
            measure_on=(self._settings.accepting and bool(statistical)) or any(map(self._looks_better, statistical)),
        )
        self._state = advance(self._state, action, screened=look.screened)
        if action.action == "confirm":
            self._proven.clear()  # by launches that count no more
            self._suspected = {
                one.measurement.key: _with_kin(suspects[one.measurement.key], one) for one in self.results
            }
            return Next(action.action, action.launches, tuple(_named(suspects, self.results)))
        if self._state.phase is Phase.CLEAR and self._suspected is None and not self._settings.accepting:
            self._suspected = {}  # nothing looked worse in time
        worse = any(one.verdict is Verdict.REGRESSED for one in self.results)
        return Next(action.action, action.launches, explain=worse or self._settings.accepting)

    def _may_be_worse(self, measured: Measurement) -> frozenset[str] | None:
        """The metrics that may be found worse; what diagnoses tell all may, until fresh ones have to."""
        if self._suspected is None and self._grown is None:
            return None
        told = {kind: _metrics_where(measured, diagnosed=kind) for kind in (True, False)}
        others = told[False] if self._suspected is None else self._suspected.get(measured.key, frozenset())
        return others | (told[True] if self._grown is None else self._grown.get(measured.key, frozenset()))

    def _after_diagnosis(self) -> Next:
        """Stop, unless what diagnoses tell seems worse: fresh ones have to say so as well."""
        worse = {
            result.measurement.key: frozenset(
                one.series.metric
                for one in result.comparisons
                if one.series.rules.diagnosed and one.gated and one.verdict is Verdict.REGRESSED
            )
            for result in self.results
        }
        if not any(worse.values()) or self._grown is not None or self._settings.accepting:
            return Next("stop")
        self._grown = worse
        return Next("confirm", 1, tuple(_named({key: sorted(metrics) for key, metrics in worse.items()}, self.results)))

    def _affordable(self, measured: tuple[Measurement, ...], look: Look) -> int:
        """By how many launches a suspect is confirmed, or would have been."""
        made = len(measured[0].launches)
        if self._state.phase is Phase.CONFIRM or look.round_seconds <= 0:
            return made
        possible = int(self._settings.max_time / 2 / look.round_seconds)
        return max(possible, min(made, MIN_LAUNCHES))

    @property
    def _tolerance(self) -> float:
        if self._settings.tolerance is not None:
            return self._settings.tolerance
        return PAIRED_TOLERANCE if self._references.paired else TOLERANCE

    def _looks_better(self, comparison: Comparison) -> bool:
        """Whether a metric is shown to be no worse than another revision's, and worth measuring on.

        Beside another revision the question is what the change did, and of what is better by far this proof comes long
        before that one.
        """
        return self._references.paired and comparison.promising and comparison.verdict is Verdict.UNCHANGED

    def _prove(self, gated: Sequence[Comparison]) -> None:
        """Keep what is shown to be no worse, where the run goes on for that alone which looks better.

        It stands, whatever comes of that: without the question the run would have ended.
        """
        if any(one.verdict is Verdict.INCONCLUSIVE for one in gated):
            return
        for result in self.results:
            proven = self._proven[result.measurement.key]
            for one in result.comparisons:
                if one.gated and self._looks_better(one):
                    proven.setdefault(one.series.metric, len(result.measurement.launches))


def _suspects(result: Result) -> tuple[str, ...]:
    """The metrics that fresh launches have to tell of."""
    return tuple(
        c.series.metric
        for c in result.comparisons
        if c.gated and c.series.scale != "exact" and (c.suspicious or c.verdict is Verdict.REGRESSED)
    )


def _with_kin(suspects: Sequence[str], result: Result) -> frozenset[str]:
    """The metrics that a confirmation may find worse: those that were suspicious.

    Of what nothing made suspicious, a hard test alone would tell, and in a comparison of several variants that is most
    of what is looked at. The times of one variant are kin: a slowdown that first shows in one of them is in others too.
    """
    timed = frozenset(series.metric for series in result.measurement.series if series.rules.timed)
    return frozenset(suspects) | (timed if timed & set(suspects) else frozenset())


def _metrics_where(measured: Measurement, *, diagnosed: bool) -> frozenset[str]:
    """The metrics that launches which diagnose tell, or all others."""
    return frozenset(series.metric for series in measured.series if series.rules.diagnosed is diagnosed)


def _named(suspects: Mapping[tuple[str, int], Sequence[str]], results: Sequence[Result]) -> Iterator[str]:
    """What looked worse, and of which variant where there are several; not what repeats another's verdict."""
    repeated = {one.metric for result in results for one in result.measurement.series if one.rules.repeats_step_time}
    for (name, _), metrics in suspects.items():
        for metric in [metric for metric in metrics if metric not in repeated] or metrics:
            yield metric if len(suspects) == 1 else f"{metric} of {name}"


def _judged(measured: Measurement) -> list[str]:
    """The metrics whose scatter can raise a false alarm.

    Not those that repeat another's verdict, nor a seeded loss and memory, whose scatter is far below what is accepted.
    """
    return [one.metric for one in measured.series if one.gated and one.scale != "exact" and one.rules.alarms]
