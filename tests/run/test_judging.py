"""A judged call, with made-up launches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.errors import LaunchError, RankFailed, extended
from pytest_ddpperf.metrics.scaling import alone
from pytest_ddpperf.records.results import PairedRevision, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.benchmark_launches import BenchmarkLaunches
from pytest_ddpperf.run.judging import JudgedRun
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.run.variant import Variant, counted_only
from pytest_ddpperf.settings import Settings
from tests.factories import make_variant

TEST = "t.py::test"
HUNGRY, PLAIN = make_variant("hungry"), make_variant("plain")


def fitting(_paired: object, variants: Sequence[Variant], *_: object) -> tuple[Result, ...]:
    """The results of all but the hungry one, which runs out of memory."""
    if HUNGRY in variants:
        raise extended(RankFailed("rank 0 ran out of memory", out_of_memory=True), benchmark=HUNGRY.key)
    reference = PairedRevision(revision="v1", commit=None)
    return tuple(
        Result(
            test=TEST, measurement=counted_only(each), comparisons=(), verdict=Verdict.UNCHANGED, reference=reference
        )
        for each in variants
    )


@pytest.mark.parametrize("verdict", [Verdict.DOES_NOT_FIT, Verdict.REGRESSED])
def test_whatever_becomes_of_the_reference_of_what_does_not_fit_the_others_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    """A reference that cannot be launched is no reference that fits."""

    def prepared(_run: JudgedRun, variants: Sequence[Variant]) -> Any:
        assert [(each.name, each.of_reference) for each in variants] == [("hungry", True)]
        if verdict is Verdict.DOES_NOT_FIT:
            raise LaunchError("the command failed\nwith status 1")

    monkeypatch.setattr(BenchmarkLaunches, "start", lambda *_: None)
    monkeypatch.setattr(JudgedRun, "prepared", prepared)
    monkeypatch.setattr(JudgedRun, "_paired_results", lambda _, *given: fitting(*given))
    session = Session(Settings(), tmp_path, LiveLine(None, None), revision=Revision("v1", "0" * 40, tmp_path))
    run = JudgedRun(session, TEST, Settings(fail_on=frozenset({Verdict.BROKEN})), [], session.paired_launches([]))
    run.judged([HUNGRY, PLAIN], alone)
    hungry, plain = session.results
    assert (hungry.verdict, plain.verdict) == (verdict, Verdict.UNCHANGED)
    assert hungry.paired is not None
    assert hungry.paired.lacking == ("the command failed" if verdict is Verdict.DOES_NOT_FIT else "")
