"""What the machine did besides, as far as it could have moved the numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from pytest_ddpperf.records.health import CpuHealth, GpuHealth
from pytest_ddpperf.records.measurement import Launch, Measurement
from pytest_ddpperf.units import format_count, format_percent, format_value

LOAD = 0.10  # share of the usable cores' time that others may use; the system itself uses a few percent
STEAL = 0.02
THROTTLED = 0.01  # of a launch's time on all usable cores
SWAPPED = 2**20  # bytes
HELD_BACK = 0.10  # share of a launch's readings in which a GPU's clocks were held back
CLOCK_FALL = 0.05  # by how much a GPU's clock in one launch may lie below that in another


def health_findings(measurement: Measurement) -> tuple[str, ...]:
    """A sentence for each thing that went on in the machine and could have moved the result, with the launches."""
    found = (
        _said(measurement, lambda cpu, _: cpu.others, LOAD, "other processes used {} of the cores", format_percent),
        _said(measurement, lambda cpu, _: cpu.steal, STEAL, "the hypervisor gave {} of the cores away", format_percent),
        _said(
            measurement,
            _throttled(measurement.environment.cores),
            THROTTLED,
            "a CPU quota held processes back for {} of the time",
            format_percent,
        ),
        _said(measurement, lambda cpu, _: cpu.overheated, 0, "cores were too hot and slowed down {}", _times),
        _said(measurement, lambda cpu, _: cpu.swapped, SWAPPED, "the machine swapped {}", _size),
    )
    return (*(text for text in found if text is not None), *_gpu_findings(measurement))


def gpus_of(launch: Launch) -> tuple[GpuHealth, ...]:
    """The GPUs that the ranks of a launch computed on, as far as somebody looked at them."""
    used = {rank.device_memory.device for rank in launch.ranks if rank.device_memory is not None}
    return () if launch.health is None else tuple(gpu for gpu in launch.health.gpus if gpu.device in used)


def _gpu_findings(measurement: Measurement) -> tuple[str, ...]:
    launches = [gpus for gpus in map(gpus_of, measurement.launches) if gpus]
    of = format_count(len(measurement.launches), "launch")
    held = Counter(
        reason
        for gpus in launches
        for reason in sorted({reason for gpu in gpus for reason, share in gpu.throttled.items() if share > HELD_BACK})
    )
    others = Counter(pid for gpus in launches for pid in {pid for gpu in gpus for pid in gpu.others})
    sizes = {pid: size for gpus in launches for gpu in gpus for pid, size in gpu.others.items()}
    return (
        *(f"GPU clocks were held back ({reason}) in {number} of {of}" for reason, number in held.items()),
        *(
            f"process {pid} used a GPU of the ranks{_with_size(sizes[pid])} in {number} of {of}"
            for pid, number in sorted(others.items())
        ),
        *_fallen_clocks(launches),
    )


def _with_size(size: int | None) -> str:
    return "" if size is None else f" ({format_value(size, 'B')} of its memory)"


def _fallen_clocks(launches: Sequence[tuple[GpuHealth, ...]]) -> tuple[str, ...]:
    """A sentence where the slowest GPU's clock was not the same in all launches."""
    clocks = [gpu.sm_clock for gpus in launches for gpu in [min(gpus, key=_clock)] if gpu.sm_clock is not None]
    if not clocks or min(clocks) >= (1 - CLOCK_FALL) * max(clocks):
        return ()
    low, high = (f"{clock / 1e6:.0f} MHz" for clock in (min(clocks), max(clocks)))
    return (f"the slowest GPU's clock was {low} in one launch and {high} in another",)


def _clock(gpu: GpuHealth) -> float:
    return math.inf if gpu.sm_clock is None else gpu.sm_clock


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


def _throttled(cores: int) -> Callable[[CpuHealth, float], float | None]:
    """The share of a launch's time on all usable cores, 1 at most: a quota's wait may be that of more cores."""

    def share(cpu: CpuHealth, seconds: float) -> float | None:
        return None if cpu.throttled is None else min(1.0, cpu.throttled / (seconds * cores))

    return share


def _times(number: float) -> str:
    return format_count(int(number), "time")


def _size(size: float) -> str:
    return format_value(size, "B")
