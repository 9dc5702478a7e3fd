"""Both sides of a benchmark that is held against another revision: what is measured, and what is held against what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.errors import ReferenceFailed
from pytest_ddpperf.metrics.relating import DeriveSeries
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import PairedRevision, Provenance, Result, record_of
from pytest_ddpperf.run.variant import Variant


@dataclass(frozen=True, kw_only=True)
class PairedReferences:
    """What makes the reference of each candidate out of the measurements of both sides.

    Attributes:
        revision: the reference's.
        variants: the candidates; their measurements come first, then those of the reference, in the same order.
        lacking: by benchmark, why the reference cannot run it.
        derive: adds to measurements of the reference what they amount to side by side. Where the reference lacks a
            benchmark, what ``derive`` makes is for the candidates alone.
    """

    revision: Revision
    variants: tuple[Variant, ...]
    derive: DeriveSeries
    lacking: Mapping[tuple[str, int], str]
    paired: ClassVar[bool] = True
    timed: ClassVar[bool] = True

    def of(self, measured: Sequence[Measurement]) -> tuple[PairedRevision, ...]:
        """The reference of each candidate; the candidates come first in ``measured``."""
        others = tuple(measured[len(self.variants) :])
        derived = iter(others if self.lacking else self.derive(others))
        return tuple(
            self._lacking(self.lacking[variant.key])
            if variant.key in self.lacking
            else self._reference(next(derived), candidate)
            for variant, candidate in zip(self.variants, measured, strict=False)
        )

    def _reference(self, measured: Measurement, candidate: Measurement) -> PairedRevision:
        commit = self.revision.commit
        return PairedRevision(
            revision=self.revision.label,
            commit=commit,
            record=record_of(measured, Provenance(date="", commit=commit)),  # now; it is never stored
            launches=len(measured.launches),
            candidate_launches=len(candidate.launches),
        )

    def _lacking(self, reason: str) -> PairedRevision:
        return PairedRevision(revision=self.revision.label, commit=self.revision.commit, lacking=reason)


def paired_results(
    revision: Revision,
    variants: Sequence[Variant],
    derive: DeriveSeries,
    attempt: Callable[[Sequence[Variant], PairedReferences], tuple[Result, ...] | ReferenceFailed],
) -> tuple[Result, ...]:
    """The results of variants, each compared with itself under the other revision; those it cannot run are new.

    ``attempt`` counts, measures and judges the variants of both sides, or says which of them the reference cannot run.
    """
    __tracebackhide__ = True
    lacking: dict[tuple[str, int], str] = {}
    while True:
        others = [replace(variant, of_reference=True) for variant in variants if variant.key not in lacking]
        references = PairedReferences(revision=revision, variants=tuple(variants), derive=derive, lacking=dict(lacking))
        outcome = attempt([*variants, *others], references)
        if not isinstance(outcome, ReferenceFailed):
            return outcome
        lacking[outcome.benchmark] = str(outcome).partition("\n")[0]
