"""Checks that a step on a network can be predicted, and makes the job that simulated ranks run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.simulate.launch import Modelled
from pytest_ddpperf.records.measurement import Environment, Plan
from pytest_ddpperf.run.call.requests import VerbCall
from pytest_ddpperf.run.call.variants import NamedVariant, Variant
from pytest_ddpperf.settings import CLUSTERS, Settings
from pytest_ddpperf.training import jobs, subject

WARMUP = 3  # steps before the timed ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training whose step is predicted; ``together`` simulated ranks compute at the same time."""

    variant: Variant
    call: VerbCall
    together: int

    @property
    def key(self) -> object:
        """Returns a key; trainings with equal keys compute the same, so their computing is timed only once."""
        variant = self.variant
        return (
            variant.strategy,
            tuple(variant.recipe.items()),
            variant.world_size,
            variant.environment.device,
            self.accelerator,
            id(variant.subject),
        )

    @property
    def accelerator(self) -> str | None:
        """Returns the name of the accelerator for which computing is modelled; None if computing is timed."""
        return self.call.settings.accelerator

    @property
    def modelled(self) -> Modelled | None:
        """Returns the accelerator whose operator times are modelled; None if operators are timed on this machine."""
        if self.accelerator is None:
            return None
        return Modelled(
            name=self.accelerator, tf32=self.variant.effective_settings(self.call.settings).precision == "tf32"
        )

    @property
    def job(self) -> jobs.LaunchJob:
        """Returns the job of each simulated rank."""
        variant = self.variant
        counts = variant.samples_per_step, variant.tokens_per_step
        settings = variant.effective_settings(self.call.settings)
        if self.modelled is not None and self.modelled.tf32:
            settings = replace(settings, precision="fp32")  # tensors are those of fp32
        return jobs.LaunchJob(variant.subject, variant.resolved, settings, Plan(warmup=WARMUP, steps=1), *counts)


def require_fit(settings: Settings, variant: NamedVariant, ranks: int) -> None:
    """Raises SettingError if the step of a training with these settings and ranks cannot be predicted."""
    if isinstance(variant.subject, subject.Script):
        raise SettingError(
            f"{variant.subject.name} is a Script, which cannot be predicted, because it creates its own process group: "
            "give a Workload or a function build(ctx) -> step"
        )
    if not callable(variant.subject) and not isinstance(variant.subject, subject.Workload):
        kind = type(variant.subject).__name__
        raise SettingError(f"a {kind} cannot be predicted: give a Workload or a function build(ctx) -> step")
    node = settings.ranks_per_node
    if settings.network in CLUSTERS and ranks > node and ranks % node:
        raise SettingError(f"world_size={ranks} is no multiple of ranks_per_node={node}: change one of them")
    if settings.accelerator is not None and settings.env:
        names = ", ".join(name for name, _ in settings.env)
        raise SettingError(
            f"env sets {names}, which has no effect with accelerator={settings.accelerator}, a model of operators; "
            "leave env or accelerator out"
        )


def require_network(
    settings: Settings, environment: Environment, room: int, stored: Callable[[Environment], object | None]
) -> None:
    """Raises SettingError if the network between several ranks is unknown: neither chosen in ``settings`` nor measured.

    ``stored`` returns the measured network of an environment, or None. ``room`` is the number of ranks that this
    machine can run without sharing cores or GPUs.
    """
    ranks = environment.world_size
    if settings.network is not None or ranks == 1 or stored(environment) is not None:
        return
    measure = f": measure it with ddpperf network --world-size={ranks}, or give one of"
    cure = f", and {ranks} ranks would share cores or GPUs here: give one of" if ranks > room else measure
    raise SettingError(
        f"network is not given, and no fit of {environment_key(environment)} is stored{cure} {', '.join(CLUSTERS)}"
    )
