"""What is known of a machine's noise: from calibrations, beside its baselines, or from runs of one commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.baselines.codec import NOISE, NoiseFile, data_of
from pytest_ddpperf.baselines.files import locked, saving, write_file
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import parse, read_text, render
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.results import Calibration, Noise
from pytest_ddpperf.stats.spreads import bound_of_difference, pooled

if TYPE_CHECKING:
    from pytest_ddpperf.baselines.history.database import Entry

MIN_DF = 4  # five runs of one commit, or as many repetitions over several commits


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


def find(root: Path, test: str, name: str, environment: Environment) -> Calibration | None:
    """The calibration of a variant of a test in an environment; None if there is none."""
    return read(noise_file(root, environment)).get(test, {}).get(name)


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


def learned_noise(
    recorded: Sequence[Entry], *, environment_key: str, strategy: str, recipe: Mapping[str, str]
) -> Noise | None:
    """The noise of a benchmark's step time, from commits that were run more than once; None if they are too few.

    ``recorded`` are step times of one variant of one test. Those of another environment, strategy or recipe do not
    count, nor do runs of a changed work tree. Runs with interleaved steps are a group of their own. The spread is
    pooled over commits; it includes that of launches, so it is a little too large.
    """
    trained = (environment_key, strategy, dict(recipe))
    commits: dict[tuple[str, bool], list[float]] = {}
    for entry in recorded:
        benchmark, run = entry.benchmark, entry.run
        alike = (benchmark.environment_key, benchmark.strategy, json.loads(benchmark.recipe)) == trained
        if alike and run.commit is not None and not run.dirty:
            commits.setdefault((run.commit, benchmark.interleaved), []).append(entry.value)
    groups = [values for values in commits.values() if len(values) > 1]
    spread = pooled(groups)
    if spread.df < MIN_DF:
        return None
    runs = sum(map(len, groups))
    return Noise(between_runs=spread, floor=bound_of_difference(spread), runs=runs, commits=len(groups))
