"""Records for tests: each factory makes a whole one, and takes the fields that a test is about."""

from __future__ import annotations

from typing import Any

from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Environment, Measurement, Series
from pytest_ddpperf.records.results import Comparison, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.planning import Budget
from pytest_ddpperf.run.variant import CUSTOM, Variant
from pytest_ddpperf.strategies.strategy import Strategy


def make_environment(**facts: Any) -> Environment:
    """A CPU machine with eight cores and two ranks."""
    model = facts.get("cpu_model", "chip")
    defaults = {
        "device": "cpu",
        "device_model": model,
        "device_count": 0,
        "cpu_model": model,
        "cores": 8,
        "threads": 1,
        "nodes": 1,
        "backend": "gloo",
        "world_size": 2,
        "torch": "2.13",
        "cuda": None,
    }
    return Environment(**{**defaults, **facts})


def make_variant(name: str = "ddp", subject: Any = None, strategy: Strategy | None = None, **fields: Any) -> Variant:
    """A variant of a step of its own, or of a Workload under a strategy."""
    defaults = {"mode": None, "environment": make_environment(), "strategy": str(strategy or CUSTOM)}
    return Variant(**{**defaults, **fields, "name": name, "subject": subject, "resolved": strategy})


def make_rank_launch(rank: int = 0, step_times: tuple[float, ...] = (1.0,), **fields: Any) -> RankLaunch:
    """What a rank reports that only timed steps."""
    defaults: dict[str, Any] = {"memory": {}, "loss": None, "samples_per_step": None, "tokens_per_step": None}
    return RankLaunch(rank=rank, step_times=step_times, **{**defaults, **fields})


def make_budget(
    steps: int | None, warmup: int, launches: int, max_time: float, screening: float, **more: Any
) -> Budget:
    """A budget of so many seconds, the first ``screening`` of which are for the screening."""
    return Budget(steps=steps, warmup=warmup, launches=launches, max_time=max_time, screening=screening, **more)


def make_series(metric: str, value: float, **fields: Any) -> Series:
    """A gated time with eight equal samples."""
    defaults = {
        "unit": "s",
        "better": "lower",
        "family": "absolute",
        "scale": "ratio",
        "gated": True,
        "min_tolerance": 0.0,
        "samples": (value,) * 8,
        "interval": None,
    }
    return Series(metric=metric, value=value, **{**defaults, **fields})


def make_new_result(test: str, measured: Measurement, comparisons: tuple[Comparison, ...]) -> Result:
    """The result of a benchmark that has no baseline."""
    reference = StoredBaseline(record=None, origin="")
    return Result(test=test, measurement=measured, comparisons=comparisons, verdict=Verdict.NEW, reference=reference)
