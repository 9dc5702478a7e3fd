"""A variant, which is one training to measure (of the candidate or of the reference), and its measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.environment import Variables
from pytest_ddpperf.metrics.table import Metric, counted_series, series_of
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import BenchmarkId, Measurement, Plan
from pytest_ddpperf.records.phases import CommunicationProfile
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Strategy

CUSTOM = "custom"  # the strategy of a step that brings its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Pilot:
    """Figures of a variant's first launch, which has few timed steps; its times are not part of the measurement."""

    step: float  # seconds of one step
    fixed: float  # seconds of a launch that only times steps, without its steps
    background: bool  # whether its ranks, such as a loader's threads, work while their steps wait
    nbytes: int  # bytes of memory that all its ranks together used at most
    of_gpu: float | None = None  # share in use at its end of the fullest GPU's memory; None if unknown
    picked: tuple[str, str] | None = None  # as of RankLaunch
    epoch: int | None = None  # steps of an epoch of its loader; None without a loader, or a length

    def seconds(self, steps: int) -> float:
        """Returns the seconds of a launch of ``steps`` steps."""
        return self.fixed + steps * self.step


@dataclass(frozen=True, kw_only=True)
class Variant(BenchmarkId):
    """A training that is measured, of the candidate or the reference: what each rank builds, and the group of ranks."""

    subject: Any  # a training.script.Subject
    resolved: Strategy | None  # None if the subject brings its own
    reference: Any = None  # the single-process twin of such a subject, in any of its forms; None without one
    findings: tuple[Finding, ...] = ()  # known before it is measured
    counts: Counts | None = None  # None if nothing was counted
    profile: CommunicationProfile | None = None  # None if nothing was profiled
    pilot: Pilot | None = None  # None before its first launch
    steps: int | None = None  # the baseline's, so that both sides run the same number; None if there is no baseline
    of_reference: bool = False  # whether it runs the code of the reference, and as many steps as the candidate
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    metrics: tuple[Metric, ...] = ()  # that hooks add
    own: Mapping[str, Any] = field(default_factory=dict)  # settings that only this variant has
    variables: Variables = ()  # that only its ranks have

    def effective_settings(self, settings: Settings) -> Settings:
        """Returns the settings of a call, overridden by the settings of this variant."""
        return replace(settings, **self.own) if self.own else settings

    @property
    def label(self) -> str:
        """The name, the number of ranks, and whether it is the reference, as a title for the ranks' output."""
        return f"{self.name} w{self.world_size}" + ", other revision" * self.of_reference


def counted_only(variant: Variant, *, asked: bool = True) -> Measurement:
    """Returns the measurement of a variant that was only counted: by a setting (``asked``), or for lack of time."""
    return measurement_of(variant, Plan(warmup=0, steps=0), findings=() if asked else (Finding("no_time_to_measure"),))


def measurement_of(
    variant: Variant,
    plan: Plan,
    launches: Sequence[Launch] = (),
    findings: Sequence[Finding] = (),
    *,
    interleaved: bool = False,
    diagnoses: Sequence[Launch] = (),
    fresh_from: int = 0,
) -> Measurement:
    """Returns the measurement of launches; only ``launches[fresh_from:]`` count when a slowdown is confirmed."""
    measured = Measurement(
        **variant.identity_fields,
        plan=plan,
        counts=variant.counts,
        profile=variant.profile,
        launches=tuple(launches),
        fresh_from=fresh_from,
        findings=(*variant.findings, *findings),
        turns=interleaved,
        diagnoses=tuple(diagnoses),
    )
    counted = () if variant.counts is None else counted_series(variant.counts)
    return replace(measured, series=(*series_of(measured, variant.metrics), *counted))


def launch_of(number: int, ranks: tuple[RankLaunch, ...], seconds: float) -> Launch:
    """Returns the launch of a round; WorkloadError if ranks skipped different steps because of fp16 overflows."""
    if len({rank.skipped_steps for rank in ranks}) > 1:
        counts = ", ".join(f"rank {rank.rank}: {', '.join(map(str, rank.skipped_steps)) or 'none'}" for rank in ranks)
        raise WorkloadError(
            f"the ranks skipped different steps after fp16 overflows ({counts}): synchronise the gradients "
            "before the GradScaler checks them, so that all ranks skip the same steps"
        )
    return Launch(round=number, ranks=ranks, seconds=seconds)
