"""The search itself: which commit to look at next, and which are left when one has been looked at. Pure.

Sets of commits are integers with a bit for each, so that a search of thousands takes megabytes and milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Answer = Literal["good", "bad", "skipped"]


@dataclass(frozen=True)
class Search:
    """Where a search stands. The change is taken to have come with one commit and to have stayed.

    Attributes:
        ancestors: of each commit between the good and the bad end, the set of itself and those before it that lie there
            too. Parents come first, in the order as in the bits, so that a commit's own bit is its highest one.
        suspected: the set of commits that may be the first bad one. One of them, the last, is an heir of all others and
            known to be bad.
        passed_over: the set of commits of which cannot be said whether they are good or bad.
    """

    ancestors: Mapping[str, int]
    suspected: int
    passed_over: int = 0

    @property
    def suspects(self) -> tuple[str, ...]:
        """The commits that may be the first bad one, parents first; the last is known to be bad."""
        return self._named(self.suspected)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The commits that say nothing, parents first."""
        return self._named(self.passed_over)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The suspects to look at, parents first: where there are none, the suspects are the answer."""
        known = _own(self.suspected)
        return self._named(self.suspected & ~self.passed_over & ~known)

    def _named(self, those: int) -> tuple[str, ...]:
        return tuple(commit for commit, before in self.ancestors.items() if those & _own(before))


def _own(before: int) -> int:
    """The last one of a set of commits, which is a commit's own bit in the set of it and its ancestors."""
    return 1 << before.bit_length() >> 1


def begin(parents: Mapping[str, tuple[str, ...]]) -> Search:
    """The search among commits.

    Args:
        parents: of the commits between the ends, the bad one included and the good one not, parents first and the bad
            end last.
    """
    ancestors: dict[str, int] = {}
    for number, (commit, before) in enumerate(parents.items()):
        ancestors[commit] = 1 << number
        for parent in before:
            ancestors[commit] |= ancestors.get(parent, 0)
    between = ancestors[next(reversed(ancestors))]
    return Search({commit: before for commit, before in ancestors.items() if between & _own(before)}, between)


def next_probe(search: Search) -> str | None:
    """The commit whose answer leaves the fewest suspects in the worse case; None where there is none to look at.

    Of equal ones it is the earliest, so that a search is always the same.
    """
    number = search.suspected.bit_count()

    def split(commit: str) -> int:
        before = (search.ancestors[commit] & search.suspected).bit_count()
        return min(before, number - before)

    return max(search.candidates, key=split, default=None)


def advance(search: Search, commit: str, answer: Answer) -> Search:
    """The search when it is known what ``commit`` is: its ancestors are as good as a good one, its heirs as bad."""
    before = search.ancestors[commit]
    if answer == "skipped":
        return replace(search, passed_over=search.passed_over | _own(before))
    return replace(search, suspected=search.suspected & (before if answer == "bad" else ~before))


def expected_probes(search: Search) -> int:
    """About how many more commits will have to be looked at: every one halves the suspects."""
    number = search.suspected.bit_count()
    return math.ceil(math.log2(number)) if number else 0
