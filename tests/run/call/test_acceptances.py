"""Tests and runs that accept a worsening."""

from __future__ import annotations

import json

import pytest

SUITE = """
import pytest
import torch.distributed as dist
from torch import ones

pytestmark = pytest.mark.ddpperf(world_size=2, device="cpu", backend="gloo", counts="only", timeout=60)


def build_of(calls):
    return lambda ctx: lambda: [dist.all_reduce(ones(2)) for _ in range(calls)] and None


def test_it(ddpperf):
    ddpperf.check(build_of(CALLS), name="mine")


@pytest.mark.ddpperf(MARK)
def test_marked(ddpperf):
    ddpperf.check(build_of(CALLS + (CALLS > 1)), name="mine")
"""


def suite_of(calls: int, mark: str) -> str:
    return SUITE.replace("CALLS", str(calls)).replace("MARK", mark)


def test_a_worsening_that_a_run_or_a_test_accepts_passes_up_to_its_limit(inner: pytest.Pytester) -> None:
    names = ("collective_calls", "collective_bytes", "operators", "peak_tensor_bytes")
    limits = {"collective_calls": "+2", **dict.fromkeys(names[1:], "+900%")}
    mark = f"accept={limits}, reason='more buckets'"
    inner.makepyfile(test_suite=suite_of(1, mark))
    inner.runpytest("--ddpperf-save").assert_outcomes(passed=2)
    inner.makepyfile(test_suite=suite_of(3, mark))
    options = [f"--ddpperf-allow=test_suite.py::test_it {name}" for name in names]
    options += ["--ddpperf-allow=test_site.py::test_it operators", "--ddpperf-report=json:run.json"]
    run = inner.runpytest(*options)
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["*-allow='test_site.py::test_it operators': no benchmark that ran belongs to*"])
    run.stdout.no_fnmatch_line("*test_suite.py::test_it operators': no benchmark*")
    allowed, beyond = json.loads((inner.path / "run.json").read_text())["results"]
    assert allowed["verdict"] == "unchanged"
    assert "accepted: collective_calls 1 -> 3 (--ddpperf-allow)" in allowed["findings"]
    assert (allowed["metrics"]["collective_calls"]["verdict"], allowed["failure"]) == ("regressed", "")
    assert "worse than the accepted limit: collective_calls 1 -> 4 (more buckets)" in beyond["findings"]
