"""What a call of a verb means: the variant that it asks for, its name, and what has no meaning for its subject."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.table import Metric
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment, Mode, training_text
from pytest_ddpperf.run.variant import CUSTOM, Variant
from pytest_ddpperf.settings import KNOBS, Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import require_world_size, resolve
from pytest_ddpperf.training.workload import Workload, unfit

MIN_WAYS = 2
NO_MORE: Mapping[str, Callable[..., Any]] = {}
Subject: TypeAlias = "Workload | Callable[[Any], Any]"
GivenStrategy: TypeAlias = "str | Strategy | Callable[..., Any] | None"
GivenWays: TypeAlias = "Iterable[str | Strategy | Callable[..., Any]] | Mapping[str, GivenStrategy] | None"


@dataclass(frozen=True)
class Contender:
    """One of several ways to do the same work."""

    subject: Subject
    strategy: GivenStrategy = None


@dataclass(frozen=True)
class Contenders:
    """What is compared in one call.

    Attributes:
        by_name: in the order given.
        over: the name of the one that the others are held against.
        canonical: gives the name that is kept for whatever way it is written.
    """

    by_name: Mapping[str, Contender]
    over: str
    canonical: Callable[[Any], str]


def several(
    subject: Subject | Mapping[str, Subject],
    strategies: GivenWays,
    over: GivenStrategy,
    strategy: GivenStrategy = None,
    more: Mapping[str, Callable[..., Any]] = NO_MORE,
) -> Contenders:
    """The ways that a call of ``compare`` names: subjects by name, or one Workload under several strategies."""
    ways: dict[str, Contender] = {}
    workloads = subject.values() if isinstance(subject, Mapping) else ()
    if strategy is not None and not any(isinstance(one, Workload) for one in workloads):
        raise SettingError(
            f"ddpperf.compare(strategy={strategy!r}): is for Workloads that are compared by name, such as "
            "{'small': workload, 'large': other}; several strategies of one Workload are strategies=['naive', 'ddp']"
        )
    if isinstance(subject, Mapping) and strategies is None:
        ways = {
            str(name): Contender(one, strategy if isinstance(one, Workload) else None) for name, one in subject.items()
        }
        canonical: Callable[[Any], str] = str
        given = f"{list(ways)}"
    elif not isinstance(subject, Workload) or isinstance(strategies, (str, Strategy)) or strategies is None:
        raise SettingError(
            "ddpperf.compare: expected a Workload and a list of strategies, such as ['naive', 'ddp'], "
            "or what is to be compared by name, such as {'old': build, 'new': other_build}"
        )
    elif isinstance(strategies, Mapping):
        ways = {str(name): Contender(subject, one) for name, one in strategies.items()}
        canonical, given = str, f"strategies={list(ways)}"
    else:
        chosen = [resolve(one, more) for one in strategies]
        ways = {str(one): Contender(subject, one) for one in chosen}
        canonical, given = partial(_strategy_words, more), f"strategies={[str(one) for one in chosen]}"
        twice = next((one for one in chosen if chosen.count(one) > 1), None)
        if twice is not None:
            raise SettingError(
                f"ddpperf.compare({given}): {twice} is given twice; give strategies names to compare it so"
            )
    if len(ways) < MIN_WAYS:
        what = "strategies" if isinstance(subject, Workload) else "subjects"
        raise SettingError(f"ddpperf.compare({given}): expected two or more {what}")
    base = canonical(over) if over is not None else next(iter(ways))
    if base not in ways:
        raise SettingError(f"ddpperf.compare({given}): over={base!r}: expected one of {', '.join(ways)}")
    return Contenders(ways, base, canonical)


def _strategy_words(more: Mapping[str, Callable[..., Any]], strategy: Any) -> str:
    return str(resolve(strategy, more))


@dataclass(frozen=True)
class CheckRequest:
    """What a call of a verb says of every variant that it measures.

    Attributes:
        subject: a Workload, or a function ``build(ctx) -> step``.
        settings: the call's, all layers laid over each other.
        knobs: the settings that the call itself gave.
        samples_per_step: of one rank; None to ask the subject. ``tokens_per_step`` likewise.
        more: functions of strategies that hooks add, by name.
        metrics: that hooks add.
    """

    subject: Subject
    settings: Settings
    knobs: Mapping[str, object]
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    more: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()


def variant(
    asked: CheckRequest,
    environment: Environment,
    *,
    strategy: GivenStrategy,
    name: str | None,
    mode: Mode | None = None,
) -> Variant:
    """The variant that is asked for."""
    for word in ("samples_per_step", "tokens_per_step"):
        _require_count(word, getattr(asked, word))
    if name is not None and not isinstance(name, str):
        raise SettingError(f"name={name!r}: expected a text, such as name={str(name)!r}")
    resolved = _strategy(asked, strategy, environment.world_size)
    recipe, findings = _recipe(asked.subject, asked.settings, asked.knobs)
    return Variant(
        name=training_text(name or (CUSTOM if resolved is None else str(resolved)), recipe),
        subject=asked.subject,
        strategy=CUSTOM if resolved is None else str(resolved),
        resolved=resolved,
        recipe=recipe,
        findings=findings,
        mode=mode,
        environment=environment,
        samples_per_step=asked.samples_per_step,
        tokens_per_step=asked.tokens_per_step,
        metrics=asked.metrics,
    )


def _require_count(word: str, count: object) -> None:
    is_count = isinstance(count, (int, float)) and not isinstance(count, bool) and 0 < count < math.inf
    if count is not None and not is_count:
        raise SettingError(f"{word}={count!r}: expected a number above 0")


def _recipe(
    subject: Subject, settings: Settings, knobs: Mapping[str, object]
) -> tuple[Mapping[str, str], tuple[Finding, ...]]:
    """What differs from plain training, and a finding for what was set from outside and has no meaning here."""
    recipe = dict(settings.recipe)
    if not isinstance(subject, Workload):
        return {}, (Finding("settings_of_a_workload", {"settings": tuple(recipe.items())}),) if recipe else ()
    if subject.batch is not None and "loader" in recipe and "loader" in knobs:
        raise SettingError(
            f"loader={recipe['loader']!r}: this Workload has one batch, made once; give it loader=, a factory of a "
            "DataLoader, instead of batch="
        )
    if subject.batch is not None and "loader" in recipe:
        left_out = recipe.pop("loader")
        return recipe, (Finding("loader_without_effect", {"loader": left_out}),)
    return recipe, ()


def _strategy(asked: CheckRequest, strategy: GivenStrategy, world_size: int) -> Strategy | None:
    """The strategy of a Workload; None for a step that brings its own."""
    subject, knobs = asked.subject, asked.knobs
    if isinstance(subject, Workload):
        resolved = resolve(strategy or ("ddp" if world_size > 1 else "single"), asked.more)
        require_world_size(resolved, world_size)
        if resolved.function is not None:
            _require_fit(unfit(resolved.function, "module", "ctx", **resolved.options), "strategy ")
        return resolved
    if strategy is not None:
        raise SettingError(f"strategy={strategy!r}: strategies are for a Workload; this step brings its own")
    for word in knobs:
        if KNOBS[word].training:
            raise SettingError(f"{word}={knobs[word]!r}: is for a Workload; this step has to see to it itself")
    if not callable(subject) or hasattr(subject, "parameters"):
        kind = type(subject).__name__
        raise SettingError(f"a {kind} cannot be measured: expected a Workload or a function build(ctx) -> step")
    _require_fit(unfit(subject, "ctx"))
    return None


def _require_fit(problem: str | None, what: str = "") -> None:
    if problem is not None:
        raise SettingError(f"{what}{problem}")
