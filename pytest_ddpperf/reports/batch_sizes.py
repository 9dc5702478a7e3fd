"""Searches for the largest batch, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.batch_size import Search
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import scale


def batch_size_table(searches: Sequence[Search]) -> Table:
    """One row for each search: what fits, what does not, what it takes and what was tried."""
    peaks = [search.found.peak for search in searches if search.found.peak is not None]
    limits = [search.memory_limit for search in searches if search.memory_limit is not None]
    common = scale([*peaks, *limits], "B")

    def memory(nbytes: float | None) -> str:
        return NOTHING if nbytes is None else common.number(nbytes)

    def row(search: Search) -> tuple[str, ...]:
        found = search.found
        too_large = min((trial.size for trial in found.tried if not trial.fits), default=None)
        return (
            f"{search.test.partition('::')[2]} {search.training}",
            str(search.environment.world_size),
            str(found.size),
            "the limit" if too_large is None else str(too_large),
            memory(found.peak),
            memory(search.memory_limit),
            ", ".join(str(trial.size) for trial in found.tried),
        )

    return Table(
        title="the largest batch of a rank, by its number of samples",
        headers=("search", "ranks", "fits", "does not", f"peak\n{common.unit}", f"of\n{common.unit}", "tried"),
        rows=tuple(map(row, searches)),
    )
