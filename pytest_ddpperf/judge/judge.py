"""Connects measuring and judging: judges the launches so far, and decides how the measurement continues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

from pytest_ddpperf.judge import sequential
from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.decision import DecisionContext, unconfirmed
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN, AlphaLedger
from pytest_ddpperf.metrics.scaling import DeriveSeries
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Comparison, Reference, Result
from pytest_ddpperf.records.verdict import OPEN, Verdict
from pytest_ddpperf.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """The stored baselines or the other revision that one call, such as ``ddpperf.check``, compares benchmarks with."""

    paired: ClassVar[bool]  # whether candidates and references are measured in the same rounds
    derive: DeriveSeries  # derives metrics from several candidates, such as a speedup; also from their references

    def of(self, measured: Sequence[Measurement]) -> Sequence[Reference]:
        """Returns one reference for each candidate; ``measured`` has the candidates first, then other measurements."""
        raise NotImplementedError


class Judge:
    """Judges the variants of one call after each round of launches; ``results`` has the newest results."""

    def __init__(
        self,
        test: str,
        settings: Settings,
        references: References,
        tests: int = 1,
        *,
        margin: float = EQUIVALENCE_MARGIN,
    ) -> None:
        self.results: tuple[Result, ...] = ()
        self._proofs = AlphaLedger()
        # Benchmarks without ``blind_metrics`` at the last look that could prove.
        self._seeing: set[sequential.Key] = set()
        self._test, self._settings = test, settings
        self._references = references
        self._tests = tests
        self._margin = margin
        self._resolution = None if margin < EQUIVALENCE_MARGIN else settings.must_detect  # a bisection wants no ``ok``
        self._phase = sequential.Phase.SCREEN
        self._proven: dict[sequential.Key, dict[str, tuple[int, float | None]]] = {}  # as in DecisionContext
        self._suspected: Mapping[sequential.Key, frozenset[str]] | None = None  # as in DecisionContext
        # Metrics that were worse in discarded diagnoses.
        self._grown: Mapping[sequential.Key, frozenset[str]] | None = None

    def __call__(self, measured: tuple[Measurement, ...], interim: sequential.Interim) -> sequential.Action:
        """Judges the variants after some launches and returns the next action."""
        if not interim.diagnosed:
            self._proofs.begin({each.key: len(each.launches) for each in measured}, interim.over, last=interim.last)
        self.results = self._judged(measured, interim)
        if interim.diagnosed:
            return self._after_diagnosis()
        # Counts are exact: no launch changes them, and none has to confirm them.
        statistical = list(chain.from_iterable(map(sequential.of_launches, self.results)))
        self._prove(statistical)
        # A new baseline is measured for all of its time, because its error stays in every comparison with it; and
        # nothing has to confirm that it is slower than the baseline that it replaces.
        accepting = self._settings.accepting
        screening = self._phase is sequential.Phase.SCREEN and not accepting
        suspects = {
            result.measurement.key: sequential.suspicious_metrics(result) for result in self.results if screening
        }
        paired = self._references.paired
        suspected = {key for key, names in suspects.items() if names and paired}
        worse = sequential.benchmarks_of(self.results, suspects) if suspected else None
        # Benchmarks may differ in launches if time ran out; a confirmation has as many as the suspects had.
        made = max(len(each.fresh) for each in measured if not suspected or each.key in suspected)
        action = sequential.next_action(
            self._phase,
            [] if accepting else [comparison.verdict for comparison in statistical],
            launches=max(self._settings.launches, made),
            suspects=any(suspects.values()),
            last=interim.last,
            measure_on=(accepting and bool(statistical)) or any(map(self._looks_better, statistical)),
        )
        worse_now = any(each.verdict is Verdict.REGRESSED for each in statistical)
        if action.kind == "stop" and worse_now and not interim.last:
            # No other look follows, so this look may spend the rest of the error to prove other metrics no worse.
            self._proofs.spend(interim.final, last=True, over=interim.over)
            self.results = self._judged(measured, interim)
        self._phase = sequential.phase_after(action, self._phase, screened=interim.screened)
        if action.kind != "confirm":  # a confirmation discards what this look showed of times
            self._proofs.commit()
        if action.kind == "more" and paired and not accepting:
            blind = self._look_for_blind(interim)
            action = replace(action, benchmarks=sequential.undecided(self.results, self._looks_better, blind))
        if action.kind == "confirm":
            self._suspected = {
                result.measurement.key: sequential.with_related_times(suspects[result.measurement.key], result)
                for result in self.results
            }
            # Benchmarks that get no fresh launches keep their proofs.
            self._proven = {key: proven for key, proven in self._proven.items() if worse and key not in worse}
            if interim.defers:
                self.results = tuple(map(unconfirmed, self.results))
            return replace(action, suspects=tuple(sequential.named(suspects, self.results)), benchmarks=worse)
        if self._phase is sequential.Phase.CLEAR and self._suspected is None and not accepting:
            self._suspected = {}  # nothing looked worse in time
        regressed = any(result.verdict is Verdict.REGRESSED for result in self.results)
        return replace(action, explain=regressed or accepting, worse=regressed and not accepting)

    def resume(self, earlier: Judge) -> None:
        """Takes over the state of ``earlier``, the judge of the test's first run, whose launches also count now."""
        self._proofs, self._seeing, self._phase = earlier._proofs, earlier._seeing, earlier._phase
        self._proofs.keep()
        self._proven, self._suspected, self._grown = earlier._proven, earlier._suspected, earlier._grown

    def _look_for_blind(self, interim: sequential.Interim) -> dict[sequential.Key, list[Comparison]]:
        """Returns the metrics of each benchmark that are too uncertain to show a slowdown; empty without a budget."""
        if not interim.shared:
            return {}
        blind = {result.measurement.key: sequential.blind_metrics(result) for result in self.results}
        could_see = {key for key in blind if self._proofs[key].proves}
        self._seeing = (self._seeing - could_see) | {key for key in could_see if not blind[key]}
        return {key: [] if key in self._seeing else metrics for key, metrics in blind.items()}

    def _judged(self, measured: tuple[Measurement, ...], interim: sequential.Interim) -> tuple[Result, ...]:
        """Returns the results of the candidates, which come first in ``measured``."""
        references = self._references.of(measured)
        derived = self._references.derive(measured[: len(references)])
        results = []
        for candidate, reference in zip(derived, references, strict=True):
            context = self._context(candidate, interim, len(references))
            results.append(replace(compare(self._test, candidate, reference, context), seconds=interim.elapsed))
        return tuple(results)

    def _context(self, candidate: Measurement, interim: sequential.Interim, benchmarks: int) -> DecisionContext:
        weights = math.fsum(
            series.rules.weight
            for series in candidate.series
            if series.gated and series.scale != "exact" and not series.rules.repeats_step_time
        )
        seconds = max(interim.round_seconds, interim.of_each.get(candidate.key, 0.0))
        return DecisionContext(
            tolerance=self._settings.tolerance,
            gross=self._settings.gross,
            alpha=sequential.alpha_of_benchmark(self._tests - 1 + benchmarks, paired=self._references.paired),
            weights=weights,
            proofs=self._proofs[candidate.key],
            margin=self._margin,
            resolution=self._resolution,
            affordable=self._affordable(candidate, interim),
            last=interim.last,
            proven=self._proven.setdefault(candidate.key, {}),
            suspected=self._may_be_worse(candidate),
            max_time_for=None  # no setting extends the time that a session's budget deals out
            if interim.shared
            else lambda more: interim.before + interim.elapsed + more * seconds,
        )

    def _may_be_worse(self, measured: Measurement) -> frozenset[str] | None:
        """Returns the metrics that may get ``regressed``, because they looked worse before; None for all metrics."""
        if self._suspected is None and self._grown is None:
            return None
        diagnosed = frozenset(series.metric for series in measured.series if series.rules.diagnosed)
        others = frozenset(measured) - diagnosed
        return (others if self._suspected is None else self._suspected.get(measured.key, frozenset())) | (
            diagnosed if self._grown is None else self._grown.get(measured.key, frozenset())
        )

    def _after_diagnosis(self) -> sequential.Action:
        """Returns the action after a diagnosis, which measures phases: stop, or diagnose again for confirmation."""
        worse = {
            result.measurement.key: [
                comparison.series.metric
                for comparison in result.comparisons
                if comparison.series.rules.diagnosed and comparison.gated and comparison.verdict is Verdict.REGRESSED
            ]
            for result in self.results
        }
        if not any(worse.values()) or self._grown is not None or self._settings.accepting:
            return sequential.STOP
        self._grown = {key: frozenset(metrics) for key, metrics in worse.items()}
        suspects = sequential.named({key: sorted(metrics) for key, metrics in worse.items()}, self.results)
        return sequential.Action("confirm", 1, tuple(suspects))

    def _affordable(self, measured: Measurement, interim: sequential.Interim) -> int:
        """Returns how many launches a verdict ``regressed`` could use if measuring continues until the time is up.

        If the reference does not run in the same rounds, only launches after the first suspicion of a slowdown count.
        """
        paired = self._references.paired
        made = len(measured.launches) - (0 if paired else measured.fresh_from)
        if self._phase is sequential.Phase.CONFIRM:
            return made
        return (
            made + interim.rounds if paired else max((made + interim.rounds) // 2, min(made, sequential.MIN_LAUNCHES))
        )

    def _looks_better(self, comparison: Comparison) -> bool:
        """Returns whether a metric is proven no worse and looks better, so that more launches may prove it improved."""
        return self._references.paired and comparison.promising and comparison.verdict is Verdict.UNCHANGED

    def _prove(self, gated: Sequence[Comparison]) -> None:
        """Records the metrics that look better and are proven no worse, unless another metric is undecided."""
        if any(comparison.verdict in OPEN for comparison in gated):
            return
        for result in self.results:
            proven = self._proven[result.measurement.key]
            for comparison in result.comparisons:
                if comparison.gated and self._looks_better(comparison):
                    launches = len(result.measurement.launches)
                    proven.setdefault(comparison.series.metric, (launches, comparison.bound))
