"""GPUs as a made-up pynvml shows them."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from pytest_ddpperf.instruments.gpu_health import gpu_health, read_gpu, watch_gpus
from pytest_ddpperf.instruments.health import watch_health
from pytest_ddpperf.records.health import GpuHealth
from tests.fake_nvml import FIRST, SECOND, CountingNvml, FakeNvml, refusing

BOTH = (FIRST, SECOND)


def reading(
    at: float, utilisation: int, sm_clock: int = 1700, reasons: int = 0, **counted: int
) -> tuple[float, dict[str, int]]:
    figures = {"memory_clock": 2600, "temperature": 60 + utilisation // 10, "power": 1000 * utilisation}
    names = {name.replace("_", " "): count for name, count in counted.items()}
    return at, {"utilisation": utilisation, "sm_clock": sm_clock, "reasons": reasons, **figures, **names}


def test_what_is_not_supported_is_not_told() -> None:
    """The library has no function for energy and violations; the second GPU tells no power."""
    both = {"sm_clock": 1700, "memory_clock": 2600, "temperature": 71, "reasons": 4}
    assert read_gpu(FakeNvml(), 0) == {**both, "utilisation": 90, "power": 500_000}
    assert read_gpu(FakeNvml(), 1) == {**both, "utilisation": 89}


def test_the_drivers_counters_are_read_where_it_has_them() -> None:
    seen = read_gpu(CountingNvml(), 1)
    assert (seen["energy"], seen["held by power cap"], "held by board limit" in seen) == (1001, 7, False)


def test_figures_are_those_of_the_readings() -> None:
    """Clocks 1500, 1700, 1700, 1980: the median is 1700."""
    readings = [
        reading(1.0, 50, 1700, 0x24),
        reading(1.25, 100, 1500, 0x04),
        reading(1.5, 75, 1700),
        reading(1.75, 75, 1980, 0x01),
    ]
    assert gpu_health(FIRST, readings, (1980, None), {7: 100}) == GpuHealth(
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
    health = gpu_health(FIRST, readings, (None, None), {})
    assert health.power == pytest.approx(400)
    assert health.throttled == {"power cap": pytest.approx(0.3), "temperature": pytest.approx(1 / 3)}


def test_one_reading_has_no_difference_of_counters() -> None:
    health = gpu_health(FIRST, [reading(8.0, 90, energy=5_000, held_by_power_cap=1)], (None, None), {})
    assert (health.power, health.throttled) == (90, {})


def test_steps_shorter_than_the_interval_have_no_figures() -> None:
    assert gpu_health(FIRST, [], (1980, 2619), {}) == GpuHealth(
        device=FIRST, readings=0, sm_clock_limit=1.98e9, memory_clock_limit=2.619e9
    )


def test_a_watch_reads_until_it_is_stopped(nvml: FakeNvml) -> None:
    """Process 100 is there from the start to the end, 200 goes and 300 comes, and we ourselves are no other."""
    seen = watch_gpus(BOTH, interval=0.001)
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
    seen = watch_gpus(BOTH, interval=0.001)
    (first, _), _ = seen((float("-inf"), 0.0))  # steps of long ago
    assert (first.readings, first.sm_clock, first.sm_clock_limit) == (0, None, 1.98e9)


def test_a_gpu_that_may_not_be_opened_hides_no_other(nvml: FakeNvml) -> None:
    nvml.hidden = {FIRST}
    gpus, unread = watch_gpus(BOTH)(None)
    assert [gpu.device for gpu in gpus] == [SECOND]
    assert unread == (f"{FIRST}: Insufficient Permissions",)


def test_a_gpu_with_instances_has_the_figures_that_there_are(nvml: FakeNvml) -> None:
    """Its processes are those of all instances, so that they tell nothing of one."""
    nvml.mig = {0}
    seen = watch_gpus(BOTH, interval=0.001)
    (first, second), _ = seen(None)
    assert (first.mig, first.utilisation, first.sm_clock, first.others) == (True, None, 1.7e9, {})
    assert second.mig is False


def test_the_library_is_opened_once(nvml: FakeNvml) -> None:
    gpus, _ = watch_gpus(BOTH)(None)
    assert [gpu.device for gpu in gpus] == [FIRST, SECOND]
    assert [gpu.device for gpu in watch_health([None], gpus=[SECOND])(None).gpus] == [SECOND]
    assert watch_health([None])(None).gpus == ()
    assert nvml.initialised == 1


def test_without_the_library_the_cure_is_told(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    health = watch_health([None], gpus=BOTH)(None)
    assert health.gpus == ()
    assert health.unread_gpus == ("nvidia-ml-py is not installed: pip install nvidia-ml-py",)


def test_without_a_driver_there_are_no_gpus(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "nvmlInit", refusing)
    assert watch_gpus(BOTH)(None) == ((), ("GPU is lost",))
