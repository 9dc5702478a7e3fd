"""Prepares a training in a launch, which times a few steps, counts and verifies. The session keeps the results."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pytest_ddpperf import errors
from pytest_ddpperf.launch.environment import current_folder, search_path
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.messages import Call
from pytest_ddpperf.launch.payload import dump_call
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.loader_settings import loader_settings
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.run.call.planning import pilot_of, pilot_plan, warmup_of
from pytest_ddpperf.run.call.variants import Pilot, Variant
from pytest_ddpperf.settings import KNOBS, Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.jobs import PREPARE_LAUNCH, LaunchJob, PrepareJob, RankPrepared, VerifyJob
from pytest_ddpperf.training.subject import Script, Subject, Workload
from pytest_ddpperf.training.verification import Discrepancy, Verification, discrepancy_text
from pytest_ddpperf.units import format_count

__tracebackhide__ = errors.hidden

_OF_PYTEST = "PYTEST_CURRENT_TEST"  # differs between tests, and means nothing to a training
# Errors after which a separate launch that only verifies would find nothing new.
_FINAL = (errors.LaunchError, errors.PayloadError, errors.SameCode, errors.RankSkipped, errors.RanksTimedOut)

PreparingLauncher: TypeAlias = "Callable[[Variant, PrepareJob], LaunchResult[RankPrepared]]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The results of preparing a training: trial launch (pilot), counts, verification; None for omitted parts."""

    pilot: Pilot | None = None
    counts: Counts | None = None
    verification: Verification = field(default_factory=Verification)
    remarks: tuple[Finding, ...] = ()

    def given_to(self, variant: Variant) -> Variant:
        """Returns the variant with these results, and findings on weak verification or on ranks that send nothing."""
        found = self.verification
        findings = [Finding("unverified", {"reason": found.unverified})] if found.unverified else []
        if (why := found.leniency) is not None:
            findings.append(
                Finding("lenient_verification", {"precision": why.precision, "exact_steps": why.exact_steps})
            )
        calls = None if self.counts is None else self.counts.totals.get("collective_calls")
        if isinstance(variant.subject, Script) and variant.world_size > 1 and calls == 0:
            findings.append(Finding("ranks_send_nothing", {"ranks": variant.world_size}))
        counts = self.counts or variant.counts
        return replace(variant, pilot=self.pilot, counts=counts, findings=(*variant.findings, *self.remarks, *findings))


def prepared(
    settings: Settings,
    variants: Sequence[Variant],
    launch: PreparingLauncher,
    known: MutableMapping[bytes, Prepared],
    *,
    timed: bool = True,
) -> list[Variant]:
    """Prepares each variant in a launch, and returns the variants with the results; ``known``: results to reuse."""
    done: list[Variant] = []
    wrong: list[tuple[Variant, Discrepancy]] = []
    picked: dict[int, tuple[str, str]] = {}  # by world size; compared variants load alike
    for variant in variants:
        size = variant.world_size
        job = prepare_job(settings, variant, picked.get(size), timed=timed)
        if wrong and job.verified is None:  # after incorrect training nothing is measured
            continue
        key = identity(job, variant)
        try:
            found = known[key] if key in known else _found_out(variant, job, launch)
        except errors.DdpperfError as error:
            if wrong:  # wrong training is known, and the worse fault
                raise _incorrect(wrong) from error
            raise
        if found.verification.discrepancy is not None:
            wrong.append((variant, found.verification.discrepancy))
            continue
        known[key] = found
        if found.pilot is not None and found.pilot.picked is not None:
            picked.setdefault(size, found.pilot.picked)
        done.append(found.given_to(variant))
    if wrong:
        raise _incorrect(wrong)
    return done


def _found_out(variant: Variant, job: PrepareJob, launch: PreparingLauncher) -> Prepared:
    """Launches a variant's preparation and returns its results.

    One launch verifies, times and counts. If it fails or does not confirm correctness, another launch only verifies.
    Incorrect training is reported before other failures, because it is the most serious one.
    """
    if job.reference is not None:
        verification = _beside_reference(variant, job.reference, job, launch)
        if verification.discrepancy is not None:
            return Prepared(verification=verification)
        return replace(_found_out(variant, replace(job, reference=None), launch), verification=verification)
    found, failure = Prepared(), None
    if job.parts == 0:  # the counts of a baseline's commit are stored, or nothing is to be counted
        return found
    try:
        found = outcome(job, launch(variant, job))
    except errors.DdpperfError as error:
        if job.verified is None or job.parts == 1 or isinstance(error, _FINAL):
            raise
        failure = error
    seen = found.verification
    doubtful = failure is not None or seen.discrepancy is not None or bool(seen.unverified)
    if job.verified is None or job.parts == 1 or not doubtful:
        return found
    alone = replace(job, timed=False, counted=False)
    try:
        verification = outcome(alone, launch(variant, alone)).verification
    except errors.LaunchError as error:  # what the first launch broke, for example the folder of temporary files
        raise failure or error from None
    if failure is not None and verification.discrepancy is None:
        raise failure
    return replace(found, verification=verification)


def _beside_reference(variant: Variant, reference: Subject, job: PrepareJob, launch: PreparingLauncher) -> Verification:
    """Compares the first steps of a parallel training with the same steps of ``reference`` in one process."""
    from pytest_ddpperf.training.correctness.traces import compared

    tracing = replace(job, timed=False, counted=False, traced=True, reference=None)
    strategy = Strategy("single") if isinstance(reference, Workload) else None
    twin = replace(tracing, training=replace(job.training, subject=reference, strategy=strategy))
    alone = replace(variant, subject=reference, environment=replace(variant.environment, world_size=1))
    ranks = launch(variant, tracing).values
    try:
        (one,) = launch(alone, twin).values
    except errors.DdpperfError as error:
        raise errors.extended(error, before="the reference: ", benchmark=variant.key) from error
    return compared([rank.trace for rank in ranks if rank.trace], one.trace) if one.trace else Verification()


def prepare_job(
    settings: Settings, variant: Variant, picked: tuple[str, str] | None = None, *, timed: bool = True
) -> PrepareJob:
    """Returns the job of the launch that prepares a variant; ``picked``: choice of ``loader=auto``, and the reason."""
    timed = timed and settings.counts != "only"
    settings = variant.effective_settings(settings)
    counted = settings.counts != "off"
    verified = settings.verify and not variant.of_reference
    own = {name: getattr(settings, name) for name, knob in KNOBS.items() if knob.training}
    more = ("steps", "timeout") if settings.counts == "only" and settings.steps else ()  # of counting
    training = Settings(**own, **{name: getattr(settings, name) for name in ("warmup", "memory_limit", "mesh", *more)})
    loading = training
    if picked is not None and settings.picks_loading:
        loading = replace(training, loader=loader_settings(picked[0]))
    plan = pilot_plan(warmup_of(variant, settings.warmup), settings.steps)
    counts = (variant.samples_per_step, variant.tokens_per_step)
    return PrepareJob(
        LaunchJob(variant.subject, variant.resolved, loading, plan, *counts),
        timed=timed,
        counted=counted,
        verified=VerifyJob(variant.subject, variant.resolved, training) if verified and variant.resolved else None,
        copied=settings.verify,
        reference=variant.reference if settings.verify and not variant.of_reference else None,
    )


def task_text(job: PrepareJob) -> str:
    """Returns the tasks of a launch that prepares a training as text for the status line, such as ``counting``."""
    tasks = {
        "timing a few steps": job.timed,
        "counting": job.counted,
        "comparing with a single process": job.verified or job.traced,
    }
    return ", ".join(task for task, asked in tasks.items() if asked)


def identity(job: PrepareJob, variant: Variant) -> bytes:
    """Returns a digest of everything that a launch's ranks get; launches with equal digests have the same results.

    The subject is serialised for the digest, because two instances of a function are never equal. The subject's imports
    and the files that it reads are assumed to stay the same during a session.
    """
    environment = variant.environment
    place = (
        (environment.device, environment.backend, environment.world_size, variant.mode, variant.of_reference),
        variant.variables,
        sorted((name, value) for name, value in os.environ.items() if name != _OF_PYTEST),
        search_path(),
        current_folder(),
    )
    digest = hashlib.sha256(dump_call(Call(PREPARE_LAUNCH, (job,))))
    digest.update(pickle.dumps(place))
    return digest.digest()


def outcome(job: PrepareJob, result: LaunchResult[RankPrepared]) -> Prepared:
    """Returns the results of a launch that prepares a training, combined from the results of its ranks."""
    ranks = result.values
    timed = tuple(rank.timed for rank in ranks if rank.timed is not None)
    counts = [rank.counts for rank in ranks if rank.counts is not None]
    plain = result.seconds - max(rank.counting + rank.verifying for rank in ranks)  # of a launch that only times steps
    return Prepared(
        pilot=pilot_of(timed, plain, job.training.plan) if timed else None,
        counts=merged(counts) if counts else None,
        verification=ranks[0].verification or Verification(),
        remarks=ranks[0].remarks,
    )


def _incorrect(wrong: Sequence[tuple[Variant, Discrepancy]]) -> errors.IncorrectTraining:
    """Returns the error that names all variants that differ from a single process, with two lines for each."""
    reasons = {variant.key: discrepancy_text(found) for variant, found in wrong}
    lines: list[str] = []
    for variant, _ in wrong:
        group = f"{format_count(variant.environment.world_size, 'rank')}, {variant.environment.backend}"
        lines += [f"broken: {reasons[variant.key]}", f"  benchmark {variant.name}, {group}"]
    return errors.IncorrectTraining("\n".join(lines), wrong=reasons)
