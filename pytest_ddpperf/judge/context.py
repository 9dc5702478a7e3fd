"""What a judgement goes by besides the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.records.measurement import Spread


@dataclass(frozen=True, kw_only=True)
class DecisionContext:
    """What a judgement goes by besides the numbers.

    Attributes:
        tolerance: the worsening that is accepted, as a fraction (absolute for differences).
        margin: the worsening that what is unchanged is shown not to reach, times the tolerance.
        alpha: two-sided significance level of each metric.
        affordable: launches that a suspect is confirmed by, or would have been; 0 for those there are.
        last: whether there is no time for another look.
        screened: whether what looks worse from now on cannot be confirmed any more.
        proven: by how many launches an earlier look showed a metric to be no worse, which was measured on because it
            looked better.
        suspected: the metrics that may be found worse, because other launches made them suspicious; None for all.
        scatter: by how much launches of other benchmarks scatter that ran alone; None where nothing is known of them.
        max_time_for: gives the setting that leaves time for so many launches more; None where nobody measures.
    """

    tolerance: float
    alpha: float
    margin: float = EQUIVALENCE_MARGIN
    affordable: int = 0
    last: bool = False
    screened: bool = False
    proven: Mapping[str, int] = field(default_factory=dict)
    suspected: frozenset[str] | None = None
    scatter: Spread | None = None
    max_time_for: Callable[[int], float] | None = None
