"""The variants that a call of ``compare`` names: subjects, strategies, settings, environment variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.script import Subject
from pytest_ddpperf.training.workload import Workload

MIN_VARIANTS = 2
NO_MORE: Mapping[str, Callable[..., Any]] = {}
GivenStrategy: TypeAlias = "str | Strategy | Callable[..., Any] | None"
GivenStrategies: TypeAlias = "Iterable[str | Strategy | Callable[..., Any]] | Mapping[str, GivenStrategy] | None"
GivenVariants: TypeAlias = "Mapping[str, Mapping[str, Any]] | None"


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
    over: str  # the name of the way that the others are compared with
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
    """Returns the trainings to compare: several subjects, strategies of one Workload, or settings of one subject.

    ``over`` names the training that others are compared with; ``more`` has strategies that hooks add, by name.
    """
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
        given = f"{list(named)}"
    elif isinstance(subject, Workload) and isinstance(strategies, Mapping):
        named = {str(name): NamedVariant(subject=subject, strategy=each) for name, each in strategies.items()}
        given = f"strategies={list(named)}"
    elif isinstance(subject, Workload) and isinstance(strategies, Iterable) and not isinstance(strategies, str):
        chosen = [resolve(each, more) for each in strategies]
        named = {str(each): NamedVariant(subject=subject, strategy=each) for each in chosen}
        given = f"strategies={[str(each) for each in chosen]}"
        twice = next((each for each in chosen if chosen.count(each) > 1), None)
        if twice is not None:
            raise SettingError(
                f"ddpperf.{verb}({given}): {twice} is given twice; to {verb} it twice, give a dict of names"
            )

        def canonical(written: Any) -> str:
            return str(resolve(written, more))

    else:
        others = (
            ", several subjects by name, such as {'old': build, 'new': other_build}, "
            "or settings by name, such as variants={'fp32': {}, 'bf16': {'precision': 'bf16'}}"
        )
        raise SettingError(
            f"ddpperf.{verb}: expected a Workload and a list of strategies, such as ['naive', 'ddp']"
            f"{others * (verb == 'compare')}"
        )
    what = "strategies" if isinstance(subject, Workload) else "subjects"
    return _named(named, over, given, what, canonical, verb=verb)


def _named(
    named: Mapping[str, NamedVariant],
    over: GivenStrategy,
    given: str,
    what: str,
    canonical: Callable[[Any], str] = str,
    *,
    verb: str,
) -> NamedVariants:
    """Returns the trainings and the name of the one to compare the others with; SettingError for fewer than two."""
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
    """Returns one training for each entry of ``variants``; ``strategy`` applies to entries that name no strategy."""
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
    return _named(named, over, f"variants={list(named)}", "variants", verb=verb)
