"""Variants: the trainings that a call such as ``ddpperf.compare`` measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.launch.environment import Variables
from pytest_ddpperf.metrics.table import Metric, counted_series, series_of
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import BenchmarkId, Measurement, Plan
from pytest_ddpperf.records.phases import CommunicationProfile
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import NO_MORE, resolve
from pytest_ddpperf.training.subject import Subject, Workload

MIN_VARIANTS = 2
GivenStrategy: TypeAlias = "str | Strategy | Callable[..., Any] | None"
GivenStrategies: TypeAlias = "Iterable[str | Strategy | Callable[..., Any]] | Mapping[str, GivenStrategy] | None"
GivenVariants: TypeAlias = "Mapping[str, Mapping[str, Any]] | None"
CUSTOM = "custom"  # the strategy of a step that brings its own


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedVariant:
    """One of the trainings that a call compares: a subject with its strategy and settings."""

    subject: Subject
    strategy: GivenStrategy = None
    settings: Mapping[str, object] = field(default_factory=dict)  # that only this variant has, as written in the call


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedVariants:
    """All trainings that one call of ``ddpperf.compare`` compares, by name."""

    by_name: Mapping[str, NamedVariant]  # in the order given
    over: str  # the name of the training that the others are compared with
    canonical: Callable[[Any], str]  # turns any spelling of a variant's name into the spelling in ``by_name``


def several(  # noqa: PLR0917 - the arguments of compare
    subject: Subject | Mapping[str, Subject],
    strategies: GivenStrategies,
    over: GivenStrategy,
    strategy: GivenStrategy = None,
    more: Mapping[str, Callable[..., Any]] = NO_MORE,
    variants: GivenVariants = None,
    *,
    verb: str = "compare",
) -> NamedVariants:
    """Returns trainings to compare with the training ``over``; ``more``: strategies that pytest hooks of users add."""
    canonical: Callable[[Any], str] = str
    if variants is not None:
        return _with_settings(subject, strategies, over, strategy, variants, verb=verb)
    workloads = subject.values() if isinstance(subject, Mapping) else ()
    if strategy is not None and not any(isinstance(workload, Workload) for workload in workloads):
        raise SettingError(
            f"ddpperf.compare(strategy={strategy!r}) is only for several Workloads, such as "
            "{'small': workload, 'large': other}; to compare strategies of one Workload: strategies=['naive', 'ddp']"
        )
    if isinstance(subject, Mapping) and strategies is None:
        named = {
            str(name): NamedVariant(subject=each, strategy=strategy if isinstance(each, Workload) else None)
            for name, each in subject.items()
        }
    elif isinstance(subject, Workload) and isinstance(strategies, Mapping):
        named = {str(name): NamedVariant(subject=subject, strategy=each) for name, each in strategies.items()}
    elif isinstance(subject, Workload) and isinstance(strategies, Iterable) and not isinstance(strategies, str):
        chosen = [resolve(each, more) for each in strategies]
        named = {str(each): NamedVariant(subject=subject, strategy=each) for each in chosen}
        twice = next((each for each in chosen if chosen.count(each) > 1), None)
        if twice is not None:
            reason = f"ddpperf.{verb}(strategies={[*map(str, chosen)]}): {twice} is given twice"
            raise SettingError(f"{reason}; to {verb} it twice, give a dict of names")

        def canonical(written: Any) -> str:
            return str(resolve(written, more))

    else:
        others = (
            ", a dictionary of functions or Workloads, such as {'old': build, 'new': other_build}, "
            "or a dictionary of settings, such as variants={'fp32': {}, 'bf16': {'precision': 'bf16'}}"
        )
        cure = f"expected a Workload and a list of strategies, such as ['naive', 'ddp']{others * (verb == 'compare')}"
        raise SettingError(f"ddpperf.{verb}: {cure}")
    what = "strategies" if isinstance(subject, Workload) else "subjects"
    return _named(named, over, what, canonical, verb=verb)


def _named(
    named: Mapping[str, NamedVariant],
    over: GivenStrategy,
    what: str,
    canonical: Callable[[Any], str] = str,
    *,
    verb: str,
) -> NamedVariants:
    """Returns trainings to compare with ``over`` (default: the first); raises SettingError for fewer than two."""
    given = f"{list(named)}" if what == "subjects" else f"{what}={list(named)}"
    if len(named) < MIN_VARIANTS:
        raise SettingError(f"ddpperf.{verb}({given}): expected two or more {what}")
    base = canonical(over) if over is not None else next(iter(named))
    if base not in named:
        raise SettingError(f"ddpperf.{verb}({given}): over={base!r}: expected one of {', '.join(named)}")
    return NamedVariants(by_name=named, over=base, canonical=canonical)


def _with_settings(
    subject: Subject | Mapping[str, Subject],
    strategies: GivenStrategies,
    over: GivenStrategy,
    strategy: GivenStrategy,
    variants: GivenVariants,
    *,
    verb: str,
) -> NamedVariants:
    """Returns a training for each entry of ``variants``; ``strategy`` is the default for entries without a strategy."""
    if isinstance(subject, Mapping):
        raise SettingError(
            f"ddpperf.{verb}(variants=...) is for one Workload, Script or step; a dict of several has no variants"
        )
    if strategies is not None:
        raise SettingError(
            "ddpperf.compare(strategies=..., variants=...): give only one of the two; variants may set a strategy: "
            "variants={'ddp': {}, 'fsdp': {'strategy': 'fsdp2'}}"
        )
    if not isinstance(variants, Mapping) or not all(isinstance(own, Mapping) for own in variants.values()):
        raise SettingError(
            f"ddpperf.{verb}(variants={variants!r}): expected a dict of settings for each name, such as "
            "{'fp32': {}, 'bf16': {'precision': 'bf16'}}"
        )
    named = {}
    words = [word for own in variants.values() for word in own if not isinstance(word, str)]
    if words:
        raise SettingError(f"ddpperf.{verb}(variants=...): {words[0]!r} is not the name of a setting; give a str")
    for name, own in variants.items():
        settings = dict(own)
        named[str(name)] = NamedVariant(subject=subject, strategy=settings.pop("strategy", strategy), settings=settings)
    return _named(named, over, "variants", verb=verb)


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
    """The description of a training to measure, with the code of either the candidate or the reference."""

    subject: Any  # a training.subject.Subject
    resolved: Strategy | None  # None if the subject brings its own
    reference: Any = None  # the single-process reference of such a subject, in any of its forms; None without one
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
        """A title for the ranks' output: the variant's name, its number of ranks, and a mark for a reference."""
        return f"{self.name} w{self.world_size}" + ", other revision" * self.of_reference


def counted_only(variant: Variant, *, asked: bool = True) -> Measurement:
    """Returns a measurement of counts alone. If no setting ``asked`` for this, a finding names the lack of time."""
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
    """Returns a variant's measurement; only launches from index ``fresh_from`` on may confirm a suspected slowdown."""
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
    """Returns the launch of round ``number``; raises WorkloadError if ranks skipped different steps after overflows."""
    if len({rank.skipped_steps for rank in ranks}) > 1:
        counts = ", ".join(f"rank {rank.rank}: {', '.join(map(str, rank.skipped_steps)) or 'none'}" for rank in ranks)
        reason = f"the ranks skipped different steps after fp16 overflows ({counts})"
        cure = "synchronise the gradients before the GradScaler checks them, so that all ranks skip the same steps"
        raise WorkloadError(f"{reason}: {cure}")
    return Launch(round=number, ranks=ranks, seconds=seconds)
