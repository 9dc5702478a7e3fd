"""The noise of a machine, from the history: runs of one commit differ by noise alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pytest_ddpperf.baselines.history.database import Entry
from pytest_ddpperf.records.results import Noise
from pytest_ddpperf.stats.spreads import bound_of_difference, pooled
from pytest_ddpperf.units import format_count

MIN_DF = 4  # five runs of one commit, or as many repetitions over several commits


def learned_noise(
    recorded: Sequence[Entry], *, environment_key: str, strategy: str, recipe: Mapping[str, str]
) -> Noise | None:
    """The noise of a benchmark's step time, from the commits that were run more than once; None if they are too few.

    The spread is pooled over commits. It includes that of the launches, so it is a little too large. Runs whose steps
    took turns with those of other launches are a group of their own. Runs of a changed work tree do not count.

    Args:
        recorded: step times of one variant of one test, in any environment.
        environment_key: the environment of the runs that count.
        strategy: their strategy; a variant of the same name may have had another one.
        recipe: their settings that are not the defaults.
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
    runs = format_count(sum(map(len, groups)), "recorded run")
    return Noise(
        between_runs=spread,
        floor=bound_of_difference(spread),
        origin=f"learned from {runs} of {format_count(len(groups), 'commit')}",
    )
