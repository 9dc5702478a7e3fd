"""Calibrated benchmarks as a table: how far the same code lies apart, and what the verdict makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.parsers import written
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import (
    confidence_text,
    environment_text,
    labels_of,
    names_by_remark,
    variant_text,
    whom,
    with_interval,
)
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.units import format_count, format_percent, format_value, scale

BLUNT = 0.10  # a floor above it leaves little to find


def calibration_table(calibrated: Sequence[Calibrated]) -> Table:
    """One row for each benchmark; below them what to set, and what disturbed the machine."""
    labels = labels_of(calibrated)
    times = scale([benchmark.measurement["step_time"].value for benchmark in calibrated], "s")
    level = confidence_text(calibrated[0].alarms.interval.confidence) if calibrated else ""
    machines = dict.fromkeys(environment_text(benchmark.measurement.environment) for benchmark in calibrated)
    return Table(
        title="; ".join([*machines, f"[intervals]: {level}"]),
        headers=(
            "benchmark",
            "variant",
            "ranks",
            f"step time\n{times.unit}",
            "steps\n%",
            "launches\n%",
            "runs\n%",
            "floor\n%",
            "MDE\n%",
            "undecided",
            "false alarms\n%",
        ),
        rows=tuple(
            (
                labels[benchmark.test],
                variant_text(benchmark),
                str(benchmark.measurement.world_size),
                times.number(benchmark.measurement["step_time"].value),
                _percent(benchmark.calibration.within.sd),
                _percent(benchmark.calibration.between_launches.sd),
                _percent(benchmark.calibration.between_runs.sd),
                _percent(benchmark.calibration.floor),
                NOTHING if benchmark.mde is None else _percent(benchmark.mde),
                f"{benchmark.inconclusive.found} of {benchmark.inconclusive.of}",
                _alarms(benchmark.alarms),
            )
            for benchmark in calibrated
        ),
        notes=("", *_legend(), *_runs(calibrated), *_remarks(calibrated, labels), *_wanted(calibrated)),
        left=2,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}" if share < 0.01 else format_percent(share).removesuffix(" %")  # noqa: PLR2004 - of 1 %


def _alarms(rate: Rate) -> str:
    return with_interval(lambda share: format_percent(share).removesuffix(" %"), rate.value, rate.interval)


def _legend() -> tuple[str, ...]:
    return (
        "steps, launches, runs: standard deviation within a launch, between a run's launches, and of runs beyond that",
        "floor: one run in 20 is slower than another of the same code by more; no tolerance below it has a meaning",
        "MDE, undecided, false alarms: each run held against each other as its baseline, by the rule without a floor",
        "what is to be confirmed there is confirmed by the launches of other runs, which do not share its deviation",
    )


def _runs(calibrated: Sequence[Calibrated]) -> tuple[str, ...]:
    """How much was measured, and how far apart: what a calibration knows of."""
    runs = min(benchmark.calibration.runs for benchmark in calibrated)
    independent = format_count(max(benchmark.alarms.effective for benchmark in calibrated), "comparison")
    apart = [benchmark.calibration.seconds / (benchmark.calibration.runs - 1) for benchmark in calibrated]
    span = " to ".join(dict.fromkeys(format_value(end, "s") for end in (min(apart), max(apart))))
    return (
        f"{runs} runs of each, {span} from start to start: what changes over hours or days is not in their spread",
        f"[intervals] rest on {independent} without a common run; more runs make them narrower",
    )


def _remarks(calibrated: Sequence[Calibrated], labels: dict[str, str]) -> tuple[str, ...]:
    """What disturbed the runs, each remark once."""
    names = names_by_remark(
        (f"{labels[benchmark.test]} {variant_text(benchmark)}", remark)
        for benchmark in calibrated
        for remark in dict.fromkeys((*map(finding_text, benchmark.findings), *_blunt(benchmark)))
    )
    return tuple(f"{whom(those, len(calibrated))}: {remark}" for remark, those in names.items())


def _blunt(benchmark: Calibrated) -> tuple[str, ...]:
    floor = benchmark.calibration.floor
    remark = (
        f"no slowdown below {format_percent(floor)} fails it from now on: calibrate again where less disturbs it or "
        "with more launches, or hold it against a revision side by side with --ddpperf-against"
    )
    return (remark,) if floor > BLUNT else ()


def _wanted(calibrated: Sequence[Calibrated]) -> tuple[str, ...]:
    """For each test, the marker that suits all of its benchmarks."""
    tests: dict[str, list[Calibrated]] = {}
    for benchmark in calibrated:
        tests.setdefault(benchmark.test, []).append(benchmark)
    markers = (f"  {test}  {marker(benchmarks)}" for test, benchmarks in tests.items())
    return ("settings that suit this noise:", *markers)


def marker(calibrated: Sequence[Calibrated]) -> str:
    """The settings that the benchmarks of one test want, as a user types them.

    The most launches and the widest tolerance that any of them wants; steps only where all have as many, and where they
    were not cut short by a time that is to be longer.
    """
    wanted = [benchmark.recommended for benchmark in calibrated]
    steps = {settings.steps for settings in wanted}
    times = [settings.max_time for settings in wanted if settings.max_time is not None]
    words = {
        "launches": written(max(settings.launches for settings in wanted)),
        **({"steps": written(steps.pop())} if len(steps) == 1 and not times else {}),
        "tolerance": f'"{100 * max(settings.tolerance for settings in wanted):g}%"',
        **({"max_time": written(max(times))} if times else {}),
    }
    return f"@pytest.mark.ddpperf({', '.join(f'{name}={value}' for name, value in words.items())})"
