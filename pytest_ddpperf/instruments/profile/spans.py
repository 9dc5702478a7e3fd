"""Set operations on spans of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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


def intersection(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The time that is in both unions."""
    return list(_common(union(first), union(second)))


def length(spans: Sequence[Span]) -> float:
    """The length of the union of the spans."""
    return sum(end - start for start, end in union(spans))


def within(spans: Iterable[Span], window: Span) -> list[Span]:
    """The parts of the spans that lie in the window."""
    clipped = ((max(start, window[0]), min(end, window[1])) for start, end in spans)
    return [span for span in clipped if span[0] < span[1]]


def _common(first: Sequence[Span], second: Sequence[Span]) -> Iterator[Span]:
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            yield start, end
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
