"""What a session knows of a benchmark before it is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.against.interpreter import Interpreter
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.cli.bisect.target import FORCED
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.context import Gpus, TorchMachine
from pytest_ddpperf.metrics.table import METRICS, counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import BenchmarkId, Plan
from pytest_ddpperf.records.results import Comparison, Provenance, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.session.ending import finish
from pytest_ddpperf.run.session.probe import Probe
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings
from tests.factories import known, make_environment, make_new_result, make_rank_launch, make_result

if TYPE_CHECKING:
    from pytest_ddpperf.launch.launchers import Launchers

TEST = "t.py::test"
CPU = make_environment(cores=2)
DDP = BenchmarkId(name="ddp", strategy="ddp", mode=None, environment=CPU)
(STEP_TIME,) = (metric for metric in METRICS if metric.name == "step_time")


def result(seconds: float) -> Result:
    return make_new_result(TEST, STEP_TIME.series((seconds,)), environment=CPU, plan=Plan(warmup=1, steps=4))


@pytest.mark.parametrize(("probe", "theirs"), [(None, True), (Probe("1" * 40), False)])
def test_a_search_runs_the_tests_of_this_checkout_at_every_commit(
    tmp_path: Path, probe: Probe | None, *, theirs: bool
) -> None:
    revision = Revision("v1", "0" * 40, tmp_path)
    session = Session(Settings(against_tests=True), tmp_path, LiveLine(None, None), revision=revision, probe=probe)
    assert session.sides.reference is not None
    assert session.sides.reference.tests is theirs


def test_no_verdict_fails_a_test_of_a_search(tmp_path: Path) -> None:
    """Else its other benchmarks would not be measured. The project's file may require baselines."""
    session = Session(Settings(require_baseline=True), tmp_path, LiveLine(None, None), probe=Probe("1" * 40, FORCED))
    assert session.forced(session.settings).failing == frozenset()


def test_a_search_omits_counts_only_if_nothing_needs_them(tmp_path: Path) -> None:
    """A scaling test whose model grows is measured by its counts, and would be refused without them."""
    probe = Probe("1" * 40, {"counts": "off", "launches": 8})
    session = Session(Settings(), tmp_path, LiveLine(None, None), probe=probe)
    assert session.forced(Settings()).counts == "off"
    kept = session.forced(Settings(), counts=True)
    assert (kept.counts, kept.launches) == ("on", 8)
    assert session.forced(Settings(counts="off"), counts=True).counts == "off"


def test_a_commit_of_a_search_runs_in_the_environment_of_the_good_end(tmp_path: Path) -> None:
    """Only code differs between commits, and only environments between lists of packages."""
    good, other = (
        Interpreter(given=name, python=name, tag="cpython-311", version="3.11.7", prefixes=(), path=())
        for name in ("good", "other")
    )
    commit = Probe("1" * 40).revision(Revision("v1", "0" * 40, tmp_path, python=good))
    assert (commit.commit, commit.python) == ("1" * 40, good)
    here = Revision("this checkout", "0" * 40, tmp_path, tmp_path, good)
    assert Probe("3", python=other).revision(here) == Revision("this checkout", "0" * 40, tmp_path, tmp_path, other)


def counted(calls: float) -> Counts:
    return Counts(totals={"collective_calls": calls}, details={"collective_calls": {"all_reduce": calls}}, unstable={})


def saved(
    root: Path,
    day: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 0.0,
    calls: float = 0.0,
    verdict: Verdict = Verdict.UNCHANGED,
    failure: str = "",
    **sets: str,
) -> StoredBaseline:
    """What is found after a run was saved that timed, counted or did both."""
    session = Session(Settings(**{"save": "default", **sets}), root, LiveLine(None, None))
    monkeypatch.setattr(session.archive, "provenance", lambda: Provenance(date=day, commit=day))
    before = session.archive.find(TEST, DDP)
    counts = counted(calls) if calls else None
    timed = (STEP_TIME.series((seconds,)),) if seconds else ()
    rank = make_rank_launch(rank=0, step_times=(seconds,))
    measured = replace(
        result(seconds).measurement,
        launches=(Launch(round=0, ranks=(rank,), seconds=1.0),) if seconds else (),
        series=(*timed, *(counted_series(counts) if counts else ())),
        counts=counts,
    )
    compared = tuple(Comparison(series=one, tolerance=0.03, verdict=Verdict.UNCHANGED, gated=True) for one in timed)
    found = make_result(
        test=TEST, measurement=measured, comparisons=compared, verdict=verdict, reference=before, failure=failure
    )
    session.outputs.results.append(found)
    session.end_test(TEST, "")
    return session.archive.find(TEST, DDP)


def test_saving_a_run_keeps_stored_values_that_it_did_not_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times or counts, each with the day that it is from."""

    def kept(found: StoredBaseline) -> tuple[list[float], Counts | None, str, str]:
        assert found.record is not None
        values = [series.value for series in found.record.series]
        return values, found.record.counts, found.record.date, found.record.counts_from.date

    both = saved(tmp_path, "2026-01-12", monkeypatch, seconds=0.25, calls=2.0)
    assert kept(both) == ([0.25, 2.0], counted(2.0), "2026-01-12", "2026-01-12")
    times = saved(tmp_path, "2026-01-13", monkeypatch, seconds=0.5)
    assert kept(times) == ([0.5, 2.0], counted(2.0), "2026-01-13", "2026-01-12")
    assert times.counted == times.record
    again = saved(tmp_path, "2026-01-14", monkeypatch, seconds=0.75)
    assert kept(again) == ([0.75, 2.0], counted(2.0), "2026-01-14", "2026-01-12")
    counts = saved(tmp_path, "2026-01-15", monkeypatch, calls=3.0)
    assert kept(counts) == ([0.75, 3.0], counted(3.0), "2026-01-14", "2026-01-15")
    anew = saved(tmp_path, "2026-01-16", monkeypatch, seconds=0.5, calls=1.0)
    assert kept(anew) == ([0.5, 1.0], counted(1.0), "2026-01-16", "2026-01-16")


def test_saving_into_another_set_keeps_the_values_of_that_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of the set that the run is compared with."""
    saved(tmp_path, "2026-01-12", monkeypatch, seconds=0.25, calls=2.0)
    saved(tmp_path, "2026-01-13", monkeypatch, seconds=0.5, calls=2.0, save="nightly")
    saved(tmp_path, "2026-01-14", monkeypatch, calls=3.0, save="nightly", baseline_set="default")
    found = known(Store(tmp_path / Settings().baseline_dir, "nightly").find(TEST, DDP.name, CPU).record)
    assert [series.value for series in found.series] == [0.5, 3.0]


@pytest.mark.parametrize("bad", [{"verdict": Verdict.BROKEN}, {"verdict": Verdict.REGRESSED, "failure": "slower"}])
def test_a_broken_benchmark_is_not_stored_even_if_its_test_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Any
) -> None:
    """It is skipped with --ddpperf-fail-on=none, and a test with pytest.mark.xfail may fail."""
    good = saved(tmp_path, "2026-01-12", monkeypatch, seconds=0.25, calls=2.0)
    assert saved(tmp_path, "2026-01-13", monkeypatch, **bad) == good


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        (Settings(), False),
        (Settings(report=(("json", Path("out.json")),)), True),
        (Settings(history=Path("runs.sqlite")), True),
        (Settings(save="default"), True),
        (Settings(calibrate=5), True),
    ],
)
def test_results_name_the_commit_of_the_first_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, *, read: bool
) -> None:
    """Another may be checked out before the session ends."""
    commits = iter([Checkout("1" * 40, "main", dirty=False), Checkout("2" * 40, "main", dirty=True)])
    monkeypatch.setattr("pytest_ddpperf.against.git.checkout", lambda *_: next(commits))
    session = Session(settings, tmp_path, LiveLine(None, None))
    _ = session.sides.launchers
    if read:
        found = session.archive.provenance()
        assert (found.commit, found.dirty) == ("1" * 40, False)
    assert next(commits).commit == ("2" if read else "1") * 40


@pytest.mark.parametrize(
    ("checked_out", "here"),
    [
        (Checkout("1" * 40, "main", dirty=False), "1111111, the same commit as the reference"),
        (Checkout("1" * 40, "main", dirty=True), "1111111+changes"),
        (Checkout("2" * 40, "main", dirty=False), "2222222"),
        (None, ""),
    ],
)
def test_a_commit_that_is_compared_with_itself_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked_out: Checkout | None, here: str
) -> None:
    """As on a push to the branch whose merge base is asked for: such a gate could never fail."""
    monkeypatch.setattr("pytest_ddpperf.against.git.checkout", lambda *_: checked_out)
    session = Session(
        Settings(against="v1"), tmp_path, LiveLine(None, None), revision=Revision("v1", "1" * 40, tmp_path)
    )
    finish(session)
    assert session.outputs.here == here


class FoundMachine:
    """The first launcher of a session whose ranks find what is given."""

    def __init__(self, gpus: Gpus, cuda: str | None = "13.0") -> None:
        self.asked: list[bool] = []
        self.found = TorchMachine(torch="2.13.0", cuda=cuda, gpus=gpus, backends=("gloo", "nccl"))

    def machine(self, *, gpus: bool = True) -> TorchMachine:
        self.asked.append(gpus)
        return self.found if gpus else replace(self.found, gpus=Gpus())

    @staticmethod
    def counts(world_size: int, *_: object) -> tuple[int, ...]:
        return (world_size,)


class FirstOf(list[FoundMachine]):
    """Launchers of which there is one."""

    def __init__(self, first: FoundMachine) -> None:
        super().__init__([first])
        self.remarks = ("GPU 0 of rank 0: it is taken",)


def session_on(machine: FoundMachine, folder: Path) -> Session:
    session = Session(Settings(), folder, LiveLine(None, None))
    session.sides._launchers = cast("Launchers", FirstOf(machine))
    return session


def test_if_gpus_fail_the_cpu_is_used_with_a_note(tmp_path: Path) -> None:
    session = session_on(FoundMachine(Gpus(error="CUDA unknown error")), tmp_path)
    settings = Settings()
    assert session.world_sizes(settings) == (2,)
    assert [session.environment(settings, 2).device for _ in range(2)] == ["cpu"] * 2
    told = "device=auto chose the CPU, because torch 2.13.0 can use no GPU: CUDA unknown error"
    finish(session)
    assert session.outputs.complaints == [told, "GPU 0 of rank 0: it is taken"]
    with pytest.raises(
        LaunchError, match=r"device=cuda needs a GPU, and torch 2\.13\.0 can use none \(CUDA unknown error"
    ):
        session.environment(Settings(device="cuda"), 2)


def test_a_benchmark_on_the_cpu_asks_no_gpu(tmp_path: Path) -> None:
    machine = FoundMachine(Gpus(names=("H200",) * 8))
    session, settings = session_on(machine, tmp_path), Settings(device="cpu")
    assert session.world_sizes(settings) == (2,)
    assert session.environment(settings, 2).device == "cpu"
    assert machine.asked == [False] * 2
    assert session.world_sizes(Settings()) == (8,)


def test_a_build_for_rocm_is_recognised_by_its_version(tmp_path: Path) -> None:
    session = session_on(FoundMachine(Gpus(names=("AMD Instinct MI300X",)), cuda="6.4.43484"), tmp_path)
    found = session.environment(Settings(), 1)
    assert (found.device, found.device_model, found.cuda) == ("cuda", "AMD Instinct MI300X", "6.4")


def test_ranks_that_nccl_has_no_gpus_for_skip_their_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Settings(), tmp_path, LiveLine(None, None))
    two = Gpus(names=("H100", "H100"), pci=("0000:01:00.0", "0000:02:00.0"))
    machine = TorchMachine(torch="2.13.0", cuda="13.0", gpus=two, backends=("gloo", "nccl"))
    monkeypatch.setattr(session, "_torch", lambda *_: machine)
    with pytest.raises(pytest.skip.Exception, match="3 ranks have 2; use fewer ranks, or backend=gloo"):
        session.environment(Settings(device="cuda", backend="nccl"), 3)
