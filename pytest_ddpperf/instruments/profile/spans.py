"""Set operations on spans of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]  # from, to


def union(spans: Iterable[Span]) -> list[Span]:
    """The time that is in any of the spans, as ordered spans that do not touch; empty ones are dropped."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def intersection(first: Iterable[Span], second: Iterable[Span]) -> list[Span]:
    """The time that is in both unions."""
    ours, theirs = union(first), union(second)
    common: list[Span] = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        start, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if start < end:
            common.append((start, end))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return common


def length(spans: Sequence[Span]) -> float:
    """The length of the union of the spans."""
    return sum(end - start for start, end in union(spans))


def within(spans: Iterable[Span], window: Span) -> list[Span]:
    """The parts of the spans that lie in the window."""
    clipped = ((max(start, window[0]), min(end, window[1])) for start, end in spans)
    return [span for span in clipped if span[0] < span[1]]
