"""Separates benchmarks that fit into memory from those that do not: only the former are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.errors import RankFailed, extended
from pytest_ddpperf.records.measurement import LIMIT
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.run.call.variant import Variant

TRIES = 2  # of a benchmark that ran out of memory: another process may have taken the memory


class MemoryFit:
    """The variants ``left`` to measure, and the ``reasons`` why other benchmarks do not fit into memory.

    The error messages of the other benchmarks go to ``sections``.
    """

    def __init__(self, variants: Sequence[Variant], sections: list[tuple[str, str]]) -> None:
        self.left = list(variants)
        self.reasons: dict[tuple[str, int], str] = {}
        self._alone, self._sections = len(variants) == 1, sections
        self._tries: Counter[tuple[str, int]] = Counter()

    def tries_again(self, error: RankFailed) -> bool:
        """Returns whether to measure again after a rank ran out of memory; raises RankFailed if no benchmark is left.

        A benchmark that runs out of memory is tried again; after the second time it is not measured.
        """
        __tracebackhide__ = True
        key = error.benchmark
        if not error.out_of_memory or error.shared or key is None or self._alone:
            return False
        self._tries[key] += 1
        if self._tries[key] < TRIES:
            return True
        others = "".join(f"{name}: {reason}\n" for (name, _), reason in self.reasons.items())
        self.reasons[key] = error.summary
        if len(self.left) == 1:
            raise extended(error, before=f"nothing fits into memory\n{others}{key[0]}: ") from error.__cause__
        self.left = [variant for variant in self.left if variant.key != key]
        self._sections.append((f"{key[0]}, out of memory", str(error)))
        return True


def under_limit_of(record: BaselineRecord, variant: Variant) -> Variant:
    """Returns the variant with the memory limit of a stored baseline, if the baseline had a limit."""
    others = {name: value for name, value in variant.recipe.items() if name != LIMIT}
    limits = {name: value for name, value in record.recipe.items() if name == LIMIT}
    return replace(variant, recipe={**others, **limits})
