"""One thing to be measured, and what launches of it amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.metrics.counted import counted_series
from pytest_ddpperf.metrics.table import METRICS, Metric, series_of
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import BenchmarkId, Measurement, Plan
from pytest_ddpperf.strategies.strategy import Strategy

CUSTOM = "custom"  # the strategy of a step that brings its own


@dataclass(frozen=True)
class Pilot:
    """What a first launch, of few timed steps, tells of a variant; its times are not those of a measurement.

    Attributes:
        step: seconds of a typical one.
        fixed: seconds that a launch which only times steps takes besides them.
        background: whether its ranks work on while their steps wait.
        nbytes: of memory that its ranks took at most, all together.
        picked: as of ``RankLaunch``.
    """

    step: float
    fixed: float
    background: bool
    nbytes: int
    picked: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Variant(BenchmarkId):
    """One thing to be measured: what every rank of a launch builds and steps, and in which group.

    Attributes:
        subject: a Workload, or a function ``build(ctx) -> step``.
        resolved: the strategy of a Workload with its options; None where the subject brings its own.
        findings: what is already known of it that a reader of its numbers needs.
        counts: what one of its steps does; None where nothing was counted.
        profile: its communication as the profiler sees it; None where it was not profiled.
        pilot: what a first launch of it told; None where there was none yet.
        steps: the baseline's, so that both sides run the same number; None where there is none to follow.
        metrics: that hooks add to those of the table.
        of_reference: whether it runs the code of another revision; it then runs as many steps as the candidate.
    """

    subject: Any
    resolved: Strategy | None
    findings: tuple[Finding, ...] = ()
    counts: Counts | None = None
    profile: CommunicationProfile | None = None
    pilot: Pilot | None = None
    steps: int | None = None
    of_reference: bool = False
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    metrics: tuple[Metric, ...] = ()


def counted_only(variant: Variant) -> Measurement:
    """A variant that was counted, and not launched to be timed."""
    return measurement_of(variant, Plan(warmup=0, steps=0))


def measurement_of(
    variant: Variant,
    plan: Plan,
    launches: Sequence[Launch] = (),
    findings: Sequence[Finding] = (),
    *,
    turns: bool = False,
    diagnoses: Sequence[Launch] = (),
) -> Measurement:
    """What launches of a variant amount to; ``findings`` are remarks on how they came about, all else as there."""
    measured = Measurement(
        **variant.identity_fields,
        plan=plan,
        counts=variant.counts,
        profile=variant.profile,
        launches=tuple(launches),
        findings=(*variant.findings, *findings),
        turns=turns,
        diagnoses=tuple(diagnoses),
    )
    counted = () if variant.counts is None else counted_series(variant.counts)
    return replace(measured, series=(*series_of(measured, (*METRICS, *variant.metrics)), *counted))


def launch_of(number: int, ranks: tuple[RankLaunch, ...], seconds: float) -> Launch:
    """A launch whose ranks ran the same steps."""
    if len({rank.skipped_steps for rank in ranks}) > 1:
        counts = ", ".join(f"rank {rank.rank}: {', '.join(map(str, rank.skipped_steps)) or 'none'}" for rank in ranks)
        raise WorkloadError(
            f"the ranks left out different steps after fp16 overflows ({counts}): gradients must be synchronised "
            "before the scaler looks at them, so that all ranks skip together"
        )
    return Launch(round=number, ranks=ranks, seconds=seconds)
