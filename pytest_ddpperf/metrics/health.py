"""What the machine did besides, as far as it could have moved the numbers."""

from __future__ import annotations

from collections.abc import Callable

from pytest_ddpperf.health import CpuHealth
from pytest_ddpperf.records import Measurement
from pytest_ddpperf.units import format_count, format_percent, format_value

LOAD = 0.10  # share of the usable cores' time that others may use; the system itself uses a few percent
STEAL = 0.02
THROTTLED = 0.01  # of a launch's time
SWAPPED = 2**20  # bytes


def health_findings(measurement: Measurement) -> tuple[str, ...]:
    """A sentence for each thing that went on in the machine and could have moved the result, with the launches."""
    found = (
        _said(measurement, lambda cpu, _: cpu.others, LOAD, "other processes used {} of the cores", format_percent),
        _said(measurement, lambda cpu, _: cpu.steal, STEAL, "the hypervisor gave {} of the cores away", format_percent),
        _said(measurement, _throttled, THROTTLED, "a CPU quota held processes back for {} of the time", format_percent),
        _said(measurement, lambda cpu, _: cpu.overheated, 0, "cores were too hot and slowed down {}", _times),
        _said(measurement, lambda cpu, _: cpu.swapped, SWAPPED, "the machine swapped {}", _size),
    )
    return tuple(text for text in found if text is not None)


def _said(
    measurement: Measurement,
    fact: Callable[[CpuHealth, float], float | None],
    limit: float,
    words: str,
    text: Callable[[float], str],
) -> str | None:
    """A sentence on the launches in which a fact was above its limit, with its smallest and largest value there."""
    facts = [fact(one.health.cpu, one.seconds) for one in measurement.launches if one.health is not None]
    above = [value for value in facts if value is not None and value > limit]
    if not above:
        return None
    span = " to ".join(dict.fromkeys((text(min(above)), text(max(above)))))
    return f"{words.format(span)} in {len(above)} of {format_count(len(measurement.launches), 'launch')}"


def _throttled(cpu: CpuHealth, seconds: float) -> float | None:
    return None if cpu.throttled is None else cpu.throttled / seconds


def _times(number: float) -> str:
    return format_count(int(number), "time")


def _size(size: float) -> str:
    return format_value(size, "B")
