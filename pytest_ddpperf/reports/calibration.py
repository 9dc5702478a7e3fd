"""Calibrated benchmarks as a table: how far the same code lies apart, and what the verdict makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.parsers import written
from pytest_ddpperf.reports.gathered import Remark, gathered, remark_of
from pytest_ddpperf.reports.lines import INDENT, shortened
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import environment_text, interval_header, names_by_remark, with_interval
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_count, format_percent, format_value, scale, significant

_LEGEND = {
    "steps": "standard deviation within a launch",
    "launches": "standard deviation between a run's launches",
    "runs": "standard deviation of runs beyond that of their launches",
    "floor": "one run in 20 is slower than another of the same code by more",
    "MDE": "minimal detectable effect: the smallest slowdown that is found",
    "false alarms": "as MDE and undecided, of each run held against each other as its baseline, by the rule without "
    "anything learned; suspicions are confirmed by launches of other runs",
}
FAR_APART = 0.10  # a floor above it is worth a remark


def calibration_table(calibrated: Sequence[Calibrated], width: int | None = None) -> Table:
    """One row for each benchmark; below them what to set, and what disturbed the machine."""
    named = list(zip(names_of(calibrated), calibrated, strict=True))

    def plain(share: float) -> str:
        return format_percent(share).removesuffix(" %")

    times = scale([benchmark.measurement["step_time"].value for benchmark in calibrated], "s")
    machines = dict.fromkeys(environment_text(benchmark.measurement.environment) for benchmark in calibrated)
    remarks = ((name, one) for name, each in named for one in (*map(remark_of, each.findings), *_far_apart(each)))
    return Table(
        title="; ".join(machines),
        headers=(
            "benchmark",
            "ranks",
            f"step time\n{times.unit}",
            "steps\n%",
            "launches\n%",
            "runs\n%",
            "floor\n%",
            "MDE\n%",
            "undecided",
            interval_header("false alarms\n%", (benchmark.alarms.interval for benchmark in calibrated)),
        ),
        rows=tuple(
            (
                name,
                str(benchmark.measurement.world_size),
                times.number(benchmark.measurement["step_time"].value),
                _percent(benchmark.calibration.within.sd),
                _percent(benchmark.calibration.between_launches.sd),
                _percent(benchmark.calibration.between_runs.sd),
                _percent(benchmark.calibration.floor),
                NOTHING if benchmark.mde is None else _percent(benchmark.mde),
                f"{benchmark.inconclusive.found} of {benchmark.inconclusive.of}",
                with_interval(plain, benchmark.alarms.value, benchmark.alarms.interval),
            )
            for name, benchmark in named
        ),
        notes=(*_runs(calibrated), *gathered(remarks), *_wanted(named, width)),
        narrower=("false alarms", "steps", "launches", "ranks", "runs", "undecided"),
        legend=_LEGEND,
    )


def _percent(share: float) -> str:
    small = share < 0.01  # noqa: PLR2004 - of 1 %
    return significant(100 * share) if small else format_percent(share).removesuffix(" %").replace("over ", ">")


def _runs(calibrated: Sequence[Calibrated]) -> tuple[str, ...]:
    """How much was measured, and how far apart: what a calibration knows of."""
    runs = min(benchmark.calibration.runs for benchmark in calibrated)
    independent = format_count(max(benchmark.alarms.effective for benchmark in calibrated), "comparison")
    apart = [benchmark.calibration.seconds / (benchmark.calibration.runs - 1) for benchmark in calibrated]
    span = " to ".join(dict.fromkeys(format_value(end, "s") for end in (min(apart), max(apart))))
    return (
        f"{runs} runs of each, {span} from start to start: what changes over hours or days is not in their spread",
        f"the interval of false alarms rests on {independent} without a common run; more runs make it narrower",
    )


def _far_apart(benchmark: Calibrated) -> tuple[Remark, ...]:
    floor = benchmark.calibration.floor
    remark = (
        f"one run in 20 of the same code is slower than another by more than {format_percent(floor)}: calibrate again "
        "where less disturbs it, or hold it against a revision side by side with --ddpperf-against"
    )
    return (Remark(text=remark, code="far_apart", facts={"floor": floor}),) if floor > FAR_APART else ()


def _wanted(named: Sequence[tuple[str, Calibrated]], width: int | None) -> list[str]:
    """For each test, the marker that suits all of its benchmarks."""
    tests: dict[str, list[Calibrated]] = {}
    for _, benchmark in named:
        tests.setdefault(benchmark.test, []).append(benchmark)
    markers = names_by_remark((test, marker(benchmarks)) for test, benchmarks in tests.items())
    short = {test: test for test in tests} if width is None else shortened(tests, width - 2 * len(INDENT))
    lines = [
        line
        for text, names in markers.items()
        for line in (f"{INDENT}{text}", *(f"{INDENT}{INDENT}{short[name]}" for name in names))
    ]
    return ["settings that suit this noise:", *lines]


def marker(calibrated: Sequence[Calibrated]) -> str:
    """The settings that the benchmarks of one test want, as a user types them.

    The most launches that any of them wants; steps only where all have as many, and where they
    were not cut short by a time that is to be longer.
    """
    wanted = [benchmark.recommended for benchmark in calibrated]
    steps = {settings.steps for settings in wanted}
    times = [settings.max_time for settings in wanted if settings.max_time is not None]
    words = {
        "launches": written(max(settings.launches for settings in wanted)),
        **({"steps": written(steps.pop())} if len(steps) == 1 and not times else {}),
        **({"max_time": written(max(times))} if times else {}),
    }
    return f"@pytest.mark.ddpperf({', '.join(f'{name}={value}' for name, value in words.items())})"
