"""Both sides of a benchmark that is held against another revision: what is measured, and what is held against what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.errors import ReferenceFailed
from pytest_ddpperf.judge.judge import Partners
from pytest_ddpperf.metrics.relating import Relate
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Counterpart, Found, Provenance, Result, record_of
from pytest_ddpperf.run.variant import Variant


def side_by_side(
    revision: Revision,
    variants: Sequence[Variant],
    relate: Relate,
    results: Callable[[Sequence[Variant], Partners], tuple[Result, ...]],
) -> tuple[Result, ...]:
    """The results of variants, each held against itself under the other revision; those it cannot run are new.

    Args:
        revision: the other one.
        variants: this side's.
        relate: as of ``Judge``.
        results: counts, measures and judges the variants of both sides.
    """
    __tracebackhide__ = True
    lost: dict[tuple[str, int], str] = {}
    while True:
        theirs = [replace(one, other=True) for one in variants if one.key not in lost]
        try:
            return results([*variants, *theirs], partners(revision, variants, lost, relate))
        except ReferenceFailed as error:
            lost[error.benchmark] = str(error).partition("\n")[0]


def partners(
    revision: Revision, variants: Sequence[Variant], lost: Mapping[tuple[str, int], str], relate: Relate
) -> Partners:
    """What makes, of the measurements of both sides, the base that each of this side's is held against.

    Args:
        revision: the other one.
        variants: this side's; their measurements come first, then the other side's, in the same order.
        lost: why the other side has none of a variant, by the variant's key.
        relate: as of ``Judge``; where a variant is lost, what it makes is for this side alone.
    """

    def found(measured: tuple[Measurement, ...]) -> tuple[Found, ...]:
        theirs = measured[len(variants) :]
        related = iter(theirs if lost else relate(theirs))
        return tuple(
            _without(revision, lost[variant.key]) if variant.key in lost else _base(revision, next(related), own)
            for variant, own in zip(variants, measured, strict=False)
        )

    return found


def _base(revision: Revision, theirs: Measurement, own: Measurement) -> Found:
    record = record_of(theirs, Provenance(date="", commit=revision.commit))  # now; it is never stored
    launches = f", {len(own.launches)}+{len(theirs.launches)} launches" if own.launches else ", counted only"
    origin = f"{_origin(revision)}, side by side{launches}"
    counterpart = Counterpart(revision=revision.label, commit=revision.commit, launches=len(theirs.launches))
    return Found(record=record, origin=origin, counted=record, counterpart=counterpart)


def _without(revision: Revision, reason: str) -> Found:
    counterpart = Counterpart(revision=revision.label, commit=revision.commit, lacking=reason)
    return Found(record=None, origin=f"{_origin(revision)} cannot run it", counterpart=counterpart)


def _origin(revision: Revision) -> str:
    return f"revision {revision.label}"
