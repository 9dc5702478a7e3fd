"""Which of several benchmarks fit into memory: what does not is left out, and the others are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.errors import RankFailed, extended
from pytest_ddpperf.records.measurement import LIMIT
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.run.call.variant import Variant

TRIES = 2  # of a benchmark that ran out of memory: another process may have taken it


class MemoryFit:
    """Which of some variants are ``left`` to be measured, and for what ``reasons`` others do not fit, by benchmark.

    ``sections`` get what the ranks of these say.
    """

    def __init__(self, variants: Sequence[Variant], sections: list[tuple[str, str]]) -> None:
        self.left = list(variants)
        self.reasons: dict[tuple[str, int], str] = {}
        self._alone, self._sections = len(variants) == 1, sections
        self._tries: Counter[tuple[str, int]] = Counter()

    def goes_on(self, error: RankFailed) -> bool:
        """Returns whether the variants that are left are measured again after an error; RankFailed if nothing fits.

        What runs out of memory once is tried again; what does so again is left out.
        """
        __tracebackhide__ = True
        key = error.benchmark
        if not error.out_of_memory or error.shared or key is None or self._alone:
            return False
        self._tries[key] += 1
        if self._tries[key] < TRIES:
            return True
        others = "".join(f"{name}: {reason}\n" for (name, _), reason in self.reasons.items())
        self.reasons[key] = error.headline
        if len(self.left) == 1:
            raise extended(error, before=f"nothing fits into memory\n{others}{key[0]}: ") from error.__cause__
        self.left = [variant for variant in self.left if variant.key != key]
        self._sections.append((f"{key[0]}, out of memory", str(error)))
        return True


def under_limit_of(record: BaselineRecord, variant: Variant) -> Variant:
    """The variant under the limit of memory that a stored baseline was measured under, if it was under one."""
    others = {name: value for name, value in variant.recipe.items() if name != LIMIT}
    limits = {name: value for name, value in record.recipe.items() if name == LIMIT}
    return replace(variant, recipe={**others, **limits})
