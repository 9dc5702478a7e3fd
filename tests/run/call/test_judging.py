"""A judged call, with made-up launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against.paired_launches import PairedLaunches
from pytest_ddpperf.against.worktree import Revision, this_checkout
from pytest_ddpperf.errors import DdpperfError, LaunchError, RankFailed, ReferenceStopped, SameCode, extended
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.metrics.scaling import alone
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.results import PairedRevision, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.budget.allocation import Priority, TimeRequest
from pytest_ddpperf.run.call.benchmark_launches import BenchmarkLaunches
from pytest_ddpperf.run.call.judging import JudgedRun
from pytest_ddpperf.run.call.variants import Variant, counted_only
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings
from tests.factories import (
    make_baseline_record,
    make_environment,
    make_launch,
    make_measurement,
    make_new_result,
    make_result,
    make_series,
    make_variant,
)

TEST = "t.py::test"
HUNGRY, PLAIN = make_variant("hungry"), make_variant("plain")


@pytest.fixture(autouse=True)
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is launched, so that no launch imports anything; each test says what is measured."""
    monkeypatch.setattr(BenchmarkLaunches, "start", lambda *_: None)
    monkeypatch.setattr(JudgedRun, "prepared", lambda _, variants: [*variants])
    monkeypatch.setattr(PairedLaunches, "with_imports", lambda _, result: result)


def measured_if_fitting(_run: JudgedRun, variants: Sequence[Variant], judge: Judge, **_: Any) -> None:
    """Measures all but the hungry one, which runs out of memory."""
    if HUNGRY in variants:
        raise extended(RankFailed("rank 0 ran out of memory", out_of_memory=True), benchmark=HUNGRY.key)
    reference = PairedRevision(revision="v1", commit=None)
    judge.results = tuple(
        make_result(test=TEST, measurement=counted_only(each), verdict=Verdict.UNCHANGED, reference=reference)
        for each in variants
        if not each.of_reference
    )


@pytest.mark.parametrize("verdict", [Verdict.DOES_NOT_FIT, Verdict.REGRESSED])
def test_other_benchmarks_keep_results_whatever_happens_to_the_reference_of_one_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    """A reference that cannot be launched is no reference that fits."""
    alone_prepared = list[str]()

    def prepared(_run: JudgedRun, variants: Sequence[Variant]) -> list[Variant]:
        if all(each.of_reference for each in variants):
            alone_prepared.extend(each.name for each in variants)
            if verdict is Verdict.DOES_NOT_FIT:
                raise LaunchError("the command failed\nwith status 1")
        return [*variants]

    monkeypatch.setattr(JudgedRun, "prepared", prepared)
    monkeypatch.setattr(JudgedRun, "measure", measured_if_fitting)
    session = Session(Settings(), tmp_path, LiveLine(None, None), revision=Revision("v1", "0" * 40, tmp_path))
    run = JudgedRun(session, TEST, Settings(fail_on=frozenset({Verdict.BROKEN})), [], session.sides.paired([]))
    run.judged([HUNGRY, PLAIN], alone)
    assert alone_prepared == ["hungry"]
    hungry, plain = session.outputs.results
    assert (hungry.verdict, plain.verdict) == (verdict, Verdict.UNCHANGED)
    assert hungry.paired is not None
    assert hungry.paired.lacking == ("the command failed" if verdict is Verdict.DOES_NOT_FIT else "")


STORED = StoredBaseline(
    record=make_baseline_record(
        name="hungry",
        strategy="custom",
        environment=make_environment(),
        plan=Plan(warmup=1, steps=4),
        series=(make_series("step_time", 1.0),),
        commit="1" * 40,
    ),
    origin="",
)
SAME_CODE = SameCode("both run this checkout's; move it")


def judged_beside_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: DdpperfError, **settings: Any
) -> tuple[str, list[tuple[bool, list[str]]]]:
    """Why two benchmarks are not paired whose pair ends so; and who was started, beside the commit and alone."""
    started: list[tuple[bool, list[str]]] = []

    def start(launches: BenchmarkLaunches, variants: Sequence[Variant]) -> None:
        started.append((launches.paired is not None, [each.name for each in variants]))

    def measure(_run: JudgedRun, variants: Sequence[Variant], judge: Judge, **_: Any) -> None:
        sides = [(each.name, each.of_reference) for each in variants]
        if (HUNGRY.name, True) in sides:
            assert sides == [("hungry", False), ("plain", False), ("hungry", True), ("plain", True)]
            raise error
        judge.results = tuple(
            replace(make_new_result(TEST), measurement=counted_only(each), reference=stored)
            for each, stored in zip(variants, judge._references.of([]), strict=True)
        )

    session = Session(Settings(), root, LiveLine(None, None))
    side = session.sides._side(Revision("1" * 40, "1" * 40, root), tests=True, opposite=True)
    monkeypatch.setattr(BenchmarkLaunches, "start", start)
    monkeypatch.setattr(JudgedRun, "measure", measure)
    monkeypatch.setattr("pytest_ddpperf.run.call.references.side_of_baselines", lambda *_: side)
    monkeypatch.setattr(JudgedRun, "_with_baselines", lambda _, variants: (list(variants), (STORED,) * len(variants)))
    JudgedRun(session, TEST, Settings(**settings), []).judged([HUNGRY, PLAIN], alone)
    (reason,) = {str(getattr(result.reference, "unpaired", None)) for result in session.outputs.results}
    return reason, started


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LaunchError("git cannot check it out\nfor want of space"), "git cannot check it out"),
        (SAME_CODE, "both run this checkout's; move it"),
        (ReferenceStopped("rank 0 of 2 was killed"), "rank 0 of 2 was killed; run the test again"),
    ],
)
def test_if_a_pair_fails_all_benchmarks_are_launched_again_and_compared_with_stored_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: DdpperfError, reason: str
) -> None:
    """Those beside the commit are of no use then: without launchers of their own benchmarks would take no turns."""
    both = ["hungry", "plain"]
    told, started = judged_beside_commit(tmp_path, monkeypatch, error)
    assert told == reason
    assert started == [(False, both), (True, both), (False, both)]


def test_without_time_for_launches_the_commit_of_the_baselines_is_not_checked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call only counts, also if its budget has time again because other tests are prepared faster."""
    found = list[bool]()

    def prepared(run: JudgedRun, variants: Sequence[Variant]) -> list[Variant]:
        found.append(run._timed)
        return [*variants]

    monkeypatch.setattr(JudgedRun, "prepared", prepared)
    monkeypatch.setattr(JudgedRun, "_with_baselines", lambda _, variants: (list(variants), (STORED,) * len(variants)))
    monkeypatch.setattr("pytest_ddpperf.run.call.references.side_of_baselines", lambda *_: pytest.fail("checked out"))
    session = Session(Settings(budget=60.0), tmp_path, LiveLine(None, None))
    session.budget.two_passes = True
    left = iter([-1.0])
    monkeypatch.setattr(type(session.budget), "left", property(lambda _: next(left, 60.0)))
    JudgedRun(session, TEST, Settings(), []).judged([HUNGRY], alone)
    assert found == [False]
    (result,) = session.outputs.results
    assert (result.verdict, result.measurement.untimed) == (Verdict.INCONCLUSIVE, True)


def test_a_pair_that_is_needed_ends_the_session_if_it_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it only failed for once, the test fails."""
    with pytest.raises(pytest.exit.Exception, match="only gross slowdowns could fail: no checkout") as ended:
        judged_beside_commit(tmp_path, monkeypatch, LaunchError("no checkout"), require_baseline=True)
    assert ended.value.returncode == pytest.ExitCode.USAGE_ERROR
    with pytest.raises(ReferenceStopped, match="rank 0 of 2 was killed"):
        judged_beside_commit(tmp_path, monkeypatch, ReferenceStopped("rank 0 of 2 was killed"), require_baseline=True)


def test_a_call_that_fails_requests_no_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(run: JudgedRun, *_: Any, **__: Any) -> None:
        run.progress.request = TimeRequest(priority=Priority.SEE, wanted=9.0)
        raise RankFailed("rank 1 raised ValueError")

    monkeypatch.setattr(JudgedRun, "measure", measure)
    session = Session(Settings(), tmp_path, LiveLine(None, None), revision=this_checkout(tmp_path))
    session.budget.two_passes = True
    with pytest.raises(RankFailed):
        JudgedRun(session, TEST, Settings(), [], session.sides.paired([])).judged([PLAIN], alone)
    assert not session.budget.holds(TEST)
    assert [result.verdict for result in session.outputs.results] == [Verdict.BROKEN]


def test_a_calibration_compares_each_benchmark_with_itself_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it only counts. What ranks print is told once, and nothing is listed, stored or failed."""
    verdicts = iter([Verdict.UNCHANGED, Verdict.REGRESSED, Verdict.OK])

    def measure(run: JudgedRun, variants: Sequence[Variant], judge: Judge, **_: Any) -> None:
        assert [each.of_reference for each in variants] == [False, False, True, True]
        run.sections.append(("printed", "words"))
        timed = make_measurement(name="hungry", launches=(make_launch((0.1,) * 4),))
        measured, verdict = (timed, counted_only(PLAIN)), next(verdicts)
        judge.results = tuple(replace(make_new_result(TEST), measurement=each, verdict=verdict) for each in measured)

    monkeypatch.setattr(JudgedRun, "measure", measure)
    settings = Settings(calibrate=3)
    session = Session(settings, tmp_path, LiveLine(None, None), revision=this_checkout(tmp_path))
    sections: list[tuple[str, str]] = []
    run = JudgedRun(session, TEST, settings, sections, session.sides.paired(sections))
    measured = run.judged([HUNGRY, PLAIN], alone)
    assert [each.name for each in measured] == ["hungry", "plain"]
    (calibrated,) = session.outputs.calibrated
    assert (calibrated.measurement.name, len(calibrated.results)) == ("hungry", 3)
    assert (calibrated.alarms.found, calibrated.green.found) == (1, 2)
    assert sections == [("printed", "words")]
    assert session.outputs.results == []
