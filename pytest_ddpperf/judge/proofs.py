"""The error that each benchmark of one call has spent on proofs; only looks with new launches spend more."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpperf.judge.detection import UNSPENT, Proofs
from pytest_ddpperf.judge.sequential import Key


class AlphaLedger:
    """The ``Proofs`` at the present look, by benchmark, of all benchmarks that are measured together."""

    def __init__(self) -> None:
        self._launches: Mapping[Key, int] = {}  # of each benchmark at this look
        self._now: dict[Key, Proofs] = {}
        self._committed: dict[Key, tuple[int, Proofs]] = {}  # launches and proofs at the last look that counts
        self._before = self._committed  # ``_committed`` when the present look began

    def __getitem__(self, key: Key) -> Proofs:
        """Returns the proofs of a benchmark at this look, or before any look."""
        return self._now.get(key, UNSPENT)

    def begin(self, launches: Mapping[Key, int], share: float, *, last: bool) -> None:
        """Begins a look; it replaces the previous look if that had the same launches."""
        if launches == self._launches:
            self._committed = self._before
        self._before, self._launches = self._committed, launches
        self.spend(share, last=last)

    def spend(self, share: float, *, last: bool, over: float | None = None) -> None:
        """Spends the error of benchmarks with new launches, at a ``last`` look of all; ``over``: see ``at_interim``."""
        for key, launches in self._launches.items():
            of_launches, spent = self._before.get(key, (0, UNSPENT))
            now = spent.at_interim(share, last=last, over=over)
            more = launches > of_launches or (last and now.proves and now.level >= spent.level)
            self._now[key] = now if more else spent

    def commit(self) -> None:
        """Commits this look: later looks count its error as spent."""
        self._committed = {key: (launches, self._now[key]) for key, launches in self._launches.items()}

    def keep(self) -> None:
        """Keeps the last look of the first pass over a suite: a look with the same launches does not replace it."""
        self._before = self._committed
