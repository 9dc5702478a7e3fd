"""Benchmarks that were measured side by side with themselves, as a table: what their verdicts are worth here."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import environment_text
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_percent, scale

_LEGEND = {
    "red": "runs in which unchanged code was called slower",
    "green": "runs that were unchanged or ok",
    "at most": "the slowdown that a run rules out, the median",
    "finds": "the smallest slowdown that a run finds in 95 of 100 cases, the median",
    "gross": "a value of ddpperf_gross that suits: half as much again as two runs were apart at most",
}


def calibration_table(calibrated: Sequence[Calibrated]) -> Table:
    """One row for each benchmark."""
    times = scale([benchmark.measurement["step_time"].value for benchmark in calibrated], "s")
    machines = dict.fromkeys(environment_text(benchmark.measurement.environment) for benchmark in calibrated)
    alarms = sum(benchmark.alarms.found for benchmark in calibrated)
    runs = sum(benchmark.alarms.of for benchmark in calibrated)
    return Table(
        title="; ".join(machines),
        headers=("benchmark", "ranks", f"step time\n{times.unit}", "red", "green", "at most\n%", "finds\n%", "gross"),
        rows=tuple(
            (
                name,
                str(benchmark.measurement.world_size),
                times.number(benchmark.measurement["step_time"].value),
                f"{benchmark.alarms.found} of {benchmark.alarms.of}",
                f"{benchmark.green.found} of {benchmark.green.of}",
                _percent(benchmark.bound),
                _percent(benchmark.mde),
                f"{benchmark.gross:g}",
            )
            for name, benchmark in zip(names_of(calibrated), calibrated, strict=True)
        ),
        notes=(f"{alarms} of {runs} comparisons of unchanged code with itself were red",),
        legend=_LEGEND,
    )


def _percent(share: float | None) -> str:
    return NOTHING if share is None else format_percent(share).removesuffix(" %")
