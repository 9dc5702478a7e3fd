"""Power of processors, from a made-up tree of what the kernel shows."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from pytest_ddpperf.instruments.cpu_power import CpuPowerWatch, mean_power, packages

NEVER = 3600.0  # seconds until the thread reads by itself


def zone(root: Path, name: str, called: str, energy: int | None = 0) -> Path:
    folder = root / "sys/class/powercap" / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{called}\n", encoding="ascii")
    (folder / "max_energy_range_uj").write_text("262143328850\n", encoding="ascii")
    if energy is not None:
        (folder / "energy_uj").write_text(f"{energy}\n", encoding="ascii")
    return folder


def test_packages_are_read_once_and_without_their_parts(tmp_path: Path) -> None:
    for name, called in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        zone(tmp_path, name, called)
    assert [package.name for package in packages(tmp_path)] == ["intel-rapl:0", "intel-rapl:1"]
    assert packages(tmp_path / "nothing") == ()


def test_power_is_energy_over_time_also_where_a_counter_goes_round() -> None:
    """One package takes 30 J and 20 J, the other 5 J and, round its range of 100 J, 5 J: 60 J in 2 s."""
    readings = [(10.0, (0, 92_000_000)), (11.0, (30_000_000, 97_000_000)), (12.0, (50_000_000, 2_000_000))]
    assert mean_power(readings, (100_000_000, 100_000_000)) == pytest.approx(30.0)
    assert mean_power(readings[:1], (100_000_000, 100_000_000)) is None
    assert mean_power([], ()) is None


def test_a_watch_tells_the_power_of_its_window(tmp_path: Path) -> None:
    """80 J in the 4 s of the watch; a window with one reading has none."""
    first, second = zone(tmp_path, "intel-rapl:0", "package-0", 5), zone(tmp_path, "intel-rapl:1", "package-1", 7)
    times = iter((100.0, 104.0))
    watch = CpuPowerWatch(tmp_path, NEVER, lambda: next(times))
    (first / "energy_uj").write_text("50000005\n", encoding="ascii")
    (second / "energy_uj").write_text("30000007\n", encoding="ascii")
    assert watch.stop(None) == pytest.approx(20.0)
    times = iter((100.0, 104.0))
    assert CpuPowerWatch(tmp_path, NEVER, lambda: next(times)).stop((101.0, 110.0)) is None


def test_a_watch_reads_meanwhile(tmp_path: Path) -> None:
    """Readings a second apart, by a made-up clock; the counter rises after the third."""
    folder = zone(tmp_path, "intel-rapl:0", "package-0")
    read, times = threading.Event(), itertools.count()

    def clock() -> float:
        now = next(times)
        if now == 3:
            read.set()
        return float(now)

    watch = CpuPowerWatch(tmp_path, 0.0, clock)
    assert read.wait(60)
    (folder / "energy_uj").write_text("6000000", encoding="ascii")
    assert watch.stop((0.0, 2.0)) == 0.0


@pytest.mark.parametrize("energy", [None, 7])
def test_without_the_counters_of_all_packages_there_is_no_power(tmp_path: Path, energy: int | None) -> None:
    """As where only root may read them: this stand-in lacks the files."""
    zone(tmp_path, "intel-rapl:0", "package-0", energy)
    zone(tmp_path, "intel-rapl:1", "package-1", None)
    before = threading.active_count()
    watch = CpuPowerWatch(tmp_path, NEVER)
    assert threading.active_count() == before
    assert watch.stop(None) is None
