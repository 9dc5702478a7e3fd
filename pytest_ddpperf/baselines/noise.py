"""What is known of a machine's noise: from calibrations, beside its baselines, or from runs of one commit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from pytest_ddpperf.baselines.codec import NOISE, NoiseFile, data_of
from pytest_ddpperf.baselines.files import locked, saving, write_file
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import parse, read_text, render
from pytest_ddpperf.metrics.control import controlled
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.measurement import BenchmarkId, Environment, Spread
from pytest_ddpperf.records.noise import Calibration, Noise, RunSpread
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.stats.centers import parted
from pytest_ddpperf.stats.spreads import (
    LEAST,
    MIN_DF,
    joined,
    moderated_spread,
    pooled,
    prior_of,
    run_spread,
    spread_of_bound,
)

if TYPE_CHECKING:
    from pytest_ddpperf.baselines.history.database import Entry

Training: TypeAlias = "tuple[str, str, str, str]"  # test, variant, strategy, and the recipe as JSON text

MOST_FREEDOM = 30  # what benchmarks tell of each other: those of one run share some of what the machine did meanwhile
DAY = len("2026-01-12")  # characters


def training_of(test: str, trained: BenchmarkId | Calibration) -> Training:
    """What has to be the same for runs to be of one benchmark."""
    recipe = json.dumps(dict(trained.recipe), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return test, trained.name, trained.strategy, recipe


def noise_file(root: Path, environment: Environment) -> Path:
    """Where the noise of an environment lies, or would lie. Named sets of baselines share it: it is the machine's."""
    return root / environment_key(environment) / "noise.json"


def read(file: Path) -> Mapping[str, Mapping[str, Calibration]]:
    """The calibrations in a file by test and name; BaselineError if the file is broken or of another folder."""
    text = read_text(file, NOISE)
    if text is None:
        return {}
    content, _ = parse(text, file, NOISE)
    if content.environment != file.parent.name:
        raise NOISE.error(file, f"field environment: the file is of {content.environment}: it was moved or copied")
    return {
        test: {name: replace(calibration, name=name) for name, calibration in variants.items()}
        for test, variants in content.tests.items()
    }


def save(root: Path, test: str, found: Sequence[tuple[Environment, Calibration]]) -> tuple[Path, ...]:
    """Stores calibrations of a test beside those of others, and returns the files; a broken file is left as it is."""
    groups: dict[Path, dict[str, Calibration]] = {}
    for environment, calibration in found:
        groups.setdefault(noise_file(root, environment), {})[calibration.name] = calibration
    for file, calibrations in groups.items():
        with locked(file.parent):
            tests = read(file)
            content = NoiseFile(
                environment=file.parent.name, tests={**tests, test: {**tests.get(test, {}), **calibrations}}
            )
            with saving(file):
                write_file(file, render({"schema": NOISE.schema, **data_of(content)}))
    return tuple(groups)


def recorded_noise(recorded: Iterable[Entry], environment_key: str) -> Mapping[Training, Noise]:
    """The noise of step times in an environment, from commits that were run more than once; none by too few of them.

    Runs of a changed work tree do not count, and runs with interleaved steps are a group of their own. The spread is
    pooled over commits; it includes that of launches, so it is a little too large.
    """
    commits: dict[tuple[Training, str, bool], list[tuple[str, float]]] = {}
    for entry in recorded:
        benchmark, run = entry.benchmark, entry.run
        if benchmark.environment_key == environment_key and run.commit is not None and not run.dirty:
            trained = benchmark.test, benchmark.name, benchmark.strategy, benchmark.recipe
            group = commits.setdefault((trained, run.commit, benchmark.interleaved), [])
            group.append((run.date[:DAY], entry.value))
    by_training: dict[Training, list[list[tuple[str, float]]]] = {}
    for (trained, _, _), runs in commits.items():
        if len(runs) > 1:
            by_training.setdefault(trained, []).append(runs)
    found = {}
    for trained, groups in by_training.items():
        spread = pooled([[value for _, value in runs] for runs in groups])
        if spread.df >= MIN_DF:
            days = pooled([_of_days(runs) for runs in groups])
            found[trained] = Noise(
                between_runs=RunSpread(centers=spread), over_days=RunSpread(centers=days) if days.df else None
            )
    return found


def _of_days(runs: Sequence[tuple[str, float]]) -> list[float]:
    """The geometric mean of the runs of each day."""
    days = {day: [value for other, value in runs if other == day] for day, _ in runs}
    return [math.exp(fmean(math.log(max(value, LEAST)) for value in values)) for values in days.values()]


def known_noise(
    trained: Training,
    calibrated: Mapping[Training, Calibration],
    recorded: Mapping[Training, Noise],
    stored: Mapping[Training, BaselineRecord],
) -> Noise | None:
    """What is known of how far runs of a benchmark lie apart, by its own runs and by those of all on such a machine.

    Args:
        trained: the benchmark.
        calibrated: calibrations in its environment.
        recorded: as of ``recorded_noise``.
        stored: baselines of several runs in its environment.

    Returns:
        Its noise; None where nothing is known.
    """
    runs = {each: [_of_calibration(calibration)] for each, calibration in calibrated.items()}
    days: dict[Training, list[RunSpread]] = {}
    quotients: dict[Training, list[RunSpread]] = {}
    for each, told in recorded.items():
        runs.setdefault(each, []).append(told.between_runs)
        days[each] = [] if told.over_days is None else [told.over_days]
    for each, record in stored.items():
        step_time = next((series for series in record.series if series.metric == STEP_TIME), None)
        sizes = () if step_time is None else record.sizes_of_runs(step_time)
        if step_time is not None and sizes:
            times = parted(step_time.samples, sizes)
            runs.setdefault(each, []).append(run_spread(times))
            days.setdefault(each, []).append(run_spread(times, [run.date for run in record.runs]))
            if step_time.control is not None:
                quotients[each] = [run_spread(parted(controlled(step_time).samples, sizes))]
    between_runs, over_days = _moderated(trained, runs, MOST_FREEDOM), _moderated(trained, days)
    if between_runs is None:
        return None
    return Noise(between_runs=between_runs, over_days=over_days, quotients=_moderated(trained, quotients, MOST_FREEDOM))


def noise_of(calibration: Calibration) -> Noise:
    """What a calibration alone tells."""
    return Noise(between_runs=_of_calibration(calibration))


def _of_calibration(calibration: Calibration) -> RunSpread:
    """How far the centers of a calibration's runs lie apart: its floor tells it."""
    centers = spread_of_bound(calibration.floor, calibration.between_runs.df)
    return RunSpread(centers=centers, sampling=max(0.0, centers.sd**2 - calibration.between_runs.sd**2))


def _moderated(
    trained: Training, known: Mapping[Training, Sequence[RunSpread]], most: float | None = None
) -> RunSpread | None:
    """The spread of one benchmark, moderated by those of all; None where nothing is known of it.

    All benchmarks that ran on the same days share what the machine did on these: without ``most`` degrees of freedom
    they tell no more together than the one of them that tells most.
    """
    each = {benchmark: _together(spreads) for benchmark, spreads in known.items()}
    prior = prior_of([spread.centers for spread in each.values()])
    own = each.get(trained, RunSpread(centers=Spread(sd=0.0, df=0)))
    at_most = max((spread.centers.df for spread in each.values()), default=0.0) if most is None else most
    centers = moderated_spread(own.centers, prior, at_most)
    return RunSpread(centers=centers, sampling=own.sampling) if centers.df else None


def _together(spreads: Sequence[RunSpread]) -> RunSpread:
    """One spread for several of a benchmark, by their degrees of freedom."""
    centers = joined([spread.centers for spread in spreads])
    explained = math.fsum(spread.centers.df * spread.sampling for spread in spreads)
    return RunSpread(centers=centers, sampling=explained / centers.df if centers.df else 0.0)
