"""Searches for the largest batch, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.batch_size import Search
from pytest_ddpperf.units import format_count, format_value, format_values


def batch_size_lines(searches: Sequence[Search]) -> list[str]:
    """What fits, what does not, what it takes and what was tried, a line for each search."""
    return [_line(search) for search in searches]


def _line(search: Search) -> str:
    found = search.found
    group = f"{search.training}, {format_count(search.environment.world_size, 'rank')}"
    tried = ", ".join(str(trial.size) for trial in found.tried)
    return f"{search.test.partition('::')[2]} {group}: {_size(search)}{_peak(search)}; tried {tried}"


def _size(search: Search) -> str:
    too_large = [trial.size for trial in search.found.tried if not trial.fits]
    if too_large:
        return f"batch size {search.found.size} fits, {min(too_large)} does not"
    return f"batch size {search.found.size} fits, and is the limit"


def _peak(search: Search) -> str:
    peak, most = search.found.peak, search.memory_limit
    if peak is None:
        return ""
    if most is None:
        return f"; a rank's peak is {format_value(peak, 'B')}"
    return f"; a rank's peak is {' of '.join(format_values((peak, most), 'B'))}"
