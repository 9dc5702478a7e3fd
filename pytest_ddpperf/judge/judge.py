"""Between measuring and comparing: looks at what was measured so far and says how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.decision import MARGIN
from pytest_ddpperf.judge.rules import Rules
from pytest_ddpperf.judge.sequential import (
    FEWEST_LAUNCHES,
    Look,
    Next,
    Phase,
    State,
    advance,
    alpha_of_metric,
    next_action,
)
from pytest_ddpperf.metrics.relating import Relate
from pytest_ddpperf.metrics.table import BY_DIAGNOSES, FINAL_LOSS, METRICS, PARTNERED, REPEATED, TIMED
from pytest_ddpperf.records.measurement import Measurement, Spread
from pytest_ddpperf.records.results import Comparison, Found, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings

Partners: TypeAlias = "Callable[[tuple[Measurement, ...]], Sequence[Found]]"


TOLERANCE, SIDE_BY_SIDE_TOLERANCE = 0.03, 0.015
"""The worsening that is accepted where a test sets none: less where both sides are measured in the same minutes."""


class Judge:
    """Follows one benchmark through its looks; ``results`` are those of the last one.

    Args:
        test: pytest node id.
        settings: of the test.
        found: the baseline of each variant, in the variants' order; or what makes one of the measurements that follow
            those of the variants: of the same benchmarks under another revision.
        relate: adds to measurements what they amount to side by side: efficiency, speedup.
        tests: of the whole suite, which has so many benchmarks or more: they share the false alarms.
        margin: times the tolerance: as of ``decide``.
        scatter: as of ``Rules``.
    """

    def __init__(
        self,
        test: str,
        settings: Settings,
        found: Sequence[Found] | Partners,
        relate: Relate,
        tests: int = 1,
        *,
        margin: float = MARGIN,
        scatter: Spread | None = None,
    ) -> None:
        self.results: tuple[Result, ...] = ()
        self._test = test
        self._settings = settings
        self._found = found
        self._relate = relate
        self._tests = tests
        self._margin = margin
        self._scatter = scatter
        self._state = State(settings.launches, settings.launches)
        self._proven: dict[tuple[str, int], dict[str, int]] = {}  # by variant, as of Rules
        self._suspected: Mapping[tuple[str, int], frozenset[str]] | None = None  # likewise
        self._grown: Mapping[tuple[str, int], frozenset[str]] | None = None  # worse in diagnoses that count no more

    def __call__(self, measured: tuple[Measurement, ...], look: Look) -> Next:
        """Judge the variants and say what to measure next."""
        bases = self._found(measured) if callable(self._found) else self._found
        benchmarks = self._tests - 1 + len(bases)
        affordable = self._affordable(measured, look)

        def judged(point: Measurement, base: Found) -> Result:
            alpha = alpha_of_metric(benchmarks, len(_judged(point)), side_by_side=self._side_by_side)
            key = point.name, point.world_size
            rules = Rules(
                self._tolerance,
                alpha,
                self._margin,
                affordable,
                last=look.last,
                screened=look.screened,
                proven=self._proven.setdefault(key, {}),
                suspected=self._suspects_of(key),
                scatter=self._scatter,
                max_time_for=lambda more: look.elapsed + more * look.round_seconds,
            )
            return replace(compare(self._test, point, base, rules), seconds=look.elapsed)

        related = self._relate(measured[: len(bases)])
        self.results = tuple(judged(point, base) for point, base in zip(related, bases, strict=True))
        self._state = replace(self._state, launches=len(measured[0].launches))  # time may have cut some off
        # Counts are what they are: no launch changes them, and none has to confirm them.
        statistical = [
            c for result in self.results for c in result.comparisons if c.gated and c.series.scale != "exact"
        ]
        if look.diagnosed:
            return self._after_diagnosis()
        self._prove(statistical)
        screening = self._state.phase is Phase.SCREEN and not self._settings.accepting
        suspects = {_key(one): _suspects(one) for one in self.results} if screening else {}
        action = next_action(
            self._state,
            [self._telling(c) for c in statistical],
            suspects=any(suspects.values()),
            last=look.last,
        )
        self._state = advance(self._state, action, screened=look.screened)
        if action.action == "confirm":
            self._proven.clear()  # by launches that count no more
            self._suspected = {key: _with_kin(metrics) for key, metrics in suspects.items()}
            return Next(action.action, action.launches, tuple(_named(suspects)))
        if self._state.phase is Phase.CLEAR and self._suspected is None and not self._settings.accepting:
            self._suspected = {}  # nothing looked worse in time
        worse = any(one.verdict is Verdict.REGRESSED for one in self.results)
        return Next(action.action, action.launches, explain=worse or self._settings.accepting)

    def _suspects_of(self, variant: tuple[str, int]) -> frozenset[str] | None:
        """The metrics of a variant that may be found worse; what diagnoses tell all may, until fresh ones have to."""
        if self._suspected is None and self._grown is None:
            return None
        all_else = frozenset({*PARTNERED, *(one.name for one in METRICS)} - BY_DIAGNOSES)
        others = all_else if self._suspected is None else self._suspected.get(variant, frozenset())
        return others | (BY_DIAGNOSES if self._grown is None else self._grown.get(variant, frozenset()))

    def _after_diagnosis(self) -> Next:
        """Stop, unless what diagnoses tell seems worse: fresh ones have to say so as well."""
        worse = {
            _key(result): frozenset(
                one.series.metric
                for one in result.comparisons
                if one.series.metric in BY_DIAGNOSES and one.gated and one.verdict is Verdict.REGRESSED
            )
            for result in self.results
        }
        if not any(worse.values()) or self._grown is not None or self._settings.accepting:
            return Next("stop")
        self._grown = worse
        return Next("confirm", 1, tuple(_named({key: sorted(metrics) for key, metrics in worse.items()})))

    def _affordable(self, measured: tuple[Measurement, ...], look: Look) -> int:
        """By how many launches a suspect is confirmed, or would have been."""
        made = len(measured[0].launches)
        if self._state.phase is Phase.CONFIRM or look.round_seconds <= 0:
            return made
        possible = int(self._settings.max_time / 2 / look.round_seconds)
        return max(possible, min(made, FEWEST_LAUNCHES))

    @property
    def _tolerance(self) -> float:
        if self._settings.tolerance is not None:
            return self._settings.tolerance
        return SIDE_BY_SIDE_TOLERANCE if self._side_by_side else TOLERANCE

    @property
    def _side_by_side(self) -> bool:
        return callable(self._found)

    def _telling(self, comparison: Comparison) -> Verdict:
        """The verdict as it counts for going on.

        What is accepted as the new baseline is measured for all of its time: a baseline's own error stays in every
        comparison with it, so it is worth the launches; and what it replaces need not be confirmed to be slower.
        """
        more = self._settings.accepting or self._looks_better(comparison)
        return Verdict.INCONCLUSIVE if more else comparison.verdict

    def _looks_better(self, comparison: Comparison) -> bool:
        """Whether a metric is shown to be no worse than another revision's, and worth measuring on.

        Beside another revision the question is what the change did, and of what is better by far this proof comes long
        before that one.
        """
        return self._side_by_side and comparison.promising and comparison.verdict is Verdict.UNCHANGED

    def _prove(self, gated: Sequence[Comparison]) -> None:
        """Keep what is shown to be no worse, where the run goes on for that alone which looks better.

        It stands, whatever comes of that: without the question the run would have ended.
        """
        if any(one.verdict is Verdict.INCONCLUSIVE for one in gated):
            return
        for result in self.results:
            proven = self._proven[result.name, result.measurement.world_size]
            for one in result.comparisons:
                if one.gated and self._looks_better(one):
                    proven.setdefault(one.series.metric, len(result.measurement.launches))


def _key(result: Result) -> tuple[str, int]:
    return result.name, result.measurement.world_size


def _suspects(result: Result) -> tuple[str, ...]:
    """The metrics that fresh launches have to tell of."""
    return tuple(
        c.series.metric
        for c in result.comparisons
        if c.gated and c.series.scale != "exact" and (c.suspicious or c.verdict is Verdict.REGRESSED)
    )


def _with_kin(suspects: Sequence[str]) -> frozenset[str]:
    """The metrics that a confirmation may find worse: those that were suspicious.

    Of what nothing made suspicious, a hard test alone would tell, and in a comparison of several variants that is most
    of what is looked at. The times of one variant are kin: a slowdown that first shows in one of them is in others too.
    """
    return frozenset(suspects) | (TIMED if TIMED & set(suspects) else frozenset())


def _named(suspects: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[str]:
    """What looked worse, and of which variant where there are several; not what repeats another's verdict."""
    for (name, _), metrics in suspects.items():
        for metric in [one for one in metrics if one not in REPEATED] or metrics:
            yield metric if len(suspects) == 1 else f"{metric} of {name}"


def _judged(measured: Measurement) -> list[str]:
    """The metrics whose scatter can raise a false alarm.

    Not those that repeat another's verdict, nor a seeded loss and memory, whose scatter is far below what is accepted.
    """
    return [
        one.metric
        for one in measured.series
        if one.gated and one.scale != "exact" and one.unit != "B" and one.metric not in {*REPEATED, FINAL_LOSS}
    ]
