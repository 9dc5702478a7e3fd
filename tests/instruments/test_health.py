"""What the kernel counts, read from texts as it writes them; the figures are worked by hand."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from pytest_ddpperf.instruments import health
from pytest_ddpperf.instruments.health import (
    CpuReading,
    Ticks,
    core_ticks,
    cpu_health,
    process_ticks,
    read_cpu,
    swapped_pages,
    throttled_seconds,
    watch_health,
)
from pytest_ddpperf.records.health import CpuHealth

# user nice system idle iowait irq softirq steal guest guest_nice
STAT = """cpu  600 30 90 1500 60 6 3 15 40 0
cpu0 100 10 20 700 20 1 1 5 30 0
cpu1 200 10 30 500 20 2 1 4 10 0
cpu10 300 10 40 300 20 3 1 6 0 0
intr 123 0 1
"""


def test_ticks_are_those_of_the_usable_cores() -> None:
    """Core 0: 857 with 132 busy and 5 stolen; core 10: 680 with 354 busy and 6 stolen. Guests are in user already."""
    assert core_ticks(STAT, {0}) == Ticks(busy=132, steal=5, total=857)
    assert core_ticks(STAT, {0, 10}) == Ticks(busy=132 + 354, steal=11, total=857 + 680)


def test_what_tells_nothing_of_these_cores_has_no_ticks() -> None:
    assert core_ticks("", {0}) is None
    assert core_ticks(STAT, {7}) is None
    assert core_ticks("cpu0 1 2 3\n", {0}) is None


def test_a_process_counts_its_ended_children() -> None:
    """utime 7, stime 8, cutime 900, cstime 50; the name holds a bracket and spaces."""
    text = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 200 0 0 7 8 900 50 20 0 1 0 12345 1000 20"
    assert process_ticks(text) == 965
    assert process_ticks("") is None


def test_waiting_for_a_quota_in_both_versions_of_control_groups() -> None:
    assert throttled_seconds("usage_usec 9\nnr_periods 10\nnr_throttled 3\nthrottled_usec 2500000\n") == 2.5
    assert throttled_seconds("nr_periods 10\nnr_throttled 3\nthrottled_time 2500000000\n") == 2.5
    assert throttled_seconds("usage_usec 9\n") is None


def test_pages_to_and_from_swap() -> None:
    assert swapped_pages("pgpgin 5\npswpin 30\npswpout 12\n") == 42
    assert swapped_pages("pgpgin 5\n") is None


def test_others_had_what_neither_idle_nor_ours_was() -> None:
    """Of 400 ticks of two cores 300 were busy, 180 of them ours: 120 / 400. Stolen were 20."""
    before = CpuReading(cores=Ticks(1000, 10, 5000), ours=500, throttled=1.0, overheated=3, swapped=100)
    after = CpuReading(
        cores=Ticks(1300, 30, 5400),
        ours=680,
        throttled=1.5,
        overheated=5,
        swapped=110,
        frequencies=(2e9, 3e9),
        governors=("powersave",),
    )
    assert cpu_health(before, after) == CpuHealth(
        others=0.3,
        steal=0.05,
        throttled=0.5,
        overheated=2,
        swapped=10 * resource.getpagesize(),
        governor="powersave",
        frequency=2.5e9,
    )


def test_without_our_own_time_others_are_unknown() -> None:
    """The process that ranks are forked from ended: what its children used is nowhere."""
    before = CpuReading(cores=Ticks(1000, 10, 5000), ours=500, throttled=None, overheated=None, swapped=None)
    after = CpuReading(cores=Ticks(1300, 30, 5400), ours=None, throttled=None, overheated=None, swapped=None)
    assert cpu_health(before, after) == CpuHealth(steal=0.05)


def test_counting_errors_do_not_make_less_than_nothing() -> None:
    """Ticks are counted in two ways that differ by one now and then."""
    before = CpuReading(cores=Ticks(1000, 0, 5000), ours=500, throttled=None, overheated=None, swapped=None)
    after = CpuReading(cores=Ticks(1100, 0, 5400), ours=602, throttled=None, overheated=None, swapped=None)
    assert cpu_health(before, after).others == 0


def test_reads_what_a_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    files = {
        "proc/stat": STAT,
        "proc/7/stat": "7 (python) S 1 42 42 0 -1 4194560 100 200 0 0 1 2 3 4 20 0",
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
    assert read_cpu([7, 8], tmp_path) == CpuReading(
        cores=Ticks(132 + 243, 9, 857 + 767),
        ours=110,
        throttled=3.0,
        overheated=9,
        swapped=3,
        frequencies=(2e9, 2.4e9),
        governors=("schedutil",),
    )


def test_a_machine_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    reading = read_cpu([7], tmp_path)
    assert cpu_health(reading, reading) == CpuHealth()


def test_without_a_parent_of_ranks_others_are_unknown() -> None:
    assert watch_health([None])(None).cpu.others is None


def test_this_process_and_the_parent_of_ranks_are_not_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the kernel: 400 ticks pass, all busy. This process has 100 of them, the parent of ranks 180."""
    ours = {os.getpid(): 100, 4242: 180}
    passed = iter((0, 1))

    def read(pids: Collection[int]) -> CpuReading:
        times = next(passed)
        ticks = sum(times * ours[pid] for pid in pids)
        return CpuReading(
            cores=Ticks(400 * times, 0, 400 * times), ours=ticks, throttled=None, overheated=None, swapped=None
        )

    monkeypatch.setattr(health, "read_cpu", read)
    assert watch_health([4242])(None).cpu.others == 120 / 400


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell what processes have used")
def test_what_this_process_computes_is_counted_as_ours() -> None:
    """At least 0.2 s of processor time, whatever else the machine does meanwhile; in ticks of its clock."""
    before, start = read_cpu([os.getpid()]), time.process_time()
    while time.process_time() - start < 0.2:
        sum(range(1000))
    spent, after = time.process_time() - start, read_cpu([os.getpid()])
    assert before.ours is not None
    assert after.ours is not None
    assert after.ours - before.ours >= (spent - 0.05) * os.sysconf("SC_CLK_TCK")


def test_the_power_of_processors_is_told_where_they_show_it(tmp_path: Path) -> None:
    """A made-up package whose counter rises by a joule while it is watched."""
    assert watch_health([], root=tmp_path)(None).cpu.power is None
    package = tmp_path / "sys/class/powercap/intel-rapl:0"
    package.mkdir(parents=True)
    for file, text in (("name", "package-0"), ("max_energy_range_uj", "9000000"), ("energy_uj", "1000000")):
        (package / file).write_text(text, encoding="ascii")
    seen = watch_health([], root=tmp_path)
    (package / "energy_uj").write_text("2000000", encoding="ascii")
    power = seen(None).cpu.power
    assert power is not None
    assert power > 0
