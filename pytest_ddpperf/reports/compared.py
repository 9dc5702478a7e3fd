"""What pays, of several ways that were measured side by side: the fastest, the leanest, and what none beats in both."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.side_by_side import SideBySide

_MOST = 5  # comparisons that the summary tells of
_FEW = 2  # ways that none beats: more say nothing


def what_pays(results: Sequence[Result]) -> list[str]:
    """A line for each comparison of a run."""
    lines = [_line(test, compared) for test, compared in _comparisons(results)]
    told = [line for line in lines if line]
    return [*told[:_MOST], *([f"and {len(told) - _MOST} more comparisons"] if len(told) > _MOST else [])]


def _comparisons(results: Sequence[Result]) -> list[tuple[str, SideBySide]]:
    """The comparisons of each test, with the base first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.measurement.over is not None:
            groups.setdefault((result.test, result.measurement.over), []).append(result)
    return [
        (test, SideBySide(over=over, names=tuple(one.name for one in all_of), measurements=measured))
        for (test, over), others in groups.items()
        if len({one.name for one in others}) == len(others)  # else the test compares several times
        and (all_of := [*(one for one in results if (one.test, one.name) == (test, over)), *others])
        and (measured := tuple(one.measurement for one in all_of))
    ]


def _line(test: str, compared: SideBySide) -> str:
    """What pays in one comparison; several names where their intervals do not tell them apart."""
    known = len(compared.compared)
    told = [
        f"{word} {' or '.join(names)}"
        for word, names in (("fastest", compared.fastest), ("least memory", compared.leanest))
        if 0 < len(names) < known
    ]
    if len(told) > 1 and len(compared.unbeaten) <= _FEW < known:
        told.append(f"beaten in both by none: {' and '.join(compared.unbeaten)}")
    return f"{test.partition('::')[2]}: {'; '.join(told)}" if told else ""
