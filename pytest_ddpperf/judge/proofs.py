"""What each benchmark of one call may spend on proofs: on looks at launches of its own alone."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpperf.judge.detection import UNSPENT, Proofs
from pytest_ddpperf.judge.sequential import Key


class AlphaLedger:
    """The proofs of benchmarks that are measured side by side, at a look."""

    def __init__(self) -> None:
        self._launches: Mapping[Key, int] = {}  # of each benchmark at this look
        self._now: dict[Key, Proofs] = {}
        self._committed: dict[Key, tuple[int, Proofs]] = {}  # launches and proofs at the last look that counts
        self._before = self._committed  # at the look before

    def __getitem__(self, key: Key) -> Proofs:
        """Those of a benchmark at this look, or before any."""
        return self._now.get(key, UNSPENT)

    def begin(self, launches: Mapping[Key, int], share: float, *, last: bool) -> None:
        """Begins a look; another one at the same launches, for which there is less time, takes its place."""
        if launches == self._launches:
            self._committed = self._before
        self._before, self._launches = self._committed, launches
        self.spend(share, last=last)

    def spend(self, share: float, *, last: bool, over: float | None = None) -> None:
        """Spends for what was launched since, and at a last look for all. ``over``: as of ``Proofs.at_interim``."""
        for key, launches in self._launches.items():
            of_launches, spent = self._before.get(key, (0, UNSPENT))
            now = spent.at_interim(share, last=last, over=over)
            more = launches > of_launches or (last and now.proves and now.level >= spent.level)
            self._now[key] = now if more else spent

    def commit(self) -> None:
        """Counts the look, whose proofs are spent."""
        self._committed = {key: (launches, self._now[key]) for key, launches in self._launches.items()}

    def keep(self) -> None:
        """Keeps the last look, which a test was about to end with: no other one takes its place."""
        self._before = self._committed
