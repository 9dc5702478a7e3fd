"""Finds the commit of a stored baseline to measure in the rounds of this checkout, or the reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_ddpperf.against.git import GitError
from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.records.results import BaselineRecord, StoredBaseline
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import KNOBS, Settings


class Unpaired(NamedTuple):
    """The reason why times are not measured together with a baseline's commit."""

    reason: str = ""  # with the cure; empty if there is nothing to pair
    lacking: bool = False  # whether the commit is not available


def times_of(stored: StoredBaseline) -> BaselineRecord | None:
    """Returns the record of a baseline with times of this environment and training; None without such times."""
    record = None if stored.differs else stored.record
    return record if record is not None and record.timed else None


def side_of_baselines(
    test: str, baselines: Sequence[StoredBaseline], settings: Settings, session: Session
) -> RevisionSide | Unpaired:
    """Returns the side that runs the commit of a test's baselines, or why there is none.

    Nothing is paired without stored times, if new times replace them, or if only counts are taken.
    """
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


def _side(test: str, records: Sequence[BaselineRecord], session: Session, *, fetch_it: bool) -> RevisionSide | Unpaired:
    """Returns the side for records of times; GitError or LaunchError if git lacks their commit."""
    commits = {session.archive.commit_of(test, record, fetch_it=fetch_it) for record in records}
    if len(commits) > 1:
        return Unpaired("the baselines of this test are of several commits: save them together", lacking=True)
    (commit,), here = commits, session.archive.provenance()
    if here.commit == commit and not here.dirty:
        return Unpaired("this checkout is the commit of the baseline, so nothing of this repository has changed")
    return session.sides.of_commit(commit)
