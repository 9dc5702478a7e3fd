"""What a test expects of counts, held against what was counted. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pytest_ddpperf.records.counts import COLLECTIVES, SHOWN, Counts, quantity_texts
from pytest_ddpperf.units import format_number


def unsaid(collectives: Mapping[str, object] | None, totals: Mapping[str, object]) -> str | None:
    """Why nothing can be held against what is expected, in a sentence: there is none, or no number; else None."""
    if collectives is None and not totals:
        return "nothing is expected; name counts, such as optimizer_steps=1"
    for name, number in {**(collectives or {}), **totals}.items():
        if isinstance(number, Mapping):
            return f"there is no count {name} that several numbers are expected of: calls are collectives={number!r}"
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return f"{name} is expected to be {number!r}, which is no number"
    return None


def misnamed(counts: Counts, collectives: Iterable[str], totals: Iterable[str]) -> str | None:
    """What is wrong with the names of expected counts, in a sentence; None where they are those of counts."""
    for words, known, kind in ((collectives, COLLECTIVES, "collective"), (totals, counts.totals, "count")):
        for word in words:
            if word not in known:
                names = [*known, *(["collectives"] if kind == "count" else [])]
                close = difflib.get_close_matches(word, names, n=1)
                hint = f"did you mean {close[0]}? " if close else ""
                return f"there is no {kind} {word}; {hint}There are {', '.join(known)}"
    return None


def unexpected(counts: Counts, collectives: Mapping[str, float] | None, totals: Mapping[str, float]) -> list[str]:
    """What is not as expected, on every rank, a line each. What is not the same in every step is never as expected."""
    asked = [*(["collective_calls"] if collectives is not None else []), *totals]
    lines = [
        f"expected {metric} to be the same in every step: {counts.unstable[metric]}"
        for metric in asked
        if metric in counts.unstable
    ]
    calls = counts.details.get("collective_calls", {})
    for name in sorted({*collectives, *calls} if collectives is not None else ()):
        wanted, found = (collectives or {}).get(name, 0), calls.get(name, 0)
        if wanted != found and "collective_calls" not in counts.unstable:
            calls_text = f"{format_number(wanted)} {name} call{'' if wanted == 1 else 's'}"
            lines.append(f"expected {calls_text} per step, counted {format_number(found)}")
    for metric, wanted in totals.items():
        found = counts.totals[metric]
        if wanted != found and metric not in counts.unstable:
            want, got = quantity_texts(metric, [wanted, found])
            made = ", ".join(
                f"{name} {text}"
                for name, text in zip(
                    counts.details[metric], quantity_texts(metric, counts.details[metric].values()), strict=True
                )
            )
            lines.append(f"expected {metric} {want} per step, counted {got}{f' ({made})' if made else ''}")
    # By rank the total of the calls is known, and not of which collectives.
    everywhere = {**({} if collectives is None else {"collective_calls": sum(collectives.values())}), **totals}
    return lines + [
        line for metric, wanted in everywhere.items() for line in _unexpected_on_ranks(counts, metric, wanted)
    ]


def _unexpected_on_ranks(counts: Counts, metric: str, wanted: float) -> list[str]:
    """A line on the ranks that do otherwise, where not all do the same; else none."""
    others = {rank: value for rank, value in enumerate(counts.by_rank.get(metric, ())) if value != wanted}
    if not others or metric in counts.unstable:
        return []
    want, *got = quantity_texts(metric, [wanted, *others.values()])
    told = [f"rank {rank}: {text}" for rank, text in zip(others, got, strict=True)]
    more = [f"{len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return [f"expected {metric} {want} per step on every rank, counted {', '.join([*told[:SHOWN], *more])}"]
