"""The references of a benchmark: stored baselines, or launches of another revision or of the baselines' commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from pytest_ddpperf.against.git import GitError
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.baselines import fingerprint
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.judge.counts import counts_of
from pytest_ddpperf.judge.judge import References
from pytest_ddpperf.metrics.launch_figures import long_steps_of
from pytest_ddpperf.records import results
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import KNOBS, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredReferences(References):
    """Stored baselines as references, which are not measured again."""

    baselines: tuple[results.StoredBaseline, ...]  # in the candidates' order
    both_sides: tuple[Variant, ...]  # all variants to measure: the candidates
    paired: ClassVar[bool] = False

    @property
    def timed(self) -> bool:
        """Returns whether at least one comparable baseline has step times."""
        return any(times_of(stored) is not None for stored in self.baselines)

    def of(self, measured: Sequence[Measurement]) -> Sequence[results.Reference]:  # noqa: ARG002 - not measured again
        """Returns the stored baselines, one for each measurement."""
        return self.baselines


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedReferences(References):
    """References that are measured in the same rounds of launches as their candidates."""

    revision: Revision
    variants: tuple[Variant, ...]  # the candidates
    lacking: Mapping[tuple[str, int], str]  # by benchmark, why the reference cannot run it
    # Of the candidates, if the reference is their commit; empty for another revision.
    baselines: tuple[results.StoredBaseline, ...] = ()
    # Converts the candidate's environment to the reference's, if that is another one.
    environment: Callable[[Environment], Environment] = lambda environment: environment
    paired: ClassVar[bool] = True
    timed: ClassVar[bool] = True

    @property
    def both_sides(self) -> list[Variant]:
        """All variants to measure: the candidates, followed by the references that can run."""
        kept = [variant for variant in self.variants if variant.key not in self.lacking]
        if self.baselines:  # their counts are stored
            stored = {each.key: counts_of(known) for each, known in zip(self.variants, self.baselines, strict=True)}
            kept = [replace(each, own={**each.own, "counts": "off"}, counts=stored[each.key]) for each in kept]
        return [
            *self.variants,
            *(replace(each, of_reference=True, environment=self.environment(each.environment)) for each in kept),
        ]

    def of(self, measured: Sequence[Measurement]) -> Sequence[results.Reference]:
        """Returns the reference of each candidate; ``measured`` has first the candidates, then the references."""
        pairs = self._pairs(measured)
        if not self.baselines:
            return pairs
        return tuple(
            replace(stored, unpaired=cannot_run(pair.revision, pair.lacking) if pair.lacking else "")
            if pair.record is None
            else replace(stored, pair=pair)
            for stored, pair in zip(self.baselines, pairs, strict=True)
        )

    def _pairs(self, measured: Sequence[Measurement]) -> tuple[results.PairedRevision, ...]:
        candidates, others = measured[: len(self.variants)], iter(measured[len(self.variants) :])
        # A lacking reference has no launches, so the other references have no quotients with it.
        every = (
            replace(each, launches=(), series=()) if each.key in self.lacking else next(others) for each in candidates
        )
        return tuple(
            results.PairedRevision(
                revision=self.revision.label, commit=self.revision.commit, lacking=self.lacking[each.key]
            )
            if each.key in self.lacking
            else self._reference(each, candidate)
            for each, candidate in zip(self.derive(tuple(every)), candidates, strict=True)
        )

    def _reference(self, measured: Measurement, candidate: Measurement) -> results.PairedRevision:
        commit = self.revision.commit
        return results.PairedRevision(
            revision=self.revision.label,
            commit=commit,
            record=results.record_of(measured, results.Provenance(date="", commit=commit)),  # it is never stored
            launches=len(measured.launches),
            long_steps=long_steps_of(measured),
            candidate_launches=len(candidate.launches),
            counted_differs=fingerprint.counted_differences(measured.environment, candidate.environment),
            kernels_differ=fingerprint.kernel_differences(measured.environment, candidate.environment),
        )


class Unpaired(NamedTuple):
    """The reason why a baseline's commit is not measured side by side with this checkout."""

    reason: str = ""  # with the cure; empty if there is nothing to pair
    lacking: bool = False  # whether the commit is not available


def times_of(stored: results.StoredBaseline) -> results.BaselineRecord | None:
    """Returns a baseline's record if its step times can be compared with the times of this run; else None."""
    record = None if stored.differs else stored.record
    return record if record is not None and record.timed else None


def side_of_baselines(
    test: str, baselines: Sequence[results.StoredBaseline], settings: Settings, session: Session
) -> RevisionSide | Unpaired:
    """Returns a checkout of the baselines' commit, with its launchers, or the reason not to measure the commit."""
    records = [record for stored in baselines if (record := times_of(stored)) is not None]
    if not records or settings.save is not None or settings.counts == "only":
        return Unpaired()
    if settings.quick or settings.recheck == "false":
        return Unpaired(f"{KNOBS['quick'].option}" if settings.quick else f"{KNOBS['recheck'].option}=false")
    try:
        return _side(test, records, session, fetch_it=settings.recheck == "fetch")
    except GitError as error:
        return Unpaired(str(error), lacking=True)
    except LaunchError as error:
        return Unpaired(error.headline, lacking=True)


def _side(
    test: str, records: Sequence[results.BaselineRecord], session: Session, *, fetch_it: bool
) -> RevisionSide | Unpaired:
    """Returns a checkout of the records' commit, or why the commit is not measured; raises GitError if git lacks it."""
    commits = {session.archive.commit_of(test, record, fetch_it=fetch_it) for record in records}
    if len(commits) > 1:
        return Unpaired("the baselines of this test are of several commits: save all of them in one run", lacking=True)
    (commit,), here = commits, session.archive.provenance()
    if here.commit == commit and not here.dirty:
        return Unpaired("this checkout is the commit of the baseline, so nothing of this repository has changed")
    return session.sides.of_commit(commit)


def cannot_run(revision: str, reason: str) -> str:
    """Returns the message that the baseline's commit, ``revision``, cannot run a test, with the reason and advice."""
    cure = f"if that commit has to be built first, give {KNOBS['against_setup'].option}"
    return f"{revision}, the commit of the baseline, cannot run this test: {reason}; {cure}"


def environment_beside(session: Session, environment: Environment) -> Environment:
    """Returns the environment of the reference's ranks; ``environment``: the environment of the candidate's ranks."""
    side = session.sides.reference
    if side is None or side.revision.python is None:
        return environment
    placed = replace(session.settings, device=environment.device, backend=environment.backend)
    try:
        found = session.environment(placed, environment.world_size, side=side)
        recorded = {**found.recorded, "python": side.revision.python.version}
        return replace(found, threads=environment.threads, recorded=recorded)
    except LaunchError as error:
        raise LaunchError(f"{KNOBS['against_python'].option}={side.revision.python.given}: {error}") from error


def with_environments(result: results.Result) -> results.Result:
    """Adds a finding to a result if the environments of candidate and reference differ."""
    reference, differ = result.paired, tuple[str, ...]()
    if reference is None or reference.python is None:
        return result
    if reference.record is not None:
        pair = reference.record.environment, result.measurement.environment
        versions = tuple(environment.recorded.get("python", "") for environment in pair)
        pythons = (f"Python {' -> '.join(versions)}",) if versions[0] != versions[1] else ()
        differ = (*pythons, *fingerprint.differences(*pair), *fingerprint.recorded_differences(*pair))
    finding = Finding(
        "other_environment", {"python": reference.python, "differ": differ, "packages": reference.packages}
    )
    return replace(result, findings=(*result.findings, finding))
