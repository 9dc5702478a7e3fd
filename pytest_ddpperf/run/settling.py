"""What a stored baseline leaves open is measured side by side with the baseline's commit: whether it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.settings import Settings

OPEN = {Verdict.INCONCLUSIVE, Verdict.REGRESSED}


def side_of_baselines(
    test: str, baselines: Sequence[StoredBaseline], settings: Settings, session: Session
) -> RevisionSide | Finding | None:
    """The side of the commit that the baselines of a test are of, or why there is none; None where none is wanted."""
    records = [stored.record for stored in baselines if stored.record is not None and not stored.differs]
    timed = any(series.scale != "exact" for record in records for series in record.series)
    if not timed or not settings.settle or settings.accepting or settings.counted_only:
        return None
    # Who changes code and saves commits both together: the file came with the code that it is of.
    commits = {session.archive.brought_by(test, record) if record.dirty else record.commit for record in records}
    commit = commits.pop()
    if commits:
        return not_settled("the baselines are of several commits; save them together")
    if commit is None and any(record.dirty for record in records):
        return not_settled("it was saved with uncommitted changes; commit these and the baseline together")
    if commit is None:
        return not_settled("it names no commit; save it in a git repository")
    try:
        return session.side_of(commit)
    except LaunchError as error:
        return not_settled(error.headline)


def not_settled(reason: str) -> Finding:
    """Why the baseline's commit was not measured."""
    return Finding("not_settled", {"reason": reason})


def with_obstacle(result: Result, obstacle: Finding | None) -> Result:
    """A result beside a stored baseline; where it is open or red, with the reason why it was not settled."""
    if obstacle is None or result.verdict not in OPEN:
        return result
    return replace(result, findings=(*result.findings, obstacle))
