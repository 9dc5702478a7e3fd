"""Between measuring and comparing: looks at what was measured so far and says how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.compare import compare
from pytest_ddpperf.measure import Next
from pytest_ddpperf.metrics.scaling import negative_scaling, scaling_series
from pytest_ddpperf.records import Found, Measurement, Mode, Result, Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.sequential import advance, alpha_per_look, begin, next_action


class Judge:
    """Follows one benchmark through its looks; ``results`` are those of the last one.

    Args:
        test: pytest node id.
        settings: of the test.
        found: the baseline of each variant, in the variants' order.
        mode: of a scaling curve, whose first variant the others are held against; None for a plain benchmark.
    """

    def __init__(self, test: str, settings: Settings, found: Sequence[Found], mode: Mode | None) -> None:
        self.results: tuple[Result, ...] = ()
        self._test = test
        self._settings = settings
        self._found = found
        self._mode = mode
        self._state = begin(settings.launches)

    def __call__(self, measured: tuple[Measurement, ...], elapsed: float, round_seconds: float) -> Next:
        """Judge the variants and say what to measure next; times in seconds."""
        if self._mode is not None:
            measured = with_efficiency(measured, self._mode)
        self.results = tuple(
            compare(self._test, point, found, tolerance=self._settings.tolerance, alpha=alpha_per_look())
            for point, found in zip(measured, self._found, strict=True)
        )
        gated = [self._telling(c.verdict) for result in self.results for c in result.comparisons if c.gated]
        action = next_action(
            self._state,
            gated,
            elapsed=elapsed,
            # Nothing that is to be stored will need confirming: it may use the time that is kept for that.
            max_time=self._settings.max_time * (1 if self._settings.save is None else 2),
            launch_seconds=round_seconds,
        )
        self._state = advance(self._state, action)
        return Next(action.action, action.launches)

    def _telling(self, verdict: Verdict) -> Verdict:
        """The verdict as it counts for going on: what is to be stored is measured for as long as a comparison may be.

        A baseline's own error stays in every comparison with it, so it is worth the launches.
        """
        unjudged = verdict in {Verdict.NEW, Verdict.INCOMPATIBLE}
        return Verdict.INCONCLUSIVE if unjudged and self._settings.save is not None else verdict


def with_efficiency(points: Sequence[Measurement], mode: Mode) -> tuple[Measurement, ...]:
    """The points of a curve with speedup and scaling efficiency, each held against the first."""
    base, *others = points
    return (base, *(_held_against(base, point, mode) for point in others))


def _held_against(base: Measurement, point: Measurement, mode: Mode) -> Measurement:
    series = scaling_series(base, point, mode)
    return replace(
        point,
        series=(*point.series, *series),
        findings=(*point.findings, *negative_scaling(series, base.world_size, point.world_size)),
    )
