"""A session of pytest from end to end: checked, saved, compared; the largest batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.gpu_pieces.piece import Place

SUITE = """
import torch
from pytest_ddpperf import Workload


def workload(batch=8):
    return Workload(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)),
        batch=lambda: (torch.ones(batch, 64), torch.zeros(batch, 64)),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        samples_per_step=batch,
    )


def test_step(ddpperf):
    ddpperf.check(workload(), strategy="ddp")
"""
SEARCH = """
def test_batch_size(ddpperf):
    found = ddpperf.find_batch_size(lambda batch: workload(4096 * batch), memory_limit={limit!r}, limit=256)
    assert 1 <= found.size < 256
    assert found.peak > 0 if {on_gpu} else found.peak is None or found.peak > 0
"""
TURNS = """
def test_turns(ddpperf):
    compared = ddpperf.compare(workload(), strategies=["ddp", "naive"], interleave=True)
    assert all(compared[name].turns for name in ("ddp", "naive"))
"""


def options(place: Place) -> tuple[str, ...]:
    """Those of all runs here: short, and on this device by name."""
    placed = (f"--ddpperf-device={place.device}", f"--ddpperf-backend={place.backend}", "--ddpperf-world-size=1")
    return (*placed, "--ddpperf-max-time=3", "--ddpperf-launches=2", "--ddpperf-report=json:results.json")


def results(inner: pytest.Pytester) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((inner.path / "results.json").read_text())
    return found


def test_a_benchmark_on_a_gpu_is_saved_and_compared(inner: pytest.Pytester, place: Place) -> None:
    inner.makepyfile(SUITE)
    inner.runpytest(*options(place), "--ddpperf-save", "--ddpperf-force-save").assert_outcomes(passed=1)
    saved = results(inner)
    assert [result["verdict"] for result in saved["results"]] == ["new"]
    (result,) = saved["results"]
    memory = {"peak_allocated", "peak_reserved"} if place.device == "cuda" else {"peak_resident"}
    assert memory | {"step_time"} <= result["metrics"].keys()
    (baseline,) = (path for path in (inner.path / "baselines").rglob("*.json"))
    assert baseline.relative_to(inner.path / "baselines").parts[0].startswith(place.device)

    inner.runpytest(*options(place), "--ddpperf-fail-on=broken").assert_outcomes(passed=1)
    (result,) = results(inner)["results"]
    assert result["verdict"] not in {"new", "incompatible", "broken"}
    assert result["metrics"]["step_time"]["change"] is not None
    counted = [metric["verdict"] for metric in result["metrics"].values() if metric["scale"] == "exact"]
    assert set(counted) == {"unchanged"}


def test_the_largest_batch_on_a_gpu_is_found(inner: pytest.Pytester, place: Place) -> None:
    """4096 samples of a perceptron take 4 MiB and more: 256 times as many exceed the limit on any device."""
    inner.makepyfile(SUITE + SEARCH.format(limit=place.chosen("256MiB", "600MiB"), on_gpu=place.device == "cuda"))
    inner.runpytest("-k", "batch_size", *options(place)).assert_outcomes(passed=1, deselected=1)


def test_launches_are_interleaved_if_that_is_asked_for(inner: pytest.Pytester, place: Place) -> None:
    inner.makepyfile(SUITE + TURNS)
    inner.runpytest("-k", "test_turns", *options(place)).assert_outcomes(passed=1, deselected=1)
