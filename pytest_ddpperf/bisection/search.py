"""The search itself: which commit to look at next, and which are left when one has been looked at. Pure."""

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
        ancestors: of each commit between the good and the bad end, itself and those before it that lie there too;
            commits in an order in which parents come first.
        suspects: the commits that may be the first bad one. One of them, the last, is an heir of all others and known
            to be bad.
        skipped: commits of which cannot be said whether they are good or bad.
    """

    ancestors: Mapping[str, frozenset[str]]
    suspects: frozenset[str]
    skipped: frozenset[str] = frozenset()

    @property
    def bad(self) -> str:
        """The last of the suspects, known to be bad."""
        return next(commit for commit in self.suspects if self.ancestors[commit] >= self.suspects)

    @property
    def done(self) -> bool:
        """Whether nothing is left to look at: the suspects are the answer, several where some had to be skipped."""
        return self.suspects - self.skipped <= {self.bad}


def begin(parents: Mapping[str, tuple[str, ...]]) -> Search:
    """The search among commits.

    Args:
        parents: of the commits between the ends, the bad one included and the good one not, parents first and the bad
            end last.
    """
    ancestors: dict[str, frozenset[str]] = {}
    for commit, before in parents.items():
        ancestors[commit] = frozenset({commit}).union(*(ancestors.get(parent, frozenset()) for parent in before))
    bad = next(reversed(ancestors))
    return Search({commit: ancestors[commit] for commit in ancestors if commit in ancestors[bad]}, ancestors[bad])


def next_probe(search: Search) -> str | None:
    """The commit whose answer leaves the fewest suspects in the worse case; None where there is none to look at.

    Of equal ones it is the earliest, so that a search is always the same.
    """
    if search.done:
        return None
    candidates = [c for c in search.ancestors if c in search.suspects - search.skipped - {search.bad}]

    def split(commit: str) -> int:
        before = len(search.ancestors[commit] & search.suspects)
        return min(before, len(search.suspects) - before)

    return max(candidates, key=split)


def advance(search: Search, commit: str, answer: Answer) -> Search:
    """The search when it is known what ``commit`` is: its ancestors are as good as a good one, its heirs as bad."""
    if answer == "skipped":
        return replace(search, skipped=search.skipped | {commit})
    before = search.ancestors[commit]
    return replace(search, suspects=search.suspects & before if answer == "bad" else search.suspects - before)


def expected_probes(search: Search) -> int:
    """About how many more commits will have to be looked at: every one halves the suspects."""
    return math.ceil(math.log2(len(search.suspects))) if search.suspects else 0
