from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines import files
from pytest_ddpperf.baselines.store import SavedRecord, Store, baseline_record, module_folder, warned
from pytest_ddpperf.baselines.store import test_file as file_name
from pytest_ddpperf.errors import BaselineError, SettingError
from pytest_ddpperf.metrics.table import METRICS, counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Health
from pytest_ddpperf.records.measurement import SIMULATED
from pytest_ddpperf.records.results import BaselineRecord, Provenance, Result
from pytest_ddpperf.records.verdict import Verdict
from tests.baselines.made_records import make_environment, make_record
from tests.factories import make_launch, make_measurement, make_result

TEST = "perf/test_a.py::test_step[ddp]"
KEY = "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13"
CPU = make_environment()
(STEP_TIME,) = (metric for metric in METRICS if metric.name == "step_time")
COUNTS = Counts(totals={"collective_calls": 2.0}, details={"collective_calls": {"all_reduce": 2.0}}, unstable={})
THEN, NOW = Provenance(date="2026-01-12", commit="3f2a1c0"), Provenance(date="2026-01-13", commit="9d8c7b6")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_saved_record_is_found(store: Store) -> None:
    record = make_record()
    store.save(TEST, [record])
    assert contents(store.folder) == [f"{KEY}/perf.test_a/test_step-ddp.json"]
    found = store.find(TEST, "ddp", record.environment)
    assert (found.record, found.origin, found.differs) == (record, KEY, ())
    assert store.records(TEST) == (record,)


def test_a_named_set_of_baselines_has_a_separate_folder(tmp_path: Path) -> None:
    record = make_record()
    Store(tmp_path, "nightly").save(TEST, [record])
    assert contents(tmp_path) == [f"@nightly/{KEY}/perf.test_a/test_step-ddp.json"]
    assert Store(tmp_path).find(TEST, "ddp", record.environment).record is None
    assert Store(tmp_path).files() == ()
    assert Store(tmp_path, "nightly").find(TEST, "ddp", record.environment).record == record


def test_a_set_that_is_compared_with_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError,
        match=r"^--ddpperf-baseline-set=night: .* has no set of this name; --ddpperf-save=NAME writes one$",
    ):
        Store(tmp_path, "night").ensure_there()
    for name in ("nightly", "main"):
        Store(tmp_path, name).save(TEST, [make_record()])
        Store(tmp_path, name).ensure_there()
    with pytest.raises(SettingError, match=r"give one of main, nightly$"):
        Store(tmp_path, "night").ensure_there()
    Store(tmp_path / "nowhere").ensure_there()  # the default set begins with its first baseline


def test_no_baseline_has_a_reason(store: Store) -> None:
    store.save(TEST, [make_record(name="naive")])
    found = store.find(TEST, "ddp", make_environment())
    assert found.record is None
    assert found.differs == ()
    assert found.origin == f"no baseline in .../{store.folder.name}"  # whose path may name its user


def test_the_nearest_foreign_record_is_given_with_its_differences(store: Store) -> None:
    far = make_record(environment=make_environment(torch="2.11", cores=4))
    near = make_record(environment=make_environment(torch="2.11"))
    store.save(TEST, [far, near])
    found = store.find(TEST, "ddp", make_environment())
    assert found.record == near
    assert found.differs == ("torch 2.11 -> 2.13",)
    assert found.origin == "cpu-amd-epyc-2c-t1-gloo-w2-torch2.11"


def test_counts_of_another_environment_are_no_baseline_of_times(store: Store) -> None:
    """They are compared, and the times are new: no other CPU is named."""
    environment = make_environment(torch="2.12", cpu_model="Xeon")
    counted = make_record(environment=environment, series=counted_series(COUNTS), counts=COUNTS)
    store.save(TEST, [counted])
    found = store.find(TEST, "ddp", make_environment())
    assert (found.record, found.differs, found.counted) == (None, (), counted)
    assert found.origin.startswith("no baseline of times in ")
    timed = make_record(environment=make_environment(torch="2.11", cores=4, cpu_model="Xeon"))
    store.save(TEST, [timed])
    assert store.find(TEST, "ddp", make_environment()).record == timed, "although it differs in more facts"


def test_simulated_and_measured_records_are_never_compared(store: Store) -> None:
    """Not even where nothing else differs; simulated ones of another torch or size are told like others."""
    measured, simulated = make_environment(), make_environment(backend=SIMULATED)
    for here, there in ((measured, simulated), (simulated, measured)):
        store.save(TEST, [make_record(environment=there, series=counted_series(COUNTS), counts=COUNTS)])
        found = store.find(TEST, "ddp", here)
        assert (found.record, found.counted) == (None, None)
        store.remove(TEST, "ddp", there)
    other = make_environment(backend=SIMULATED, world_size=8)
    store.save(TEST, [make_record(environment=other, series=counted_series(COUNTS), counts=COUNTS)])
    assert store.find(TEST, "ddp", simulated).counted_differs == ("world size 8 -> 2",)


def test_saving_says_which_record_it_replaced_and_keeps_the_other_variants(store: Store) -> None:
    file = store.file(TEST, make_record().environment)
    old, new, other = make_record(), make_record(step_time=0.0473), make_record(name="naive")
    saved = store.save(TEST, [old, other])
    assert saved == (SavedRecord(file=file, old=None, new=old), SavedRecord(file=file, old=None, new=other))
    assert store.save(TEST, [new]) == (SavedRecord(file=file, old=old, new=new),)
    assert store.records(TEST) == (new, other)


def test_counts_are_compared_with_the_record_that_has_the_same_kernels(store: Store) -> None:
    """Though the one of another GPU differs in fewer facts."""
    here = make_record().environment
    gpu = replace(here, device="cuda", device_model="NVIDIA H200", device_count=1, backend="nccl", cuda="13.0")
    counts = Counts(totals={"operators": 3.0}, details={}, unstable={})
    other_gpu, other_host = (
        make_record(environment=environment, series=(*make_record().series, *counted_series(counts)), counts=counts)
        for environment in (
            replace(gpu, device_model="NVIDIA A100"),
            replace(gpu, cpu_model="Intel Xeon", cores=64, threads=4),
        )
    )
    store.save(TEST, [other_gpu])
    alone = store.find(TEST, other_gpu.name, gpu)
    assert (alone.counted_differs, alone.kernels_differ) == ((), ("GPU NVIDIA A100 -> NVIDIA H200",))
    store.save(TEST, [other_host])
    both = store.find(TEST, other_gpu.name, gpu)
    assert both.record is not None
    assert both.record.environment.device_model == "NVIDIA A100"
    assert both.counted is not None
    assert both.counted.environment.cores == 64
    assert (both.counted_differs, both.kernels_differ) == ((), ())


def test_a_comparable_baseline_has_the_facts_of_gpus_that_differ(store: Store) -> None:
    here = replace(make_record().environment, device="cuda", backend="nccl", cuda="13.0", recorded={"nccl": "2.28.9"})
    record = make_record(environment=replace(here, recorded={"nccl": "2.27.5"}))
    store.save(TEST, [record])
    found = store.find(TEST, record.name, here)
    assert (found.differs, found.recorded_differ) == ((), ("NCCL 2.27.5 -> 2.28.9",))
    limited = store.find(TEST, record.name, replace(here, gpu_setup="400w"))
    assert (limited.differs, limited.recorded_differ) == (("GPU setup unknown -> 400w",), found.recorded_differ)


def test_of_equally_comparable_counts_the_newest_judge(store: Store) -> None:
    """A record that only counted is as new as its counts; of one day, that of the machine that is more alike."""
    here = make_record().environment
    counts = Counts(totals={"operators": 3.0}, details={}, unstable={})
    alike, other, third = (
        make_record(environment=environment, series=counted_series(counts), counts=counts)
        for environment in (
            replace(here, cores=4),
            replace(here, cores=8, threads=2),
            replace(here, cores=64, threads=4, cpu_model="Intel Xeon"),
        )
    )

    def judging(*records: BaselineRecord) -> int:
        for record in records:
            store.save(TEST, [record])
        found = store.find(TEST, alike.name, here)
        assert found.counted is not None
        return found.counted.environment.cores

    assert judging(alike, other, third) == 4
    assert judging(replace(other, date="2026-02-01")) == 8
    assert judging(replace(third, counted=Provenance(date="2026-02-02", commit=None))) == 64
    assert judging(replace(alike, environment=replace(alike.environment, torch="2.12"), date="2026-03-01")) == 64


def test_two_records_of_one_name_are_refused(store: Store) -> None:
    with pytest.raises(BaselineError, match="two benchmarks are named 'ddp'"):
        store.save(TEST, [make_record(), make_record()])
    assert not store.folder.exists()


def test_a_broken_file_is_named_and_never_overwritten(store: Store) -> None:
    store.save(TEST, [make_record()])
    file = store.file(TEST, make_record().environment)
    broken = file.read_text()[:100]
    file.write_text(broken)
    other = make_record(environment=make_environment(world_size=1))
    with pytest.raises(BaselineError, match=r"test_step-ddp\.json: is cut off at line"):
        store.save(TEST, [other, make_record()])
    assert file.read_text() == broken
    assert not store.file(TEST, other.environment).exists()  # nothing half saved
    for environment in (make_record().environment, other.environment):
        with pytest.raises(BaselineError, match="is cut off at line"):
            store.find(TEST, "ddp", environment)


def test_a_copied_file_of_another_test_is_foreign(store: Store) -> None:
    store.save(TEST, [make_record()])
    file = store.file(TEST, make_record().environment)
    copy = file.with_name("test_step-naive.json")
    shutil.copy(file, copy)
    with pytest.raises(BaselineError) as caught:
        store.find("perf/test_a.py::test_step[naive]", "ddp", make_record().environment)
    assert str(caught.value).startswith(f"baseline file {copy}: field test is {TEST}, so the file belongs at {file}: ")


def test_a_copied_file_of_another_environment_is_foreign(store: Store) -> None:
    store.save(TEST, [make_record()])
    here = make_environment(cores=64)
    target = store.file(TEST, here)
    target.parent.mkdir(parents=True)
    shutil.copy(store.file(TEST, make_record().environment), target)
    with pytest.raises(BaselineError, match=rf"field records\[0\]\.environment is {KEY}, but the file is in the"):
        store.find(TEST, "ddp", here)


def save_variants(root: Path, record: BaselineRecord, names: list[str], barrier: Any) -> None:
    from dataclasses import replace

    barrier.wait(60)
    for name in names:
        Store(root).save(TEST, [replace(record, name=name)])


def test_processes_that_save_at_once_lose_nothing(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    names = [[f"{process}-{i}" for i in range(10)] for process in range(3)]
    processes = [
        context.Process(target=save_variants, args=(store.folder, make_record(), own, barrier)) for own in names
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert {record.name for record in store.records(TEST)} == {name for own in names for name in own}


def test_baselines_of_several_environments_are_saved_although_folders_cannot_be_locked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where one folder of this machine and user is locked in place of all others."""
    flock, stored = fcntl.flock, str(store.folder)

    def refusing(descriptor: int, how: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(stored):
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refusing)
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    curve = [make_record(environment=make_environment(world_size=size)) for size in (1, 2, 4)]
    assert len(store.save(TEST, curve)) == len(curve)
    assert sorted(record.environment.world_size for record in store.records(TEST)) == [1, 2, 4]


def test_if_nothing_can_be_locked_nothing_is_saved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BaselineError, match=r"cannot be saved in .*: neither this folder nor the folder for temporary"):
        store.save(TEST, [make_record()])
    assert contents(store.folder) == []


def test_a_full_disk_is_reported_and_the_old_file_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(TEST, [make_record()])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BaselineError, match=r"cannot be saved in .*test_step-ddp\.json: No space left on device; make"):
        store.save(TEST, [make_record(step_time=0.05)])
    assert store.records(TEST) == (make_record(),)
    assert len(contents(store.folder)) == 1


def test_it_is_checked_whether_a_folder_can_be_written(store: Store, tmp_path: Path) -> None:
    store.ensure_writable()
    assert list(tmp_path.iterdir()) == []
    store.folder.write_text("")
    with pytest.raises(BaselineError, match=r"cannot be saved in .*; make this folder writable, or name another"):
        Store(store.folder, "nightly").ensure_writable()


def test_files_are_sorted_and_drafts_omitted(store: Store) -> None:
    store.save("b.py::test_b", [make_record()])
    store.save("a.py::test_a", [make_record(), make_record(environment=make_environment(world_size=4))])
    (store.folder / KEY / "a" / ".test_a.json.1234.tmp").write_text("half")
    (store.folder / KEY / "a" / ".draft.json").write_text("half")
    (store.folder / "README.md").write_text("ours")
    assert [str(file.relative_to(store.folder)) for file in store.files()] == [
        f"{KEY}/a/test_a.json",
        f"{KEY}/b/test_b.json",
        "cpu-amd-epyc-2c-t1-gloo-w4-torch2.13/a/test_a.json",
    ]
    assert [store.read(file).test for file in store.files()] == ["a.py::test_a", "b.py::test_b", "a.py::test_a"]
    with pytest.raises(BaselineError, match="does not exist"):
        store.read(store.folder / "k" / "m" / "t.json")


def test_ordinary_tests_have_plain_names() -> None:
    nodeid = "perf_tests/lm/test_small.py::TestStep::test_step[bucketed-bf16]"
    assert module_folder(nodeid) == "perf_tests.lm.test_small"
    assert file_name(nodeid) == "TestStep.test_step-bucketed-bf16.json"


TESTS = [
    *("test_a", "A::test_a", "test_a[b]", "test_a[b-c]", "test_a[b/c]", "test_a[b c]", "test_a[]", "test_a[[b]]"),
    *("test_a[ä]", "test_ä", "test_a[~]", "test_a[../../etc]", ".", ""),
    *(f"test_a[{'x' * number}]" for number in (300, 301)),
]
MODULES = ["a/b.py", "a.b.py", "a/b.c.py", "a/b", "../a.py", "/a.py", "a b.py", "", "é.py", "x" * 200 + ".py"]


def test_names_are_safe_and_differ() -> None:
    files = [file_name(f"m.py::{test}") for test in TESTS]
    folders = [module_folder(f"{module}::t") for module in MODULES]
    for names in (files, folders):
        assert len(set(names)) == len(names)
        for name in names:
            assert re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", name)
            assert len(name) <= 120


def result(launches: int = 6, *, verdict: Verdict = Verdict.UNCHANGED, counts: Counts | None = None) -> Result:
    seconds = tuple(0.2 + 0.01 * i for i in range(launches))
    series = (STEP_TIME.series(seconds), *(() if counts is None else counted_series(counts)))
    made = tuple(make_launch((s, s), round=i) for i, s in enumerate(seconds))
    measured = make_measurement(environment=CPU, launches=made, series=series, counts=counts)
    return make_result(measurement=measured, verdict=verdict)


def with_health(one: Result, others: float) -> Result:
    """A result of launches beside which other processes took this share of the cores."""
    health = Health(cpu=CpuHealth(others=others))
    launches = tuple(replace(launch, health=health) for launch in one.measurement.launches)
    return replace(one, measurement=replace(one.measurement, launches=launches))


def test_a_baseline_of_few_launches_is_warned_of() -> None:
    few, enough = (with_health(result(launches=launches), 0.0) for launches in (2, 3))
    counted = replace(few, measurement=replace(few.measurement, launches=()))
    assert warned(few).findings == (Finding("thin_baseline", {"launches": 2}),)
    assert (warned(enough), warned(counted)) == (enough, counted)


@pytest.mark.parametrize(("others", "busy"), [(0.1, False), (0.11, True)])
def test_a_busy_machine_is_stored_with_the_baseline_and_warned_of(others: float, *, busy: bool) -> None:
    """A tenth of the cores is what a quiet machine takes too."""
    one = with_health(result(launches=20), others)
    assert warned(one).findings == (Finding("busy_baseline", {"lost": others}),) * busy
    record = baseline_record(one.measurement, NOW, None)
    assert (record.lost, record.busy) == (others, busy)
    assert baseline_record(result().measurement, NOW, None).busy, "without facts about the machine"


def test_old_counts_are_kept_with_new_times_only_if_the_training_is_the_same() -> None:
    """Not where the training is another now."""
    old = baseline_record(result(counts=COUNTS).measurement, THEN, None)
    new = result(launches=3).measurement
    timed = baseline_record(new, NOW, old)
    assert (timed.date, timed.commit, timed.code) == ("2026-01-13", "9d8c7b6", None)
    assert (timed.counts, timed.counts_from) == (COUNTS, THEN)
    assert baseline_record(new, NOW, replace(old, recipe={"precision": "bf16"})).counts is None
