"""What a stored baseline leaves open is measured side by side with the baseline's commit: whether it can be."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.against.git import GitError
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.errors import DdpperfError, LaunchError, ReferenceFailed, SameCode
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import BaselineRecord, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.settings import Settings

_OPEN = {Verdict.INCONCLUSIVE, Verdict.REGRESSED}
_NOT_THE_CODE = (
    "only packages, data or the machine can have changed; run it again, or see --ddpperf-against-python for packages"
)


def times_of(stored: StoredBaseline) -> BaselineRecord | None:
    """The record of a baseline that judges times; None where it judges none."""
    record = None if stored.differs else stored.record
    timed = record is not None and any(series.metric == STEP_TIME for series in record.series)
    return record if timed else None


def side_of_baselines(
    test: str, baselines: Sequence[StoredBaseline], settings: Settings, session: Session
) -> RevisionSide | Finding | None:
    """The side of the commit that the baselines of a test are of, or why there is none; None where none is wanted."""
    records = [record for stored in baselines if (record := times_of(stored)) is not None]
    if not records or not settings.settle or settings.save is not None or settings.counted_only:
        return None
    try:
        commits = {session.archive.commit_of(test, record) for record in records}
        (commit,) = commits if len(commits) == 1 else (None,)
        if commit is None:
            return not_settled(_why_unknown(records, several=len(commits) > 1))
        here = session.provenance()
        if here.commit == commit and not here.dirty:
            return not_settled(f"this checkout is that commit: {_NOT_THE_CODE}")
        return session.side_of(commit)
    except GitError as error:
        return not_settled(str(error))
    except LaunchError as error:
        return not_settled(error.headline)


def same_files() -> Finding:
    """That the commit has no other code: the files that both sides have imported are alike."""
    return not_settled(f"both sides run the same files: {_NOT_THE_CODE}")


def stopped_by(error: DdpperfError) -> Finding:
    """Why launches of both sides were given up."""
    if isinstance(error, LaunchError | SameCode) or isinstance(error.__cause__, SameCode):
        return not_settled(error.headline)  # which has the cure
    cure = "where its commit has to be built first, see --ddpperf-against-setup"
    return not_settled(f"{error.headline}; {cure if isinstance(error, ReferenceFailed) else 'run it again'}")


def _why_unknown(records: Sequence[BaselineRecord], *, several: bool) -> str:
    """Why no commit is known to have the code of the baselines."""
    if several:
        return "the baselines of this test are of several commits; save them together"
    if any(record.dirty for record in records):
        return "it was saved with uncommitted changes; commit these and the baseline together"
    if any(record.commit is None for record in records):
        return "it names no commit; save it in a git repository"
    return "this clone has no commit with its test and its code; commit the test and the baseline together"


def not_settled(reason: str) -> Finding:
    """Why the baseline's commit was not measured."""
    return Finding("not_settled", {"reason": reason})


def why_unsettled(result: Result, side: RevisionSide | Finding | None) -> tuple[Finding, ...]:
    """Why a result was not settled beside ``side``, which its test has or lacks; empty where nothing is open."""
    if side is None or result.verdict not in _OPEN:
        return ()
    open_ones = {
        each.series.scale
        for each in result.comparisons
        if each.gated
        and each.verdict in _OPEN
        and (each.verdict is Verdict.REGRESSED or not each.series.rules.alarm_only)
    }
    if open_ones == {"exact"}:
        return (not_settled("counts are exact, so the stored ones judge them"),)
    return (side,) if isinstance(side, Finding) else ()
