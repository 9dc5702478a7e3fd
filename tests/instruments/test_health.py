"""What the kernel counts, in texts as it writes them, and GPUs as a made-up pynvml shows them; worked by hand."""

from __future__ import annotations

import itertools
import os
import resource
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddpperf.instruments import health
from pytest_ddpperf.instruments.health import cpu_health
from pytest_ddpperf.instruments.nvml import library, read_gpu
from pytest_ddpperf.records.launch import CpuHealth, GpuHealth
from tests.fake_nvml import FIRST, SECOND, CountingNvml, FakeNvml, refusing

# user nice system idle iowait irq softirq steal guest guest_nice
STAT = """cpu  600 30 90 1500 60 6 3 15 40 0
cpu0 100 10 20 700 20 1 1 5 30 0
cpu1 200 10 30 500 20 2 1 4 10 0
cpu10 300 10 40 300 20 3 1 6 0 0
intr 123 0 1
"""


def test_waiting_for_a_quota_in_both_versions_of_control_groups() -> None:
    assert health.throttled_seconds("usage_usec 9\nnr_periods 10\nnr_throttled 3\nthrottled_usec 2500000\n") == 2.5
    assert health.throttled_seconds("nr_periods 10\nnr_throttled 3\nthrottled_time 2500000000\n") == 2.5
    assert health.throttled_seconds("usage_usec 9\n") is None


def test_cpu_time_that_is_neither_idle_nor_ours_belongs_to_other_processes(tmp_path: Path) -> None:
    """Of 400 ticks of two cores 300 were busy, 180 of them ours: 120 / 400. Stolen were 20."""
    before = {"busy": 1000, "steal": 10, "total": 5000, "ours": 500, "throttled": 1.0, "overheated": 3, "swapped": 100}
    after = {"busy": 1300, "steal": 30, "total": 5400, "ours": 680, "throttled": 1.5, "overheated": 5, "swapped": 110}
    assert cpu_health(before, after, tmp_path) == CpuHealth(
        others=0.3, steal=0.05, throttled=0.5, overheated=2, swapped=10 * resource.getpagesize()
    )
    assert cpu_health(before, {**after, "ours": 802}, tmp_path).others == 0, "the two ways of counting differ by ticks"


def test_cpu_health_is_read_from_the_files_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core 0: 857 ticks, 132 of them busy and 5 stolen; core 1: 767 with 243 and 4. Guests are in user already.

    Process 7: utime 1, stime 2, cutime 3, cstime 4; its name holds a bracket and spaces.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    files = {
        "proc/stat": STAT,
        "proc/7/stat": "7 (a) b (c) S 1 42 42 0 -1 4194560 100 200 0 0 1 2 3 4 20 0",
        "proc/8/stat": "8 (python) S 1 42 42 0 -1 4194560 100 200 0 0 10 20 30 40 20 0",
        "proc/vmstat": "pswpin 1\npswpout 2\n",
        "proc/self/cgroup": "0::/jobs/mine\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/jobs/mine/cpu.stat": "throttled_usec 100\n",
        "sys/fs/cgroup/jobs/cpu.stat": "throttled_usec 3000000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2000000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2400000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "4\n",
        "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "5\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    reading = health.read_counters([7, 8], tmp_path)
    assert reading == {
        "busy": 132 + 243,
        "steal": 9,
        "total": 857 + 767,
        "ours": 110,
        "throttled": 3.0,
        "overheated": 9,
        "swapped": 3,
    }
    found = cpu_health(reading, reading, tmp_path)
    assert (found.frequency, found.governor) == (2.2e9, "schedutil")


def test_a_machine_without_counters_is_no_error(tmp_path: Path) -> None:
    reading = health.read_counters([7], tmp_path)
    assert cpu_health(reading, reading, tmp_path) == CpuHealth()
    assert health.core_ticks(STAT, {7}) == health.core_ticks("cpu0 1 2 3\n", {0}) == {}


def test_without_a_parent_of_ranks_others_are_unknown() -> None:
    assert health.watch_health([None])(None).cpu.others is None


def test_this_process_and_the_parent_of_ranks_are_not_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the kernel: 400 ticks pass, all busy. This process has 100 of them, the parent of ranks 180."""
    ours = {os.getpid(): 100, 4242: 180}
    passed = iter((0, 1))

    def read(pids: Collection[int]) -> health.Counters:
        times = next(passed)
        return {"busy": 400 * times, "steal": 0, "total": 400 * times, "ours": sum(times * ours[pid] for pid in pids)}

    monkeypatch.setattr(health, "read_counters", read)
    assert health.watch_health([4242])(None).cpu.others == 120 / 400


NEVER = 3600.0  # seconds until the thread reads by itself


def zone(root: Path, name: str, called: str, energy: int | None = 0) -> Path:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{called}\n", encoding="ascii")
    (folder / "max_energy_range_uj").write_text("262143328850\n", encoding="ascii")
    if energy is not None:
        (folder / "energy_uj").write_text(f"{energy}\n", encoding="ascii")
    return folder


def at_seconds(monkeypatch: pytest.MonkeyPatch, times: Iterable[float]) -> None:
    """Lets readings be made at these times."""
    clock = iter(times)
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: next(clock)))


def test_processors_that_show_their_energy_have_a_power(tmp_path: Path) -> None:
    assert health.watch_health([], root=tmp_path)(None).cpu.power is None
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    seen = health.watch_health([], root=tmp_path)
    (package / "energy_uj").write_text("2000000", encoding="ascii")
    assert (seen(None).cpu.power or 0.0) > 0


def test_power_counts_each_whole_package_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 J and 30 J in 4 s; cores, memory, the whole system and what is shown twice take some more."""
    called = {
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    others = [zone(tmp_path, *names) for names in called.items()]
    packages = [zone(tmp_path, f"intel-rapl:{number}", f"package-{number}", 5) for number in range(2)]
    at_seconds(monkeypatch, (100.0, 104.0))
    power = health.watch_power(tmp_path, NEVER)
    for folder, energy in zip((*others, *packages), (10**9,) * 4 + (50_000_005, 30_000_005), strict=True):
        (folder / "energy_uj").write_text(f"{energy}\n", encoding="ascii")
    assert power(None) == pytest.approx(20.0)


def test_power_is_energy_over_time_even_if_a_counter_restarts() -> None:
    """One package takes 30 J and 20 J, the other 5 J and, round its range of 100 J, 5 J: 60 J in 2 s."""
    readings = [(10.0, (0, 92_000_000)), (11.0, (30_000_000, 97_000_000)), (12.0, (50_000_000, 2_000_000))]
    assert health.mean_power(readings, (100_000_000, 100_000_000)) == pytest.approx(30.0)
    assert health.mean_power(readings[:1], (100_000_000, 100_000_000)) is None
    assert health.mean_power([], ()) is None


def test_power_is_computed_from_the_readings_in_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings a second apart, by a made-up clock; the counter rises after the third. A single one has no power."""
    folder = zone(tmp_path, "intel-rapl:0", "package-0")
    read = threading.Event()

    def seconds() -> Iterator[float]:
        for now in itertools.count():
            if now == 3:
                read.set()
            yield float(now)

    at_seconds(monkeypatch, seconds())
    power = health.watch_power(tmp_path, 0.0)
    assert read.wait(60)
    (folder / "energy_uj").write_text("6000000", encoding="ascii")
    assert power((0.0, 2.0)) == 0.0
    at_seconds(monkeypatch, (100.0, 104.0))
    assert health.watch_power(tmp_path, NEVER)((101.0, 110.0)) is None


@pytest.mark.parametrize("energy", [None, 7])
def test_without_the_counters_of_all_packages_there_is_no_power(tmp_path: Path, energy: int | None) -> None:
    """As where only root may read them: this stand-in lacks the files."""
    zone(tmp_path, "intel-rapl:0", "package-0", energy)
    zone(tmp_path, "intel-rapl:1", "package-1", None)
    before = threading.active_count()
    power = health.watch_power(tmp_path, NEVER)
    assert threading.active_count() == before
    assert power(None) is None


BOTH = (FIRST, SECOND)


def reading(
    at: float, utilisation: int, sm_clock: int = 1700, reasons: int = 0, **counted: int
) -> tuple[float, dict[str, int]]:
    figures = {"memory_clock": 2600, "temperature": 60 + utilisation // 10, "power": 1000 * utilisation}
    names = {name.replace("_", " "): count for name, count in counted.items()}
    return at, {"utilisation": utilisation, "sm_clock": sm_clock, "reasons": reasons, **figures, **names}


def test_a_reading_has_the_values_that_library_and_gpu_support() -> None:
    """The first library has no function for energy and violations; the second GPU reports no power."""
    both = {"sm_clock": 1700, "memory_clock": 2600, "temperature": 71, "reasons": 4}
    assert read_gpu(FakeNvml(), 0) == {**both, "utilisation": 90, "power": 500_000}
    assert read_gpu(FakeNvml(), 1) == {**both, "utilisation": 89}
    counted = {"energy": 1001, "held by power cap": 7}
    assert read_gpu(CountingNvml(), 1) == {**both, "utilisation": 89, **counted}


def test_gpu_health_is_computed_from_the_readings() -> None:
    """Clocks 1500, 1700, 1700, 1980: the median is 1700."""
    readings = [
        reading(1.0, 50, 1700, 0x24),
        reading(1.25, 100, 1500, 0x04),
        reading(1.5, 75, 1700),
        reading(1.75, 75, 1980, 0x01),
    ]
    assert health.gpu_health(FIRST, readings, (1980, None), {7: 100}) == GpuHealth(
        device=FIRST,
        readings=4,
        utilisation=0.75,
        sm_clock=1.7e9,
        sm_clock_limit=1.98e9,
        memory_clock=2.6e9,
        memory_clock_limit=None,
        temperature=70,
        power=75,
        throttled={"power cap": 0.5, "temperature": 0.25},
        others={7: 100},
    )


def test_counters_of_the_driver_come_before_its_samples() -> None:
    """In half a second 200 J and 0.15 s of a power cap, which one of three samples saw; heat by samples alone."""
    readings = [
        reading(8.0, 90, reasons=0x24, energy=5_000, held_by_power_cap=10**9, held_by_board_limit=7),
        reading(8.25, 90, energy=130_000),
        reading(8.5, 90, energy=205_000, held_by_power_cap=1_150_000_000, held_by_board_limit=7),
    ]
    found = health.gpu_health(FIRST, readings, (None, None), {})
    assert found.power == pytest.approx(400)
    assert found.throttled == {"power cap": pytest.approx(0.3), "temperature": pytest.approx(1 / 3)}
    alone = health.gpu_health(FIRST, readings[1:2], (None, None), {})
    assert (alone.power, alone.throttled) == (90, {}), "one reading has no difference of counters"


def test_a_watch_reads_until_it_is_stopped(nvml: FakeNvml) -> None:
    """Process 100 is there from the start to the end, 200 goes and 300 comes, and we ourselves are no other."""
    seen = health.watch_gpus(BOTH, interval=0.001)
    nvml.pids = [100, 300, os.getpid()]
    (first, second), unread = seen(None)
    assert (first.device, first.others, second.device, second.others) == (FIRST, {100: None}, SECOND, {})
    assert first.readings > 1
    assert first.utilisation == pytest.approx(0.9)
    assert first.power == pytest.approx(500)
    assert second.power is None
    assert first.throttled == {"power cap": 1.0}
    assert unread == ()
    assert "ddpperf-sampler" not in {thread.name for thread in threading.enumerate()}


def test_only_readings_in_timed_steps_count(nvml: FakeNvml) -> None:
    (first, _), _ = health.watch_gpus(BOTH, interval=0.001)((float("-inf"), 0.0))  # steps of long ago
    assert replace(first, others={}) == GpuHealth(
        device=FIRST, readings=0, sm_clock_limit=1.98e9, memory_clock_limit=2.619e9
    )


def test_a_gpu_with_mig_instances_lists_no_processes_of_others(nvml: FakeNvml) -> None:
    nvml.mig = {0}
    (first, second), _ = health.watch_gpus(BOTH, interval=0.001)(None)
    assert (first.mig, first.utilisation, first.sm_clock, first.others) == (True, None, 1.7e9, {})
    assert second.mig is False


def test_a_gpu_that_may_not_be_opened_hides_no_other(nvml: FakeNvml) -> None:
    nvml.hidden = {FIRST}
    gpus, unread = health.watch_gpus(BOTH)(None)
    assert [gpu.device for gpu in gpus] == [SECOND]
    assert unread == (f"{FIRST}: Insufficient Permissions",)


def test_the_library_is_opened_once(nvml: FakeNvml) -> None:
    gpus, _ = health.watch_gpus(BOTH)(None)
    assert [gpu.device for gpu in gpus] == [FIRST, SECOND]
    assert [gpu.device for gpu in health.watch_health([None], gpus=[SECOND])(None).gpus] == [SECOND]
    assert health.watch_health([None])(None).gpus == ()
    assert nvml.initialised == 1


def test_without_the_library_or_the_driver_there_is_a_reason(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    found = health.watch_health([None], gpus=BOTH)(None)
    assert found.gpus == ()
    assert found.unread_gpus == ("nvidia-ml-py is not installed: pip install nvidia-ml-py",)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(nvml, "nvmlInit", refusing)
    library.cache_clear()
    assert health.watch_gpus(BOTH)(None) == ((), ("GPU is lost",))
