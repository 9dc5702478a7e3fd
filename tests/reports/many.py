"""A run of many benchmarks, for what has to stay fast and small."""

from __future__ import annotations

import copy
import json

from pytest_ddpperf.baselines.jsonfile import render
from pytest_ddpperf.reports.documents.entries import Run
from tests.factories import make_results_document, read_again
from tests.reports.golden_runs import RUNS

STEPS = 40


def many_benchmarks(number: int, launches: int) -> Run:
    """The golden run of 30 again and again, with so many benchmarks that differ in name, launches and step times."""
    data = json.loads(render(make_results_document(RUNS[30].results, None, date="2026-01-12T10:00:00+00:00")))
    golden = [result for result in data["results"] if result["step_times"]]
    data["results"] = [copy.deepcopy(golden[i % len(golden)]) for i in range(number)]
    for i, result in enumerate(data["results"]):
        result["test"] = f"{result['test'].partition('[')[0]}_{i // 10}[{i}]"
        step = result["metrics"]["step_time"]
        # Golden ratios: numbers between 0.9 and 1.3 that look like chance, the same in every run.
        times = [
            [
                round(step["value"] * (0.9 + 0.4 * (0.618034 * (i + STEPS * launch + each) % 1)), 9)
                for each in range(STEPS)
            ]
            for launch in range(launches)
        ]
        result["step_times"], result["launches"], result["health"] = times, launches, [None] * launches
        step["samples"] = [sorted(each)[STEPS // 2] for each in times]
        step["baseline_samples"] = list(reversed(step["samples"]))
    return read_again(data)
