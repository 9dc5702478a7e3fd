"""The counts that a test expects, compared with the counts of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_ddpperf.errors import SettingError, UnexpectedCount
from pytest_ddpperf.parsers import closest, instead
from pytest_ddpperf.records.counts import COLLECTIVES, SHOWN, Counts, quantity_texts
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.units import format_count, format_number


def require_counts(
    measured: Sequence[Measurement], collectives: Mapping[str, float] | None, totals: Mapping[str, Any]
) -> None:
    """Raises UnexpectedCount if counts differ from the expected ones, and SettingError if nothing can be compared."""
    counted = [(each, each.counts) for each in measured if each.counts is not None]
    problem = unsaid(collectives, totals)
    if problem is None and (not counted or len(counted) < len(measured)):
        problem = "nothing was counted; call check, compare or measure first, with counts=on"
    problems = (problem, *(misnamed(counts, collectives or (), totals) for _, counts in counted))
    for problem in filter(None, problems):
        raise SettingError(f"ddpperf.expect: {problem}")
    lines: list[str] = []
    for each, counts in counted:
        if different := unexpected(counts, collectives, totals):
            lines += [*different, f"  benchmark {each.name}, {format_count(each.world_size, 'rank')}"]
    if lines:
        raise UnexpectedCount("\n".join(lines))


def unsaid(collectives: Mapping[str, object] | None, totals: Mapping[str, object]) -> str | None:
    """Returns an error message if ``ddpperf.expect`` got no count, or a value that is no number; else None."""
    if collectives is None and not totals:
        return "nothing is expected; name counts, such as optimizer_steps=1"
    for name, number in {**(collectives or {}), **totals}.items():
        if isinstance(number, Mapping):
            return f"a count {name} is one number; expect calls of several collectives as collectives={number!r}"
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return f"{name} is expected to be {number!r}, which is not a number"
    return None


def misnamed(counts: Counts, collectives: Iterable[str], totals: Iterable[str]) -> str | None:
    """Returns an error message for the first expected count with an unknown name; None if all names are known."""
    known_totals = [*counts.totals, "collectives"]
    for kind, names, known in (("collective", collectives, COLLECTIVES), ("count", totals, counts.totals)):
        for name in names:
            if name not in known:
                hint = closest(name, known_totals if kind == "count" else known)
                return f"there is no {kind} {name}; {instead(hint, known)}"
    return None


def unexpected(counts: Counts, collectives: Mapping[str, float] | None, totals: Mapping[str, float]) -> list[str]:
    """Returns a line of text for each count that differs from the expected one on any rank or in any step."""
    differing = counts.differing
    # For each rank the number of all calls is known, but not the number of calls of each collective.
    expected = {**({} if collectives is None else {"collective_calls": sum(collectives.values())}), **totals}
    lines = [
        f"expected {metric} to be the same in every step: {differing[metric]}"
        for metric in expected
        if metric in differing
    ]
    steady = {metric: wanted for metric, wanted in expected.items() if metric not in differing}
    if collectives is not None and "collective_calls" in steady:
        lines += _unexpected_calls(counts.details.get("collective_calls", {}), collectives)
    for metric, wanted in totals.items():
        if metric in steady and wanted != counts.totals[metric]:
            details = counts.details[metric]
            want, got = quantity_texts(metric, [wanted, counts.totals[metric]])
            parts = zip(details, quantity_texts(metric, details.values()), strict=True)
            made_of = ", ".join(f"{name} {text}" for name, text in parts)
            lines.append(f"expected {metric} {want} per step, counted {got}{f' ({made_of})' if made_of else ''}")
    for metric, wanted in steady.items():
        lines += _unexpected_on_ranks(counts, metric, wanted)
    return lines


def _unexpected_calls(calls: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """Returns a line for each collective that is called more or less often than expected."""
    numbers = [(name, expected.get(name, 0), calls.get(name, 0)) for name in sorted({*expected, *calls})]
    return [
        f"expected {format_number(wanted)} {name} call{'' if wanted == 1 else 's'} per step, "
        f"counted {format_number(found)}"
        for name, wanted, found in numbers
        if wanted != found
    ]


def _unexpected_on_ranks(counts: Counts, metric: str, wanted: float) -> list[str]:
    """Returns a line that names the ranks with unexpected counts, if ranks differ; else no line."""
    others = {rank: value for rank, value in enumerate(counts.by_rank.get(metric, ())) if value != wanted}
    if not others:
        return []
    want, *got = quantity_texts(metric, [wanted, *others.values()])
    told = [f"rank {rank}: {text}" for rank, text in zip(others, got, strict=True)]
    more = [f"{len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return [f"expected {metric} {want} per step on every rank, counted {', '.join([*told[:SHOWN], *more])}"]
