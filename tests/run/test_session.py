"""What a session knows of a benchmark before it is measured."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.against.interpreter import Interpreter
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.baselines import noise
from pytest_ddpperf.baselines.history.database import HistoryRun, record
from pytest_ddpperf.errors import BaselineError, LaunchError
from pytest_ddpperf.launch.context import Gpus, TorchMachine
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.table import METRICS, counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import BenchmarkId, Environment, Measurement, Plan, Spread
from pytest_ddpperf.records.noise import Calibration, Noise
from pytest_ddpperf.records.results import Comparison, Provenance, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.probe import Probe
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.settings import Settings
from tests.factories import make_environment, make_rank_launch

if TYPE_CHECKING:
    from pytest_ddpperf.launch.launchers import Launchers

TEST = "t.py::test"
CPU = make_environment(cores=2)
DDP = BenchmarkId(name="ddp", strategy="ddp", mode=None, environment=CPU)
(STEP_TIME,) = (metric for metric in METRICS if metric.name == "step_time")


def result(seconds: float) -> Result:
    series = STEP_TIME.series((seconds,))
    comparison = Comparison(
        series=series,
        baseline=None,
        change=None,
        change_interval=None,
        tolerance=0.03,
        mde=None,
        verdict=Verdict.NEW,
        gated=True,
    )
    measured = Measurement(
        name="ddp",
        strategy="ddp",
        mode=None,
        plan=Plan(warmup=1, steps=4),
        environment=CPU,
        launches=(),
        series=(series,),
    )
    return Result(
        test=TEST,
        measurement=measured,
        comparisons=(comparison,),
        verdict=Verdict.NEW,
        reference=StoredBaseline(record=None, origin=""),
    )


@pytest.mark.parametrize(("probe", "theirs"), [(None, True), (Probe("1" * 40), False)])
def test_a_search_runs_the_tests_of_this_checkout_at_every_commit(
    tmp_path: Path, probe: Probe | None, *, theirs: bool
) -> None:
    revision = Revision("v1", "0" * 40, tmp_path)
    session = Session(Settings(against_tests=True), tmp_path, LiveLine(None, None), revision=revision, probe=probe)
    assert session.reference is not None
    assert session.reference.tests is theirs


def test_a_search_leaves_out_counts_only_where_nothing_needs_them(tmp_path: Path) -> None:
    """A scaling test whose model grows is measured by its counts, and would be refused without them."""
    probe = Probe("1" * 40, {"counted": False, "launches": 8})
    session = Session(Settings(), tmp_path, LiveLine(None, None), probe=probe)
    assert session.forced(Settings()).counted is False
    kept = session.forced(Settings(), counts=True)
    assert (kept.counted, kept.launches) == (True, 8)
    assert session.forced(Settings(counted=False), counts=True).counted is False


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


def noise_known(session: Session) -> Noise | None:
    return session.archive.find(TEST, DDP).noise


def test_noise_is_learned_from_the_history_and_from_calibrations(tmp_path: Path) -> None:
    session = Session(Settings(history=Path("runs.sqlite")), tmp_path, LiveLine(None, None))
    assert noise_known(session) is None  # no history yet
    for second, time in enumerate((0.1, 0.101, 0.099, 0.1, 0.102)):
        run = HistoryRun(
            date=f"2026-01-12T00:00:0{second}+00:00", commit="3f2a1c0", commit_date=None, branch="main", dirty=False
        )
        record(tmp_path / "runs.sqlite", run, [result(time)])
    learned = noise_known(session)
    assert learned is not None
    assert learned.between_runs.beyond.sd == pytest.approx(0.0114, rel=0.01)
    assert learned.between_runs.beyond.df == 4
    assert noise_known(Session(Settings(), tmp_path, LiveLine(None, None))) is None

    spread = Spread(sd=0.004, df=4)
    found = Calibration(
        name="ddp",
        date="2026-01-12",
        commit=None,
        runs=5,
        launches=8,
        steps=24,
        seconds=51.0,
        within=spread,
        between_launches=spread,
        between_runs=spread,
        floor=0.02,
        strategy="ddp",
    )
    for other in (replace(found, strategy="fsdp2"), replace(found, recipe={"precision": "bf16"})):
        noise.save(tmp_path / "baselines", TEST, [(CPU, other)])
        other_training = noise_known(session)  # the same name trained otherwise then
        assert other_training is not None
        assert other_training.between_runs.beyond.df == 4 + 8  # of its own runs, and of both benchmarks
    noise.save(tmp_path / "baselines", TEST, [(CPU, found)])
    known = noise_known(session)
    assert known is not None
    assert known.between_runs.beyond.sd == pytest.approx(
        0.0085, rel=0.01
    )  # variances of 0.66 %, 0.4 % explained, and 1.13 %
    assert known.between_runs.beyond.df == pytest.approx(8 * (7.23 / 8.59) ** 2, rel=0.01)
    noise.save(tmp_path / "baselines", TEST, [(replace(CPU, cores=4), replace(found, floor=0.5))])
    assert noise_known(session) == known


def counted(calls: float) -> Counts:
    return Counts(totals={"collective_calls": calls}, details={"collective_calls": {"all_reduce": calls}}, unstable={})


def saved(
    root: Path,
    day: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 0.0,
    calls: float = 0.0,
    commit: str = "",
    verdict: Verdict = Verdict.UNCHANGED,
    forced: bool = False,
) -> StoredBaseline:
    """What is found after a run was saved that timed, counted or did both."""
    session = Session(Settings(save="default", force_save=forced), root, LiveLine(None, None))
    monkeypatch.setattr(session, "provenance", lambda: Provenance(date=day, commit=commit or day))
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
    session.results.append(
        Result(
            test=TEST,
            measurement=measured,
            comparisons=tuple(
                Comparison(series=series, tolerance=0.03, verdict=verdict, gated=True) for series in timed
            ),
            verdict=verdict,
            reference=before,
        )
    )
    session.end_test(TEST, passed=True)
    return session.archive.find(TEST, DDP)


def test_what_a_saved_run_did_not_look_at_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_saving_again_on_a_commit_adds_a_run_and_on_another_replaces_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is undecided beside the first run is one more of them; what is far from it is not, unless it is forced."""

    def runs(day: str, seconds: float, **how: Any) -> tuple[list[float], list[str]]:
        found = saved(tmp_path, day, monkeypatch, seconds=seconds, **{"commit": "3f2a1c0", **how}).record
        assert found is not None
        return list(found.series[0].samples), [run.date for run in found.each_run]

    first, second, third = "2026-01-12", "2026-01-13", "2026-01-14"
    assert runs(first, 0.25, calls=2.0) == ([0.25], [first])
    assert runs(second, 0.5, verdict=Verdict.INCONCLUSIVE) == ([0.25, 0.5], [first, second])
    assert runs(third, 1.0, verdict=Verdict.REGRESSED) == ([0.25, 0.5], [first, second])
    assert runs(third, 1.0, verdict=Verdict.REGRESSED, forced=True) == ([0.25, 0.5, 1.0], [first, second, third])
    with pytest.raises(BaselineError, match="collective_calls of this run differ from those of the stored runs of the"):
        runs(third, 0.25, calls=3.0)
    counts_alone = saved(tmp_path, third, monkeypatch, calls=2.0, commit="3f2a1c0").record
    assert counts_alone is not None
    assert len(counts_alone.runs) == 3
    assert runs(third, 0.5, commit="9d8c7b6") == ([0.5], [third])


@pytest.mark.parametrize("content", [b"", b"no database"])
def test_a_history_that_cannot_be_read_spoils_no_benchmark(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "runs.sqlite").write_bytes(content)
    session = Session(Settings(history=Path("runs.sqlite")), tmp_path, LiveLine(None, None))
    assert noise_known(session) is None


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        (Settings(), False),
        (Settings(json=Path("out.json")), True),
        (Settings(history=Path("runs.sqlite")), True),
        (Settings(save="default"), True),
        (Settings(calibrate=5), True),
    ],
)
def test_the_commit_that_results_name_is_that_of_the_first_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, *, read: bool
) -> None:
    """Another may be checked out before the session ends."""
    commits = iter([Checkout("1" * 40, "main", dirty=False), Checkout("2" * 40, "main", dirty=True)])
    monkeypatch.setattr("pytest_ddpperf.against.git.checkout", lambda *_: next(commits))
    session = Session(settings, tmp_path, LiveLine(None, None))
    _ = session.launchers
    if read:
        assert (session.provenance().commit, session.provenance().dirty) == ("1" * 40, False)
    assert next(commits).commit == ("2" if read else "1") * 40


@pytest.mark.parametrize(
    ("checked_out", "here"),
    [
        (Checkout("1" * 40, "main", dirty=False), "1111111, the same commit without changes"),
        (Checkout("1" * 40, "main", dirty=True), "1111111+changes"),
        (Checkout("2" * 40, "main", dirty=False), "2222222"),
        (None, ""),
    ],
)
def test_a_commit_held_against_itself_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked_out: Checkout | None, here: str
) -> None:
    """As on a push to the branch whose merge base is asked for: such a gate could never fail."""
    monkeypatch.setattr("pytest_ddpperf.against.git.checkout", lambda *_: checked_out)
    session = Session(
        Settings(against="v1"), tmp_path, LiveLine(None, None), revision=Revision("v1", "1" * 40, tmp_path)
    )
    assert session.summary().here == here


def measured_before(times: tuple[float, ...], *, turns: bool = False, env: Environment = CPU) -> Result:
    """A result of so many launches."""
    launches = tuple(
        Launch(round=i, ranks=(make_rank_launch(rank=0, step_times=(one,)),), seconds=1.0)
        for i, one in enumerate(times)
    )
    before = result(times[0])
    measured = replace(
        before.measurement, environment=env, launches=launches, series=(STEP_TIME.series(times),), turns=turns
    )
    return replace(before, measurement=measured)


def test_scatter_is_that_of_benchmarks_before_and_of_calibrations(tmp_path: Path) -> None:
    """Of logarithms 0 and 0.2 the squares are 0.02 with 1 degree, of three equal times nothing with 2: 0.02 / 3.

    With a calibration of 10 % and 3 degrees (0.02 + 0.03) / 6.
    """
    session = Session(Settings(), tmp_path, LiveLine(None, None))
    assert session.archive.scatter(CPU, session.results) is None
    apart = (1.0, math.exp(0.2))
    others = [
        measured_before((1.0, 2.0), turns=True),
        measured_before((1.0, 2.0), env=replace(CPU, cores=4)),
        measured_before((1.0,)),
        replace(result(1.0), measurement=replace(result(1.0).measurement, series=(), counts=counted(1.0))),
    ]
    session.results.extend(others)
    assert session.archive.scatter(CPU, session.results) is None
    session.results.extend([measured_before(apart), measured_before((0.5, 0.5, 0.5))])
    found = session.archive.scatter(CPU, session.results)
    assert found is not None
    assert (found.sd, found.df) == pytest.approx((math.sqrt(0.02 / 3), 3))
    told = Calibration(
        name="ddp",
        date="2026-01-12",
        commit=None,
        runs=5,
        launches=8,
        steps=24,
        seconds=51.0,
        within=Spread(sd=1.0, df=9),
        between_launches=Spread(sd=0.1, df=3),
        between_runs=Spread(sd=1.0, df=9),
        floor=0.02,
        strategy="ddp",
    )
    noise.save(tmp_path / "baselines", TEST, [(CPU, told), (replace(CPU, cores=4), told)])
    found = session.archive.scatter(CPU, session.results)
    assert found is not None
    assert (found.sd, found.df) == pytest.approx((math.sqrt(0.05 / 6), 6))
    calibrated = Session(Settings(), tmp_path, LiveLine(None, None)).archive.scatter(CPU, [])
    assert calibrated is not None
    assert (calibrated.sd, calibrated.df) == pytest.approx((0.1, 3))


class FoundMachine:
    """The first launcher of a session whose ranks find what is given."""

    def __init__(self, gpus: Gpus, cuda: str | None = "13.0") -> None:
        self.asked: list[bool] = []
        self.found = TorchMachine(
            torch="2.13.0", cuda=cuda, gpus=gpus, nccl=cuda is not None, backends=("gloo", "nccl")
        )

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
    session._launchers = cast("Launchers", FirstOf(machine))
    return session


def test_gpus_that_fail_leave_the_cpu_and_a_remark(tmp_path: Path) -> None:
    session = session_on(FoundMachine(Gpus(error="CUDA unknown error")), tmp_path)
    settings = Settings()
    assert session.world_sizes(settings) == (2,)
    assert [session.environment(settings, 2).device for _ in range(2)] == ["cpu"] * 2
    told = "device=auto took the CPU, because torch 2.13.0 can use no GPU: CUDA unknown error"
    assert session.summary().complaints == [told, "GPU 0 of rank 0: it is taken"]
    with pytest.raises(LaunchError, match=r"'cuda' needs a GPU, and torch 2\.13\.0 can use none \(CUDA unknown error"):
        session.environment(Settings(device="cuda"), 2)


def test_a_benchmark_on_the_cpu_asks_no_gpu(tmp_path: Path) -> None:
    machine = FoundMachine(Gpus(names=("H200",) * 8))
    session, settings = session_on(machine, tmp_path), Settings(device="cpu")
    assert session.world_sizes(settings) == (2,)
    assert session.environment(settings, 2).device == "cpu"
    assert machine.asked == [False] * 2
    assert session.world_sizes(Settings()) == (8,)


def test_a_build_for_rocm_is_told_apart_by_its_version(tmp_path: Path) -> None:
    session = session_on(FoundMachine(Gpus(names=("AMD Instinct MI300X",)), cuda="6.4.43484"), tmp_path)
    found = session.environment(Settings(), 1)
    assert (found.device, found.device_model, found.cuda) == ("cuda", "AMD Instinct MI300X", "6.4")


def test_threads_that_a_test_sets_after_the_first_launch_reach_no_rank_and_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first launcher, of one that is started later, and of one whose ranks have variables of their own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    session = Session(Settings(device="cpu"), tmp_path, LiveLine(None, None))

    def seen(_ctx: Any) -> tuple[str, str]:
        return os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]

    def ran(launcher: Launcher) -> tuple[str, str]:
        return launcher.run(seen, world_size=1, backend="gloo", device="cpu").rank(0)

    try:
        launchers = session.launchers
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        own = (("OMP_NUM_THREADS", "4"),)
        found = [ran(launchers[0]), ran(launchers[1]), ran(launchers.with_variables(own)[0])]
        assert found == [("2", "2"), ("2", "2"), ("4", "4")]
        assert session.environment(Settings(device="cpu"), 1).threads == 2
        assert session.environment(Settings(device="cpu"), 1, own).threads == 4
        (complaint,) = session.complaints
        assert complaint.startswith("OMP_NUM_THREADS became 3 after the first launch, and ranks keep what it was then")
    finally:
        session.close()


def test_ranks_that_nccl_has_no_gpus_for_skip_their_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Settings(), tmp_path, LiveLine(None, None))
    two = Gpus(names=("H100", "H100"), pci=("0000:01:00.0", "0000:02:00.0"))
    machine = TorchMachine(torch="2.13.0", cuda="13.0", gpus=two, nccl=True, backends=("gloo", "nccl"))
    monkeypatch.setattr(session, "_torch", lambda *_: machine)
    with pytest.raises(pytest.skip.Exception, match="3 ranks have 2; use fewer ranks, or backend=gloo"):
        session.environment(Settings(device="cuda", backend="nccl"), 3)
