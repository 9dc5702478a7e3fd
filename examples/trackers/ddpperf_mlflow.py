"""A conftest.py that records each benchmark as a run of MLflow."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf import Result


def pytest_ddpperf_report(results: Sequence[Result]) -> None:
    """Records each benchmark as a run, where MLFLOW_TRACKING_URI says."""
    import mlflow  # here, so that it takes no time before the benchmarks have ended

    mlflow.set_experiment("ddpperf")
    for result in results:
        measurement = result.measurement
        with mlflow.start_run(run_name=f"{result.test} {result.name}"):
            mlflow.set_tags({"test": result.test, "verdict": result.verdict.value})
            settings = {"strategy": measurement.strategy, "ranks": measurement.world_size, **measurement.recipe}
            mlflow.log_params(settings)
            mlflow.log_metrics({series.metric: series.value for series in measurement.series})
