"""What the history tells of a machine's noise: runs of one commit differ by nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pytest_ddpperf.baselines.history.database import Entry
from pytest_ddpperf.records.results import Noise
from pytest_ddpperf.stats.spreads import bound_of_difference, pooled
from pytest_ddpperf.units import format_count

FEWEST_DF = 4  # five runs of one commit, or as many repetitions over several commits


def learned_noise(
    recorded: Sequence[Entry], *, environment_key: str, strategy: str, recipe: Mapping[str, str]
) -> Noise | None:
    """The noise of a benchmark's step time, from the runs of commits that were run more than once.

    The spread is that of the runs' values within a commit, all commits together: what the launches add to it is not
    taken out, so it is a little too large. Runs whose steps took turns with those of other launches are a group of
    their own. Runs of a work tree with changes are left out.

    Args:
        recorded: values of one variant of one test, in any environment.
        environment_key: of the runs that count.
        strategy: likewise; the same name may have trained otherwise.
        recipe: likewise.

    Returns:
        The noise; None where there are too few such runs.
    """
    commits: dict[tuple[str, bool], list[float]] = {}
    for entry in recorded:
        one = entry.benchmark
        alike = (one.environment_key, one.strategy, json.loads(one.recipe)) == (environment_key, strategy, dict(recipe))
        if alike and entry.run.commit is not None and not entry.run.dirty:
            commits.setdefault((entry.run.commit, one.beside), []).append(entry.value)
    groups = [values for values in commits.values() if len(values) > 1]
    spread = pooled(groups)
    if spread.df < FEWEST_DF:
        return None
    runs = format_count(sum(map(len, groups)), "recorded run")
    return Noise(spread, bound_of_difference(spread), f"learned from {runs} of {format_count(len(groups), 'commit')}")
