"""Peaks, live memory and growth of a process."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_ddpperf.instruments import memory
from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.memory import Resident, held_after_steps, memory_reader
from pytest_ddpperf.records.launch import DeviceMemory
from pytest_ddpperf.stats.launches import growth_per_step

MIB = 2**20
CPU = torch.device("cpu")


def test_reads_the_kernels_table_if_the_system_has_one(tmp_path: Path) -> None:
    assert (memory.read_resident(tmp_path), memory.most_taken(tmp_path)) == (None, None)
    (tmp_path / "status").write_text("Name:\tpython\n")
    assert memory.read_resident(tmp_path) is None
    text = "Name:\tpython\nVmHWM:\t    300 kB\nVmRSS:\t    200 kB\nRssAnon:\t    150 kB\nRssFile:\t     50 kB\n"
    (tmp_path / "status").write_text(text)
    assert memory.read_resident(tmp_path) == Resident(now=200 * 1024, files=50 * 1024, peak=300 * 1024)


@pytest.mark.parametrize(
    ("earlier", "now", "peak", "reset", "above"),
    [
        (100, 120, 180, True, 60),  # 180 - 30, and 100 - 10 before
        (500, 125, 500, False, 5),  # the peak is from an earlier time; 125 - 30 are there now
        (500, 125, 510, False, 390),  # 480 - 90
        (100, 80, 90, True, 0),
    ],
)
def test_the_peak_omits_pages_of_files_and_earlier_times(
    earlier: int, now: int, peak: int, above: int, *, reset: bool
) -> None:
    """Of mapped files there are 10 before, and 30 afterwards."""
    before, after = Resident(now=100, files=10, peak=earlier), Resident(now=now, files=30, peak=peak)
    assert memory.peak_above(before, after, reset=reset) == above


@pytest.mark.skipif(memory.read_resident() is None, reason="this system does not tell a process's peak memory")
def test_the_peak_includes_a_temporary_tensor_and_excludes_an_earlier_one() -> None:
    """Both are far above what malloc keeps for reuse, so the kernel gave the memory and took it back."""
    held = torch.ones(64 * MIB // 4)
    peaks = memory.watch_memory(CPU)
    torch.ones(128 * MIB // 4)
    found = peaks()
    assert found.keys() == {"peak_resident"} <= memory.LABELS.keys()
    assert 122 * MIB < found["peak_resident"] < 160 * MIB
    del held


def test_memory_of_a_process_is_its_private_memory_plus_the_drop_since_its_peak(tmp_path: Path) -> None:
    """7 KiB that it shares with nobody, and 100 - 90 KiB more at its peak."""
    (tmp_path / "status").write_text("VmHWM:\t100 kB\nVmRSS:\t90 kB\nRssFile:\t30 kB\n")
    rollup = "5600-7ffc ---p 00000000 00:00 0 [rollup]\nRss: 90 kB\nShared_Dirty: 50 kB\n"
    (tmp_path / "smaps_rollup").write_text(f"{rollup}Private_Clean: 3 kB\nPrivate_Dirty: 4 kB\n")
    assert memory.most_taken(tmp_path) == 17 * 1024


STATISTICS = {
    "allocated_bytes.all.peak": 512,
    "allocated_bytes.all.current": 1,
    "allocated_bytes.large_pool.peak": 2,
    "active_bytes.all.peak": 1024,
    "reserved_bytes.all.peak": 2097152,
    "requested_bytes.all.peak": 500,
    "inactive_split_bytes.all.peak": 2096128,
    "num_alloc_retries": 3,
    "num_ooms": 1,
}


@pytest.fixture
def cuda_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of a made-up torch.cuda, in order; its device has 1000 bytes, 300 of them free."""
    calls: list[str] = []

    def answering(name: str, answer: object) -> None:
        def answers(_device: object) -> object:
            calls.append(name)
            return answer

        monkeypatch.setattr(torch.cuda, name, answers)

    for name in ("synchronize", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
        answering(name, None)
    answering("memory_stats", STATISTICS)
    answering("mem_get_info", (300, 1000))
    answering("memory_reserved", 400)
    numbers = {"pci_domain_id": 0, "pci_bus_id": 0x1B, "pci_device_id": 0}
    answering("get_device_properties", SimpleNamespace(uuid="1f2e", **numbers))
    monkeypatch.setattr(torch.cuda, "init", lambda: calls.append("init"))
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    return calls


@pytest.fixture
def plugged(cuda_calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator such as RMM's: whatever is asked of its statistics raises."""

    def refuse(_device: object) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    statistics = ("memory_stats", "memory_reserved", "memory_allocated", "max_memory_allocated")
    for name in (*statistics, "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, refuse)


def test_peaks_begin_when_the_warm_up_is_really_done(cuda_calls: list[str]) -> None:
    memory.begin_peaks(torch.device("cuda", 0))
    assert cuda_calls == ["synchronize", "init", "reset_peak_memory_stats", "reset_accumulated_memory_stats"]


def test_on_cpu_no_gpu_is_asked(cuda_calls: list[str]) -> None:
    memory.begin_peaks(CPU)
    assert memory.read_device_memory(CPU) is None
    assert cuda_calls == []


def test_the_memory_of_a_gpu_is_read_from_the_driver(cuda_calls: list[str]) -> None:
    assert memory.read_device_memory(torch.device("cuda", 0)) == DeviceMemory(
        device="0000:1b:00.0", uuid="1f2e", used=700, total=1000, reserved=400
    )


def test_the_watch_on_cuda_gives_the_allocators_figures(cuda_calls: list[str]) -> None:
    """Until CUDA is initialised, the allocator refuses every device."""
    found = memory.watch_memory(torch.device("cuda", 0))()
    assert found == {
        "peak_allocated": 512,
        "peak_active": 1024,
        "peak_reserved": 2097152,
        "peak_requested": 500,
        "peak_inactive_split": 2096128,
        "alloc_retries": 3,
        "ooms": 1,
    }
    assert found.keys() <= memory.LABELS.keys()
    assert cuda_calls == ["init", "reset_peak_memory_stats", "memory_stats"]
    assert memory_reader(torch.device("cuda", 0)) is not None
    assert cuda_calls[3:] == ["init", "reset_peak_memory_stats"]


def test_cudas_own_allocator_has_no_figures_of_blocks(cuda_calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports zeros for them."""
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    figures = memory.watch_memory(torch.device("cuda", 0))()
    assert figures == {"peak_allocated": 512, "peak_active": 1024, "peak_reserved": 2097152}


@pytest.mark.usefixtures("plugged")
def test_an_allocator_without_statistics_has_no_figures_and_fails_no_launch() -> None:
    device = torch.device("cuda", 0)
    peaks = memory.watch_memory(device)
    memory.begin_peaks(device)
    assert peaks() == {}
    assert memory_reader(device) is None
    assert held_after_steps(lambda: None, 3, device) == ()
    assert memory.read_device_memory(device) == DeviceMemory(
        device="0000:1b:00.0", uuid="1f2e", used=700, total=1000, reserved=None
    )


@pytest.mark.gpu
def test_allocator_peaks_on_cuda_are_read() -> None:
    """16 MiB is a multiple of the allocator's block size, so it is counted to the byte."""
    device = torch.device("cuda", 0)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    before = torch.cuda.memory_allocated(device)
    peaks = memory.watch_memory(device)
    torch.ones(16 * MIB // 4, device=device)
    found = peaks()
    assert found.keys() <= memory.LABELS.keys()
    assert found["peak_allocated"] == before + 16 * MIB
    assert found["peak_reserved"] >= found["peak_allocated"]
    memory.begin_peaks(device)
    assert peaks()["peak_allocated"] == before
    held = memory.read_device_memory(device)
    assert held is not None
    assert held.reserved is not None
    assert held.used > held.reserved >= 0
    if torch.version.hip is None:
        assert held.device is not None
        assert re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.0", held.device)


SLACK = MIB // 4  # for what else a process asks malloc for
readable = pytest.mark.skipif(memory_reader(CPU) is None, reason="this system does not tell what malloc has given out")


@readable
def test_the_heap_holds_tensors_of_any_size_as_long_as_they_live() -> None:
    reader = memory_reader(CPU)
    assert reader is not None
    kind, read = reader
    before, peak = read()
    held = [torch.empty(4 * MIB, dtype=torch.uint8), *(torch.empty(MIB // 64) for _ in range(64))]
    full, _ = read()
    held.clear()
    after, _ = read()
    assert (kind, peak) == ("heap", None)
    assert full - before == pytest.approx(8 * MIB, abs=SLACK)
    assert after - before == pytest.approx(0, abs=SLACK)


@pytest.mark.gpu
def test_on_cuda_each_reading_has_a_separate_peak() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    found = memory_reader(device)
    assert found is not None
    kind, read = found
    before, _ = read()
    torch.empty(16 * MIB, dtype=torch.uint8, device=device)
    assert read() == (before, before + 16 * MIB)
    assert read() == (before, before)
    assert kind == "allocated"


STEPS = 5


@readable
def test_bytes_that_are_no_tensor_are_seen() -> None:
    kept: list[bytes] = []
    with collector_paused():
        readings = held_after_steps(lambda: kept.append(bytes(200_000)), STEPS, CPU)
    assert (len(readings), len(kept)) == (STEPS + 1, STEPS)
    assert 200_000 <= growth_per_step(readings) < 210_000


@readable
def test_small_objects_are_seen_by_their_number() -> None:
    """A thousand dictionaries and their floats, for which Python has pages of its own."""
    kept: list[dict[str, float]] = []
    with collector_paused():
        readings = held_after_steps(lambda: kept.extend({"loss": i / 7} for i in range(1000)), STEPS, CPU)
    assert growth_per_step(readings) >= 2000 * memory.BLOCK_BYTES


@readable
def test_garbage_that_waits_to_be_collected_is_no_growth() -> None:
    def circle() -> None:
        kept: list[object] = [bytes(200_000)]
        kept.append(kept)

    with collector_paused():
        readings = held_after_steps(circle, STEPS, CPU)
    assert growth_per_step(readings) < 20_000


def test_a_rank_that_cannot_read_runs_the_steps_that_the_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_reader", lambda _device: None)
    done: list[int] = []
    assert held_after_steps(lambda: done.append(1), STEPS, CPU) == ()
    assert len(done) == STEPS
