"""Predicts step times from the computing of simulated ranks, timed or modelled, and from a model of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.errors import RankFailed, SettingError, extended
from pytest_ddpperf.planner.predictions import FittedNetwork, NamedNetwork, NetworkModel, predicted, typical
from pytest_ddpperf.planner.simulate.launch import needs_values
from pytest_ddpperf.records.measurement import Environment, Plan
from pytest_ddpperf.records.predictions import Gain, Predicted, Prediction, Timeline, WhatIf
from pytest_ddpperf.run.call.benchmark_launches import SIMULATING
from pytest_ddpperf.run.call.requests import VerbCall
from pytest_ddpperf.run.call.variants import GivenStrategy, GivenVariants, NamedVariant, Variant, several
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import CLUSTERS, Settings
from pytest_ddpperf.strategies.table import modules_of
from pytest_ddpperf.training.jobs import SIMULATE_LAUNCH, TIMELINE_LAUNCH, LaunchJob, PrepareJob
from pytest_ddpperf.training.subject import Script, Subject, Workload

LAUNCHES = 5  # launches that time computing on this machine
_WITH_VALUES = (
    "\n\nThe tensors of the simulated rank have values, which take this machine's memory. With accelerator=NAME, such "
    "as h100, the tensors have no values and take none."
)
_VALUES_READ = (
    "\n\nThe tensors of the simulated rank have values, because {}. To simulate without values, and so without memory, "
    "remove this cause (for example, give bucketed in place of ddp), or give accelerator=NAME."
)
WARMUP = 3  # steps before the timed ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training whose step is predicted; ``together``: the number of simulated ranks that compute at the same time."""

    variant: Variant
    settings: Settings  # of the call, and of the variant
    together: int

    @property
    def key(self) -> object:
        """Returns a key; trainings with equal keys do the same computation, which is timed only once."""
        variant = self.variant
        return (
            variant.strategy,
            tuple(variant.recipe.items()),
            variant.world_size,
            variant.environment.device,
            self.settings.accelerator,
            id(variant.subject),
        )

    @property
    def tf32(self) -> bool:
        """Returns whether a modelled accelerator computes fp32 matrix products with TF32."""
        return self.settings.accelerator is not None and self.settings.precision == "tf32"

    @property
    def job(self) -> LaunchJob:
        """Returns the job of each simulated rank."""
        variant = self.variant
        counts = variant.samples_per_step, variant.tokens_per_step
        settings = replace(self.settings, precision="fp32") if self.tf32 else self.settings  # tensors are those of fp32
        return LaunchJob(variant.subject, variant.resolved, settings, Plan(warmup=WARMUP, steps=1), *counts)


@dataclass(frozen=True)
class Predictor:
    """The predictions of step times for one test."""

    session: Session  # its launchers run simulated ranks; its outputs list predictions
    test: str  # pytest node id
    sections: list[tuple[str, str]]  # of the test's report, which get what ranks print
    known: set[object] = field(default_factory=set)  # keys of the predictions that the test has made

    def predict(
        self, call: VerbCall, variant: NamedVariant, name: str | None = None, ranks: int | None = None
    ) -> Prediction:
        """Predicts a variant's step time on ``ranks`` ranks (default: the call's), and adds it to the reports."""
        __tracebackhide__ = True
        (found,) = self.predictions([(call, variant, name)], ranks)
        self._list(found, None)
        return found

    def what_if(
        self, call: VerbCall, subject: Subject | Mapping[str, Subject], variants: GivenVariants, strategy: GivenStrategy
    ) -> WhatIf:
        """Predicts the step times of several trainings and their gains over the first one; adds all to the reports."""
        __tracebackhide__ = True
        if variants is None and not isinstance(subject, Mapping):
            raise SettingError(
                "ddpperf.what_if: nothing to compare; give variants={'now': {}, 'bf16': {'precision': 'bf16'}}, "
                "or several Workloads, such as {'small': workload, 'large': other}"
            )
        named_variants = several(subject, None, None, strategy, call.strategies, variants, verb="what_if").by_name
        found = self.predictions(
            [(call.for_variant(variant, name, "what_if"), variant, name) for name, variant in named_variants.items()]
        )
        whole = WhatIf(predictions=dict(zip(named_variants, found, strict=True)))
        for name, prediction in whole.predictions.items():
            self._list(prediction, None if name == whole.over else whole.gain(name))
        return whole

    def _list(self, prediction: Prediction, gain: Gain | None) -> None:
        """Adds a prediction to the reports; raises SettingError if this run of the test already used the same name."""
        made = Predicted(test=self.test, prediction=prediction, gain=gain)
        if made.key in self.known:
            raise SettingError(
                f"{self.test} predicts {prediction.name!r} twice on {prediction.network}; give each another name=..."
            )
        self.known.add(made.key)
        listed = self.session.outputs.predictions
        listed[:] = [one for one in listed if one.key != made.key]
        listed.append(made)

    def predictions(
        self, asked: Sequence[tuple[VerbCall, NamedVariant, str | None]], ranks: int | None = None
    ) -> list[Prediction]:
        """Predicts each (call, variant, name) in ``asked``; raises RankFailed if a rank runs out of memory."""
        __tracebackhide__ = True
        found = self.outcomes(asked, ranks)
        for failure in found:
            if isinstance(failure, RankFailed):
                raise failure
        return [prediction for prediction in found if isinstance(prediction, Prediction)]

    def outcomes(
        self, asked: Sequence[tuple[VerbCall, NamedVariant, str | None]], ranks: int | None = None
    ) -> list[Prediction | RankFailed]:
        """Returns for each (call, variant, name) in ``asked`` a prediction, or a RankFailed if a rank lacks memory.

        Trainings with the same computation are timed only once. Launches of different trainings alternate.
        """
        __tracebackhide__ = True
        trainings = [self.training(call, variant, name, ranks) for call, variant, name in asked]
        by_key = {training.key: training for training in trainings}
        timed: dict[object, list[Timeline]] = {key: [] for key in by_key}
        failures: dict[object, RankFailed] = {}
        modelled = all(training.settings.accelerator for training in trainings)
        watched = self.session.sides.watch((), self.session.sides.nodes)
        repeats = 1 if modelled else LAUNCHES
        for repeat in range(repeats):
            for key, launches in timed.items():
                if key in failures:
                    continue
                try:
                    launches.append(self._launched(by_key[key], f"launch {repeat + 1} of {repeats}"))
                except RankFailed as failure:
                    if not failure.out_of_memory:
                        raise
                    failures[key] = failure
        steps = {key: typical(launches) for key, launches in timed.items() if key not in failures}
        cpu = watched(None).cpu
        lost = 0.0 if modelled else (cpu.others or 0.0) + (cpu.steal or 0.0)
        return [
            failures.get(training.key) or self._priced(training, steps[training.key], lost) for training in trainings
        ]

    def training(self, call: VerbCall, variant: NamedVariant, name: str | None, ranks: int | None = None) -> Training:
        """Returns the training to time, in order to predict ``variant`` on ``ranks`` ranks (default: the call's)."""
        ranks = ranks or max(self.session.world_sizes(call.settings))
        _require_fit(call.settings, variant, ranks)
        session, settings = self.session, call.settings
        if settings.accelerator is not None:
            settings = replace(settings, counts="only")  # nothing is timed, so others may measure meanwhile
        here = session.environment(settings, 1)
        if settings.accelerator is None and not here.simulated:
            together = min(ranks, self._room(here))  # what this machine runs without sharing cores or GPUs
            here = here if together <= 1 else session.environment(settings, together)
        asked = replace(here, world_size=ranks)
        self._require_network(call.settings, asked, self._room(here))
        timed = call.variant(variant.subject, asked, strategy=variant.strategy, name=name)
        settings = timed.effective_settings(call.settings)
        return Training(variant=timed, settings=settings, together=here.world_size)

    def _require_network(self, settings: Settings, asked: Environment, room: int) -> None:
        """Raises SettingError if no network is given or measured. The message depends on ``room`` (see ``_room``)."""
        ranks = asked.world_size
        if settings.network is not None or ranks == 1 or self.session.archive.network(asked) is not None:
            return
        measure = f": measure the network with ddpperf network --world-size={ranks}, or give one of"
        cure = f", and {ranks} ranks would share cores or GPUs here: give one of" if ranks > room else measure
        raise SettingError(
            f"no network is given, and none was measured for {environment_key(asked)}{cure} {', '.join(CLUSTERS)}"
        )

    def _priced(self, training: Training, timeline: Timeline, lost: float) -> Prediction:
        ranks = training.variant.world_size
        return predicted(
            timeline,
            self._model(training, timeline),
            name=training.variant.name,
            world_size=ranks,
            accelerator=training.settings.accelerator or "",
            samples=None if timeline.samples is None else timeline.samples * ranks,
            lost=lost,
        )

    def runs_here(self, call: VerbCall) -> bool:
        """Returns whether this machine has a core or a GPU for each rank of a call."""
        ranks = max(self.session.world_sizes(call.settings))
        return ranks <= self._room(self.session.environment(call.settings, 1))

    def _room(self, found: Environment) -> int:
        """Returns the number of ranks for which this machine has separate cores or GPUs."""
        here = found.cores // found.threads if found.device == "cpu" else found.device_count
        return self.session.sides.nodes * here

    def _model(self, training: Training, timeline: Timeline) -> NetworkModel:
        environment = training.variant.environment
        key = environment_key(environment)
        settings = training.settings
        if settings.network is not None:
            return NamedNetwork(name=settings.network, ranks_per_node=settings.ranks_per_node)
        if all(transfer.ranks == 1 for transfer in timeline.transfers):
            return FittedNetwork(name=key, fits=(), taken=0.0)
        content = self.session.archive.network(environment)
        assert content is not None  # noqa: S101  as it was required
        return FittedNetwork(name=key, fits=content.fits, taken=content.taken, usual=content.usual)

    def _launched(self, training: Training, live_line: str) -> Timeline:
        """Runs simulated ranks at the same time; returns the timeline of the rank that computes longest."""
        __tracebackhide__ = True
        given = training.job, training.variant.world_size, training.tf32
        on_cpu = training.settings.accelerator is not None
        ranks: list[Timeline] = self._simulated(training, TIMELINE_LAUNCH, *given, on_cpu=on_cpu, live_line=live_line)
        return max(ranks, key=lambda timeline: timeline.computing)  # the others wait for it

    def peak_bytes(self, call: VerbCall, variant: NamedVariant, live_line: str) -> tuple[float, float]:
        """Returns the peak bytes of rank 0's tensors in a step, and the bytes of its gradients, from a simulation.

        Raises RankFailed if the step needs real tensors, and these do not fit into the memory of this machine.
        """
        __tracebackhide__ = True
        training = replace(self.training(call, variant, None), together=1)
        job = PrepareJob(training.job, counted=True)
        (found,) = self._simulated(
            training, SIMULATE_LAUNCH, job, 0, training.variant.world_size, on_cpu=True, live_line=live_line
        )
        counts = found.counts
        return counts.totals["peak_tensor_bytes"], counts.details["model_state_bytes"].get("gradients", 0.0)

    def _simulated(self, training: Training, function: Any, *args: Any, on_cpu: bool, live_line: str) -> list[Any]:
        __tracebackhide__ = True
        variant = training.variant
        launcher = self.session.sides.launchers.with_variables(variant.variables)[0]
        self.session.line.show(f"{variant.name}: {live_line}")
        try:
            result = self.session.limited(launcher.run)(
                function,
                *args,
                world_size=training.together,
                backend="gloo",
                device="cpu" if on_cpu else variant.environment.device,
                timeout=training.settings.timeout,
                preload=(*modules_of(variant.resolved), *SIMULATING),
                own_group=True,
            )
        except RankFailed as error:
            reason = needs_values(training.job)
            if not error.out_of_memory or (training.settings.accelerator is not None and not reason):
                raise
            raise extended(error, after=_VALUES_READ.format(reason) if reason else _WITH_VALUES) from None
        finally:
            self.session.line.clear()
        self.sections.extend((f"{variant.label}, {title}", text) for title, text in result.sections)
        return list(result.values)


def _require_fit(settings: Settings, variant: NamedVariant, ranks: int) -> None:
    """Raises SettingError if the step of a training with these settings and ranks cannot be predicted."""
    if isinstance(variant.subject, Script):
        raise SettingError(f"{variant.subject.name} is a Script, which cannot be predicted: give a Workload")
    if not callable(variant.subject) and not isinstance(variant.subject, Workload):
        kind = type(variant.subject).__name__
        raise SettingError(f"a {kind} cannot be predicted: give a Workload or a function build(ctx) -> step")
    node = settings.ranks_per_node
    if settings.network in CLUSTERS and ranks > node and ranks % node:
        raise SettingError(f"world_size={ranks} is no multiple of ranks_per_node={node}: change one of them")
    if settings.accelerator is not None and settings.env:
        names = ", ".join(name for name, _ in settings.env)
        fact = f"env sets {names}, which has no effect with accelerator={settings.accelerator}, a model of operators"
        raise SettingError(f"{fact}; leave env or accelerator out")
