"""An example of a plugin for pytest-ddpperf: it adds a strategy, a metric, a fact and a report, and hears verdicts."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_ddpperf import Measurement, Metric, MetricRules, Parallel, Result

if TYPE_CHECKING:
    from torch import nn

VERDICTS: Counter[str] = Counter()
MEASURED: list[str] = []


def reversed_all_reduce(module: nn.Module, ctx: Any, *, half: bool = False) -> Parallel:
    """Averages gradients one by one, the last parameter first; ``half`` sends them in 16 bits."""
    import torch.distributed as dist

    for tensor in module.state_dict().values():
        dist.broadcast(tensor, src=0)

    def synchronise() -> None:
        for parameter in reversed(list(module.parameters())):
            if parameter.grad is not None:
                sent = parameter.grad.bfloat16() if half else parameter.grad
                dist.all_reduce(sent)
                parameter.grad.copy_(sent / ctx.world_size)

    return Parallel(module, synchronise)


def sample_imbalance(measurement: Measurement) -> tuple[float, ...] | None:
    """For each launch, the samples of the rank with the most over those of the average rank."""
    found = []
    for launch in measurement.launches:
        samples = [rank.samples_per_step for rank in launch.ranks]
        known = [number for number in samples if number is not None]
        if len(known) < len(samples):
            return None
        found.append(max(known) * len(known) / sum(known))
    return tuple(found)


def pytest_ddpperf_strategies() -> Mapping[str, Callable[..., Parallel]]:
    """Adds ``strategy="reversed"`` and ``strategy="reversed[half=true]"``."""
    return {"reversed": reversed_all_reduce}


def pytest_ddpperf_metrics() -> Sequence[Metric]:
    """Adds the metric ``sample_imbalance``, which is the same on a slower machine and has no noise."""
    return [
        Metric(
            name="sample_imbalance",
            unit="1",
            better="lower",
            family="relative",
            scale="ratio",
            samples=sample_imbalance,
            rules=MetricRules(drifts=False, weight=0.0),
        )
    ]


def pytest_ddpperf_environment() -> Mapping[str, str]:
    """Adds the C library, which results and baselines then record."""
    return {"libc": " ".join(platform.libc_ver()) or "unknown"}


def pytest_ddpperf_measured(test: str, measurement: Measurement) -> None:
    """Keeps what was measured."""
    MEASURED.append(f"{test} {measurement.name}")


def pytest_ddpperf_verdict(result: Result) -> None:
    """Counts verdicts."""
    VERDICTS[result.verdict.value] += 1


def pytest_ddpperf_report(results: Sequence[Result]) -> tuple[str, str]:
    """Adds a part to the summary: how many benchmarks have each verdict."""
    lines = [f"{verdict}: {number}" for verdict, number in sorted(VERDICTS.items())]
    return "ddpperf verdicts", "\n".join([f"{len(results)} judged, {len(MEASURED)} measured", *lines])
