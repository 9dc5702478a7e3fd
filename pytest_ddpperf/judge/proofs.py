"""What each benchmark of one call may spend on proofs: on looks at launches of its own alone."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpperf.judge.detection import UNSPENT, Proofs
from pytest_ddpperf.judge.sequential import Key


class SharedTime:
    """The proofs of benchmarks that are measured side by side, at a look."""

    def __init__(self) -> None:
        self._launches: Mapping[Key, int] = {}  # of each benchmark at this look
        self._now: dict[Key, Proofs] = {}
        self._told: dict[Key, tuple[int, Proofs]] = {}  # the launches and proofs at the last look that was told
        self._before = self._told  # at the look before

    def __getitem__(self, key: Key) -> Proofs:
        """Those of a benchmark at this look, or before any."""
        return self._now.get(key, UNSPENT)

    def begin(self, launches: Mapping[Key, int], share: float, *, last: bool) -> None:
        """Begins a look; another one at the same launches, for which there is less time, takes its place."""
        if launches == self._launches:
            self._told = self._before
        self._before, self._launches = self._told, launches
        self.spend(share, last=last)

    def spend(self, share: float, *, last: bool, over: float | None = None) -> None:
        """What waits while others are launched spends no more, but at a last look. ``over``: as in ``Proofs.at``."""
        for key, launches in self._launches.items():
            of_launches, told = self._before.get(key, (0, UNSPENT))
            now = told.at(share, last=last, over=over)
            more = launches > of_launches or (last and now.proves and now.level >= told.level)
            self._now[key] = now if more else told

    def tell(self) -> None:
        """The look is told, and its proofs are spent."""
        self._told = {key: (launches, self._now[key]) for key, launches in self._launches.items()}

    def keep(self) -> None:
        """No other look takes the place of the one that was told: a test was about to end with it."""
        self._before = self._told
