"""GPUs that runs take from each other, by made-up names and real second processes, and runs beside each other."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.context import Gpus
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.run.session.leases import CPU, Holder, Leases, Locks, holder

ONE, TWO, THREE = "0000:1b:00.0", "0000:5d:00.0", "0000:9a:00.0"
GPUS = Gpus(names=("H100",) * 3, pci=(ONE, TWO, THREE))
FORK = multiprocessing.get_context("fork")
Hold = Callable[..., ForkProcess]


def holds(folder: Path, names: Sequence[str], how: str, told: Connection) -> None:
    os.chdir(folder)
    locks = Locks(folder)
    told.send(locks.take(names, shared=how == "shared"))
    signal.pause()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Has another process hold locks until it is killed."""
    started: list[ForkProcess] = []

    def begin(*names: str, how: str = "alone") -> ForkProcess:
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=holds, args=(tmp_path, names, how, theirs))
        process.start()
        started.append(process)
        assert ours.recv() is None
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


def leases(folder: Path, seconds: float | None = 0.0, told: list[str] | None = None) -> Leases:
    said: list[str] = [] if told is None else told
    return Leases(seconds, said.append, Locks(folder))


def test_a_lock_is_held_by_one_process_and_freed_by_its_end(tmp_path: Path, hold: Hold) -> None:
    process, locks = hold(ONE), Locks(tmp_path)
    assert locks.take([TWO, ONE]) == Holder(process.pid or 0, str(tmp_path))
    assert not locks.holds(TWO)  # all or none
    assert locks.free([ONE, TWO]) == [TWO]
    process.kill()
    process.join()
    assert locks.take([TWO, ONE]) is None
    assert locks.holds(ONE)


def test_a_run_takes_the_first_gpus_and_leaves_the_others(tmp_path: Path, hold: Hold) -> None:
    ours, environ = leases(tmp_path), dict[str, str]()
    assert not ours.on_gpus(GPUS, 2, environ)
    assert (environ, ours.remarks) == ({}, [])
    hold(THREE)
    assert Locks(tmp_path).free([ONE, TWO, THREE]) == []


def test_a_run_takes_other_gpus_that_are_free(tmp_path: Path, hold: Hold) -> None:
    hold(ONE)
    ours, environ = leases(tmp_path), {"CUDA_VISIBLE_DEVICES": "4,5,7"}
    assert ours.on_gpus(GPUS, 2, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "5,7,4"
    assert ours.remarks == [f"GPUs {TWO}, {THREE} were taken in place of {ONE}, {TWO}, which another run uses"]
    shown = Gpus(names=GPUS.names, pci=(TWO, THREE, ONE))
    assert not ours.on_gpus(shown, 2, environ)  # it has them now
    assert environ["CUDA_VISIBLE_DEVICES"] == "5,7,4"


def test_a_gpu_of_another_model_replaces_none(tmp_path: Path, hold: Hold) -> None:
    hold(ONE)
    mixed = Gpus(names=("H100", "L4", "H100"), pci=(ONE, TWO, THREE))
    ours, environ = leases(tmp_path), dict[str, str]()
    assert ours.on_gpus(mixed, 1, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "2,0,1"
    with pytest.raises(LaunchError, match="GPUs are in use by"):
        leases(tmp_path).on_gpus(mixed, 2, {})


@pytest.mark.parametrize(("visible", "fixed"), [("4,5,6,-1", False), ("4,5,6", True)])
def test_gpus_that_cannot_be_exchanged_are_waited_for(tmp_path: Path, hold: Hold, visible: str, *, fixed: bool) -> None:
    hold(ONE)
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    with pytest.raises(LaunchError, match="GPUs are in use by"):
        leases(tmp_path).on_gpus(GPUS, 1, environ, fixed=fixed)
    assert environ == {"CUDA_VISIBLE_DEVICES": visible}


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    assert locks.take([ONE]) is None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(int(locks.holds(ONE)))
    locks.close()
    assert Locks(tmp_path).take([ONE]) is None
    os.close(writing)
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", lacks)
    locks = Locks(tmp_path)
    assert locks.take([ONE]) is None
    assert not locks.holds(ONE)


def test_a_run_that_needs_more_gpus_than_are_free_names_their_holder(tmp_path: Path, hold: Hold) -> None:
    process, told = hold(ONE), list[str]()
    ours = leases(tmp_path, 0.3, told)
    with pytest.raises(LaunchError) as caught:
        ours.on_gpus(GPUS, 3, {})
    who = f"process {process.pid} in {tmp_path}"
    assert told == [f"waiting for GPUs that {who} uses, up to 0.3 s"]
    assert str(caught.value).startswith(f"GPUs are in use by {who}: {ONE}, {TWO}, {THREE} were not free within ")
    assert "--ddpperf-gpu-lock-timeout=SECONDS" in str(caught.value)
    assert Locks(tmp_path).free([TWO, THREE]) == [TWO, THREE]  # it holds none meanwhile


def test_a_run_that_waits_gets_the_gpus_when_their_holder_ends(tmp_path: Path, hold: Hold) -> None:
    process, told = hold(ONE, TWO), list[str]()

    def tell(text: str) -> None:
        told.append(text)
        process.kill()

    ours = Leases(60, tell, Locks(tmp_path))
    assert not ours.on_gpus(GPUS, 2, {})
    assert len(told) == 1
    (remark,) = ours.remarks
    assert remark.endswith(f"s for GPUs that process {process.pid} in {tmp_path} used")


def test_ranks_that_measure_nothing_keep_a_measuring_run_waiting_and_no_other(tmp_path: Path, hold: Hold) -> None:
    hold(ONE, how="shared")
    with leases(tmp_path).sharing(GPUS, 1):
        assert Locks(tmp_path).take([ONE]) is not None
    hold(TWO)
    with pytest.raises(LaunchError, match="GPUs are in use by process"), leases(tmp_path).sharing(GPUS, 2):
        pass
    with leases(tmp_path, None).sharing(GPUS, 2):
        pass


def test_a_run_that_measures_uses_its_own_gpus_for_other_tests_too(tmp_path: Path) -> None:
    ours = leases(tmp_path)
    ours.on_gpus(GPUS, 1, {})
    with ours.sharing(GPUS, 1):
        pass
    assert Locks(tmp_path).take([ONE]) is not None  # it still has it
    ours.close()
    assert Locks(tmp_path).take([ONE]) is None


def test_gpus_without_names_and_the_word_off_take_nothing(tmp_path: Path) -> None:
    assert not leases(tmp_path).on_gpus(Gpus(names=("H100",), pci=(None,)), 1, {})
    assert not leases(tmp_path, None).on_gpus(GPUS, 1, {})
    leases(tmp_path, None).on_cpu()
    assert [*tmp_path.iterdir()] == []


def test_mig_instances_are_taken_one_by_one(tmp_path: Path) -> None:
    gpus = Gpus(names=("MIG 1g", "MIG 1g"), pci=(ONE, ONE), instances=("MIG-1", "MIG-2"))
    first, second = leases(tmp_path), leases(tmp_path)
    assert not first.on_gpus(gpus, 1, {})
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    assert second.on_gpus(gpus, 1, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "MIG-2,MIG-1"


def test_a_second_run_on_the_cpu_is_warned_once_and_its_results_say_so(tmp_path: Path, hold: Hold) -> None:
    process, ours = hold(CPU), leases(tmp_path)
    ours.on_cpu()
    ours.on_cpu()
    assert [remark.partition(":")[0] for remark in ours.remarks] == [
        f"process {process.pid} in {tmp_path} measures on this machine too"
    ]
    assert ours.finding[0].facts == {"pid": process.pid, "folder": str(tmp_path)}
    assert finding_text(ours.finding[0]).startswith(
        f"another run of pytest measured on this machine (process {process.pid} in {tmp_path}): "
    )


def test_sessions_of_one_process_do_not_count_as_two_runs(tmp_path: Path) -> None:
    first, second = leases(tmp_path), leases(tmp_path)
    first.on_cpu()
    second.on_cpu()
    assert not second.remarks
    assert not second.finding


def test_locks_are_neither_written_through_links_nor_waited_for_at_pipes(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("as it was")
    (tmp_path / f"pytest-ddpperf-{ONE.replace(':', '_')}.lock").symlink_to(target)
    (tmp_path / f"pytest-ddpperf-{TWO.replace(':', '_')}.lock").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / f"pytest-ddpperf-{THREE.replace(':', '_')}.lock")
    locks = Locks(tmp_path)
    assert locks.take([ONE, TWO, THREE]) is None
    assert not any(map(locks.holds, [ONE, TWO, THREE]))
    assert target.read_text() == "as it was"
    assert not (tmp_path / "nowhere").exists()


def test_a_lock_file_is_empty_and_nobody_may_write_to_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        Locks(tmp_path).take(["../up and/away"])
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.name == "pytest-ddpperf-.._up_and_away.lock"
    assert (file.stat().st_mode & 0o777, file.stat().st_size) == (0o444, 0)


def test_the_holder_is_read_from_the_kernels_list(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/7").mkdir()
    (tmp_path / "proc/7/cwd").symlink_to(f"/{'x' * 300}\x1b[2J")
    lines = ["1: POSIX  ADVISORY  WRITE 5 08:01:131 0 EOF", "2: FLOCK  ADVISORY  WRITE 7 08:01:131 0 EOF"]
    lines += ["2: -> FLOCK  ADVISORY  WRITE 9 08:01:131 0 EOF", "3: FLOCK  ADVISORY  READ 0 08:01:132 0 EOF"]
    (tmp_path / "proc/locks").write_text("\n".join(lines))

    def file(inode: int, *device: int) -> os.stat_result:
        return os.stat_result((0, inode, os.makedev(*device), *[0] * 7))

    assert holder(file(131, 8, 1), tmp_path) == Holder(7, f"...{'x' * 196}?[2J")
    assert holder(file(131, 0, 42), tmp_path).pid == 7, "some file systems give their files another device"
    assert holder(file(132, 8, 1), tmp_path) == Holder()  # of another namespace of processes
    (tmp_path / "proc/locks").write_text("\n".join([*lines, "4: FLOCK  ADVISORY  WRITE 6 08:02:131 0 EOF"]))
    assert holder(file(131, 8, 2), tmp_path).pid == 6, "not the one that locks a file of another device"
    assert str(Holder()) == "another process"


BESIDE = """
import torch

def build(ctx):
    return lambda: torch.ones(8).sum()

def test_step(ddpperf):
    ddpperf.check(build, world_size=1, device="cpu", backend="gloo", launches=2, steps=3, counts="off")
"""


def test_one_warning_says_that_two_runs_measure_on_one_machine(
    inner: pytest.Pytester, tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = hold(CPU)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inner.makepyfile(test_it=BESIDE)
    run = inner.runpytest_inprocess("--ddpperf-max-time=1", "--ddpperf-report=json:results.json", "-v")
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines([f"*process {process.pid} in {tmp_path} measures on this machine too: *"])
    run.stdout.no_fnmatch_line("*another run of pytest measured on this machine*")
    assert "another run of pytest measured on this machine (process " in (inner.path / "results.json").read_text()
    process.kill()
    process.join()
    alone = inner.runpytest_inprocess("--ddpperf-max-time=1", "--ddpperf-report=json:results.json")
    alone.stdout.no_fnmatch_line("*measure* on this machine*")
    assert "another run of pytest" not in (inner.path / "results.json").read_text()
    assert Locks(tmp_path).take([CPU]) is None  # the session has given it back
