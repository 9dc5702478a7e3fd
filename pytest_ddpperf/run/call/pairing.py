"""The commit of a stored baseline, which is measured in the rounds of this checkout: where it is, or why it is not."""

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
    """Why times are not measured beside the commit of a baseline."""

    reason: str = ""  # with the cure; empty if there is nothing to pair
    lacking: bool = False  # whether that commit cannot be had


def times_of(stored: StoredBaseline) -> BaselineRecord | None:
    """The record of a baseline that has times of this environment and training; None if it has none."""
    record = None if stored.differs else stored.record
    return record if record is not None and record.timed else None


def side_of_baselines(
    test: str, baselines: Sequence[StoredBaseline], settings: Settings, session: Session
) -> RevisionSide | Unpaired:
    """The side of the commit that the baselines of a test are of, or why there is none.

    There is nothing to pair without stored times, with new ones that replace them, and with counts alone.
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
    """The same of records of times; GitError or LaunchError if git does not have their commit."""
    commits = {session.archive.commit_of(test, record, fetch_it=fetch_it) for record in records}
    if len(commits) > 1:
        return Unpaired("the baselines of this test are of several commits: save them together", lacking=True)
    (commit,), here = commits, session.archive.provenance()
    if here.commit == commit and not here.dirty:
        return Unpaired("this checkout is the commit of the baseline, so nothing of this repository has changed")
    return session.sides.of_commit(commit)
