"""Converts the arguments of a call such as ``ddpperf.compare`` to variants: trainings to measure, with settings."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch.environment import require_free
from pytest_ddpperf.metrics.table import Metric
from pytest_ddpperf.parsers import world_sizes
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import LIMIT, UNNAMED, Environment, Mode, training_text
from pytest_ddpperf.run.call.variants import CUSTOM, GivenStrategy, NamedVariant, Variant
from pytest_ddpperf.settings import KNOBS, Settings, overlay_words
from pytest_ddpperf.strategies.strategy import OF_DATA, Strategy, shares_data
from pytest_ddpperf.strategies.table import require_world_size, resolve
from pytest_ddpperf.training.subject import Script, Subject, Workload, located, unfit
from pytest_ddpperf.units import format_count

OF_RANKS = ("n", "ranks", "world_size")  # argument names of a function that gives a Workload by number of ranks
_UNCHECKED = Finding(
    "unverified", {"reason": "the step is no Workload; give ddpperf.check(reference=...), or verify=False"}
)

MIB = 2**20
MIN_SIZES = 2  # of a curve
# Settings besides those of training that a variant may have; those of what_if also differ in the network.
PLACES = ("world_size", "backend", "device", "env")
OF_NETWORK = ("network", "ranks_per_node")


def several_sizes(given: Iterable[int]) -> tuple[int, ...]:
    """Parses ``world_sizes`` of ``ddpperf.scaling``: two or more numbers of ranks; raises SettingError otherwise."""
    said = f"ddpperf.scaling(world_sizes={given!r})"
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise SettingError(f"{said}: expected a list of numbers of ranks, such as [1, 2]")
    try:
        sizes = world_sizes(given)
    except ValueError as error:
        raise SettingError(f"{said}: expected {error}") from None
    if len(sizes) < MIN_SIZES:
        raise SettingError(f"{said}: expected two or more numbers of ranks")
    return sizes


def grows(subject: object) -> bool:
    """Returns whether ``subject`` is a function ranks -> Workload, judging by the name of its first parameter."""
    if isinstance(subject, (Workload, Script)) or not callable(subject):
        return False
    with contextlib.suppress(TypeError, ValueError):
        return next(iter(inspect.signature(subject).parameters), "") in OF_RANKS
    return False


def by_size(subject: Any, sizes: Sequence[int], mode: Mode, *, counted: bool) -> Mapping[int, Subject]:
    """Returns the subject for each number of ranks; a function ranks -> Workload is called with each number.

    Raises SettingError for a function if ``mode`` is strong, or if no FLOPs are ``counted`` to compute the efficiency.
    """
    if not grows(subject):
        return dict.fromkeys(sizes, subject)
    if mode == "strong" or not counted:
        said = "mode='strong'" if mode == "strong" else "counts='off'"
        raise SettingError(
            f"ddpperf.scaling({said}): a function ranks -> Workload needs mode='weak' and counts=on, because "
            "the efficiency of a growing model is computed from the counted FLOPs of a rank"
        )
    return {size: of_size(subject, size, "ranks") for size in sizes}


def of_size(function: Callable[[int], object], size: int, what: str) -> Workload:
    """Returns ``function(size)``; raises SettingError if this is no Workload. ``what`` names the size in the error."""
    workload = function(size)
    if not isinstance(workload, Workload):
        kind = type(workload).__name__
        raise SettingError(f"{located(function)} returned a {kind} for {what} {size}; return a Workload")
    return workload


@dataclass(frozen=True, kw_only=True, slots=True)
class VerbCall:
    """The arguments of a call such as ``ddpperf.compare(...)`` that apply to every variant it measures."""

    settings: Settings  # after all layers of settings
    knobs: Mapping[str, object]  # the settings that the call itself gave
    samples_per_step: float | None = None  # of one rank; None to ask the subject
    tokens_per_step: float | None = None
    strategies: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # that hooks add
    metrics: tuple[Metric, ...] = ()  # that hooks add
    folders: tuple[Path, ...] = ()  # that are searched for a script
    begun: float = field(default_factory=time.monotonic)  # the time of time.monotonic
    own: Mapping[str, Any] = field(default_factory=dict)  # settings of training that only one variant has

    def for_variant(self, variant: NamedVariant, key: str, verb: str = "compare") -> VerbCall:
        """Returns this call with the settings of ``variant``; error messages name the variant ``key``."""
        if not variant.settings:
            return self
        where = f"ddpperf.{verb}(variants={{{key!r}: ...}})"
        settings = overlay_words(self.settings, variant.settings, where=where, suggestions=("strategy",))
        allowed = (*PLACES, *OF_NETWORK) if verb == "what_if" else PLACES
        for word in variant.settings:
            if not KNOBS[word].training and word not in allowed:
                raise SettingError(f"{where}: {word} must be the same for all variants; give {verb}(..., {word}=...)")
        if settings.env:
            variables = dict(self.settings.env or ()) | dict(settings.env)
            settings = replace(settings, env=tuple(sorted(variables.items())))
        require_consistent(settings)
        return replace(
            self,
            settings=settings,
            knobs={**self.knobs, **variant.settings},
            own={word: getattr(settings, word) for word in variant.settings if KNOBS[word].training},
        )

    def variant(
        self,
        subject: Subject,
        environment: Environment,
        *,
        strategy: GivenStrategy = None,
        name: str | None = None,
        mode: Mode | None = None,
        reference: Subject | None = None,
    ) -> Variant:
        """Returns the variant that trains ``subject`` with all settings of this call.

        ``reference``: the same training in one process, for verification. ``mode``: weak or strong scaling.
        """
        _require_count("samples_per_step", self.samples_per_step)
        _require_count("tokens_per_step", self.tokens_per_step)
        if name is not None and not isinstance(name, str):
            raise SettingError(f"name={name!r}: expected a str, such as name={str(name)!r}")
        resolved = self._strategy(subject, strategy, environment.world_size)
        of_mesh = self._require_mesh(subject, environment.world_size)
        recipe, findings = self._recipe(subject)
        if self.settings.env:
            recipe = {**recipe, "env": " ".join(f"{name}={value}" for name, value in self.settings.env)}
        limit = self.settings.memory_limit
        if environment.simulated and self.settings.simulate_rank and environment.world_size > 1:
            recipe = {**recipe, "rank": str(self.settings.simulate_rank)}
        if limit is not None:
            recipe = {**recipe, LIMIT: f"{limit}B" if limit % MIB else f"{limit // MIB}MiB"}
        words = CUSTOM if resolved is None else str(resolved)
        unchecked = resolved is None and reference is None and environment.world_size > 1 and self.settings.verify
        return Variant(
            name=training_text(name or words, recipe, UNNAMED.union(self.own)),
            subject=self._found(subject),
            reference=None if reference is None else self._reference(reference, resolved),
            strategy=words,
            resolved=resolved,
            recipe=recipe,
            findings=(*findings, *of_mesh, *([_UNCHECKED] * unchecked)),
            mode=mode,
            environment=environment,
            samples_per_step=self.samples_per_step,
            tokens_per_step=self.tokens_per_step,
            metrics=self.metrics,
            own=self.own,
            variables=self.settings.env or (),
        )

    def _require_mesh(self, subject: Subject, world_size: int) -> tuple[Finding, ...]:
        """Raises an error if subject or ranks do not fit the mesh; returns a finding if the mesh splits no data."""
        if self.settings.mesh is None:
            return ()
        said = f"mesh={','.join(f'{name}={size}' for name, size in self.settings.mesh.items())}"
        ranks = math.prod(self.settings.mesh.values())
        if isinstance(subject, (Workload, Script)):
            if "mesh" in self.knobs:
                raise SettingError(f"{said} has no effect on a Workload or Script, only on a function build(ctx)")
        elif ranks != world_size:
            raise SettingError(
                f"{said} needs {format_count(ranks, 'rank')}, but world_size is {world_size}; give world_size={ranks}"
            )
        elif ranks > 1 and not shares_data(self.settings.mesh):
            # This may be intended, or the dimension has an unknown name.
            return (Finding("mesh_without_data", {"mesh": said, "names": OF_DATA}),)
        return ()

    def _found(self, subject: Subject) -> Subject:
        return subject.found_in(self.folders) if isinstance(subject, Script) else subject

    def _reference(self, reference: Subject, resolved: Strategy | None) -> Subject:
        """Returns the checked ``reference`` of a step or Script; raises SettingError for Workloads, which need none."""
        if resolved is not None:
            raise SettingError(
                "reference=... is only for a step or a Script; a Workload is its own reference: leave reference out"
            )
        if not isinstance(reference, Workload):
            self._strategy(reference, None, 1)
        return self._found(reference)

    def _recipe(self, subject: Subject) -> tuple[Mapping[str, str], tuple[Finding, ...]]:
        """Returns the training settings that differ from their defaults, and findings on settings without effect."""
        recipe = dict(self.settings.recipe)
        if not isinstance(subject, Workload):
            return {}, (Finding("settings_of_a_workload", {"settings": tuple(recipe.items())}),) if recipe else ()
        if subject.scheduler is not None and "lr_warmup_steps" in recipe:
            raise SettingError(
                f"lr_warmup_steps={recipe['lr_warmup_steps']}: this Workload has a scheduler, which sets the learning "
                "rate, too; leave out one of the two, or let the scheduler warm up (torch.optim.lr_scheduler.LinearLR)"
            )
        if subject.batch is None or "loader" not in recipe:
            return recipe, ()
        loader = recipe.pop("loader")
        if "loader" in self.knobs:
            reason = f"loader={loader!r}: this Workload uses one batch in all steps, and no DataLoader"
            raise SettingError(f"{reason}; give Workload(loader=...) in place of batch=...")
        return recipe, (Finding("loader_without_effect", {"loader": loader}),)

    def _strategy(self, subject: Subject, strategy: GivenStrategy, world_size: int) -> Strategy | None:
        """Returns the strategy of a Workload; None for a step or a script, whose code makes it parallel."""
        if isinstance(subject, Workload):
            resolved = resolve(strategy or ("ddp" if world_size > 1 else "single"), self.strategies)
            require_world_size(resolved, world_size)
            if resolved.function is not None:
                _require_fit(unfit(resolved.function, "module", "ctx", **resolved.options), "strategy {}")
            return resolved
        if strategy is not None:
            raise SettingError(f"strategy={strategy!r} is only for a Workload; a step or a Script takes none")
        for word, value in self.knobs.items():
            if KNOBS[word].training:
                raise SettingError(f"{word}={value!r} is only for a Workload; set it in the code of this step")
        if isinstance(subject, Script):
            return None
        if isinstance(subject, type) and issubclass(subject, Workload):
            name = subject.__name__
            raise SettingError(f"the class {name} cannot be measured: give an instance, {name}(model=..., ...)")
        if not callable(subject) or hasattr(subject, "parameters"):
            kind = type(subject).__name__
            raise SettingError(
                f"a {kind} cannot be measured: expected a Workload, a Script or a function build(ctx) -> step"
            )
        _require_fit(unfit(subject, "ctx"), "{}; a function that trains by itself is given as Script(function)")
        return None


def require_consistent(settings: Settings) -> None:
    """Raises SettingError if settings contradict each other."""
    if settings.clip_steps is not None and settings.clip_grad_norm is None:
        raise SettingError(f"clip_steps={settings.clip_steps} has no effect alone; give clip_grad_norm, too")
    require_free(settings.env or ())


def _require_count(word: str, count: object) -> None:
    is_count = isinstance(count, (int, float)) and not isinstance(count, bool) and 0 < count < math.inf
    if count is not None and not is_count:
        raise SettingError(f"{word}={count!r}: expected a number above 0")


def _require_fit(problem: str | None, told: str) -> None:
    if problem is not None:
        raise SettingError(told.format(problem))
