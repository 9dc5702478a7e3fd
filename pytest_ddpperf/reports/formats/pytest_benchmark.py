"""pytest-benchmark's JSON: each timed step is a round, so that pytest-benchmark's tools compare and plot the steps."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import full_name

_VERSION = "5.0.0"  # of pytest-benchmark, whose files these are like
_TUKEY = 1.5  # interquartile ranges beyond the quartiles: what lies further out is an outlier


def pytest_benchmark(run: Run) -> str:
    """Returns a file in the format of ``--benchmark-json``, with the benchmarks whose steps were timed."""
    environment = run.environment
    recorded = {} if environment is None else environment.recorded
    system, _, release = recorded.get("kernel", "").partition(" ")
    content = {
        "machine_info": {
            "node": recorded.get("host", ""),
            "system": system,
            "release": release,
            "python_version": recorded.get("python", ""),
            "cpu": {} if environment is None else {"brand_raw": environment.cpu_model, "count": environment.cores},
        },
        "commit_info": {
            "id": run.commit or "unknown",
            "time": run.commit_date,
            "dirty": run.dirty,
            "branch": run.branch or "(unknown)",
        },
        "benchmarks": entries(run),
        "datetime": run.date or "",
        "version": _VERSION,
    }
    return json.dumps(content) + "\n"  # there may be a million rounds


def entries(run: Run, *, data: bool = True) -> list[dict[str, Any]]:
    """Returns pytest-benchmark's JSON entry for each timed benchmark; ``data``: whether to include all step times."""
    timed = (
        (result, [time for launch in result.measurement.launches for time in launch.step_times])
        for result in run.results
    )
    return [_entry(result, times, data=data) for result, times in timed if times]


def _entry(result: Result, times: Sequence[float], *, data: bool) -> dict[str, Any]:
    measured, name = result.measurement, full_name(result)
    return {
        "group": None,
        "name": name.rpartition("::")[2],
        "fullname": name,
        "params": None,
        "param": None,
        "extra_info": {
            "verdict": result.verdict.value,
            "strategy": measured.strategy,
            "world_size": measured.world_size,
            "launches": len(measured.launches),
        },
        "options": {"warmup": measured.plan.warmup > 0},
        "stats": {**stats_of(times), **({"data": list(times)} if data else {})},
    }


def stats_of(times: Sequence[float]) -> dict[str, Any]:
    """Returns pytest-benchmark's statistics of the ``times`` of rounds (at least one), in seconds."""
    from numpy import quantile

    ordered = sorted(times)
    mean = statistics.mean(times)
    deviation = statistics.stdev(times) if len(times) > 1 else 0.0
    q1, q3 = map(float, quantile(times, [0.25, 0.75], method="hazen"))  # as pytest-benchmark does
    low, high = q1 - _TUKEY * (q3 - q1), q3 + _TUKEY * (q3 - q1)
    far = sum(abs(time - mean) > deviation for time in times)
    beyond = sum(not low <= time <= high for time in times)
    total = sum(times)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(times),
        "median": statistics.median(times),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": beyond,
        "stddev_outliers": far,
        "outliers": f"{far};{beyond}",
        "ld15iqr": ordered[bisect_left(ordered, low)],
        "hd15iqr": ordered[bisect_right(ordered, high) - 1],
        "ops": len(times) / total if total else 0.0,
        "total": total,
        "iterations": 1,
    }
