"""A conftest.py that records a session as a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf import Result


def pytest_ddpperf_report(results: Sequence[Result]) -> None:
    """Records the session as a run: a chart for each metric of each benchmark, and the verdicts in its summary."""
    import wandb  # here, so that it takes no time before the benchmarks have ended

    with wandb.init(project="ddpperf", job_type="benchmark") as run:
        for result in results:
            benchmark = f"{result.test} {result.name} w{result.measurement.world_size}"
            run.log({f"{benchmark}/{series.metric}": series.value for series in result.measurement.series}, step=0)
            run.summary[f"{benchmark}/verdict"] = result.verdict.value
