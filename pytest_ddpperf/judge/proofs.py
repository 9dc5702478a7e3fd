"""The error probability that benchmarks of one call have spent on proofs; only verdicts on new launches spend more."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpperf.judge.detection import UNSPENT, Proofs
from pytest_ddpperf.judge.sequential import Key


class AlphaLedger:
    """The state of ``Proofs`` of each benchmark of a call at the current interim verdict."""

    def __init__(self) -> None:
        self._launches: Mapping[Key, int] = {}  # of each benchmark at this look
        self._now: dict[Key, Proofs] = {}
        self._committed: dict[Key, tuple[int, Proofs]] = {}  # launches and proofs at the last look that counts
        self._before = self._committed  # ``_committed`` when the present look began

    def __getitem__(self, key: Key) -> Proofs:
        """Returns a benchmark's ``Proofs`` at the current interim verdict; ``UNSPENT`` if there is none yet."""
        return self._now.get(key, UNSPENT)

    def begin(self, launches: Mapping[Key, int], share: float, *, last: bool) -> None:
        """Begins an interim verdict, which replaces the previous one if there were no new launches."""
        if launches == self._launches:
            self._committed = self._before
        self._before, self._launches = self._committed, launches
        self.spend(share, last=last)

    def spend(self, share: float, *, last: bool, over: float | None = None) -> None:
        """Spends error probability (see ``Proofs.at_interim``) for benchmarks with new launches (``last``: for all)."""
        for key, launches in self._launches.items():
            of_launches, spent = self._before.get(key, (0, UNSPENT))
            now = spent.at_interim(share, last=last, over=over)
            more = launches > of_launches or (last and now.proves and now.level >= spent.level)
            self._now[key] = now if more else spent

    def commit(self) -> None:
        """Commits the current interim verdict, so that its error counts as spent."""
        self._committed = {key: (launches, self._now[key]) for key, launches in self._launches.items()}

    def keep(self) -> None:
        """Keeps the last verdict of the first pass, so that no verdict of the second pass replaces it."""
        self._before = self._committed
