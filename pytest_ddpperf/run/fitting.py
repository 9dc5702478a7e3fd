"""Which of several benchmarks fit into memory: what does not is left out, and the others are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace

from pytest_ddpperf.errors import RankFailed, extended
from pytest_ddpperf.records.measurement import LIMIT
from pytest_ddpperf.records.results import BaselineRecord, Result
from pytest_ddpperf.run.variant import Variant

TRIES = 2  # of a benchmark that ran out of memory: another process may have taken it


def fitting_results(
    results_of: Callable[[Sequence[Variant]], tuple[Result, ...]],
    variants: Sequence[Variant],
    reasons: MutableMapping[tuple[str, int], str],
    sections: list[tuple[str, str]],
) -> tuple[Result, ...]:
    """The results of the variants that fit; ``reasons`` gets why others do not, ``sections`` their ranks' errors.

    What runs out of memory once is tried again.

    Raises:
        RankFailed: nothing fits, or a rank failed for another reason.
    """
    __tracebackhide__ = True
    tries: Counter[tuple[str, int]] = Counter()
    while True:
        left = [variant for variant in variants if variant.key not in reasons]
        try:
            return results_of(left)
        except RankFailed as error:
            if not error.out_of_memory or error.shared or error.benchmark is None or len(variants) == 1:
                raise
            tries[error.benchmark] += 1
            if tries[error.benchmark] < TRIES:
                continue
            others = "".join(f"{name}: {reason}\n" for (name, _), reason in reasons.items())
            reasons[error.benchmark] = error.headline
            if len(left) == 1:
                before = f"nothing fits into memory\n{others}{left[0].name}: "
                raise extended(error, before=before) from error.__cause__
            sections.append((f"{error.benchmark[0]}, out of memory", str(error)))


def under_limit_of(record: BaselineRecord, variant: Variant) -> Variant:
    """The variant under the limit of memory that a stored baseline was measured under, if it was under one."""
    others = {name: value for name, value in variant.recipe.items() if name != LIMIT}
    limits = {name: value for name, value in record.recipe.items() if name == LIMIT}
    return replace(variant, recipe={**others, **limits})
