"""Tests and runs that accept a worsening."""

from __future__ import annotations

import json
from typing import Any

import pytest

SUITE = """
import pytest
import torch.distributed as dist
from torch import ones

pytestmark = pytest.mark.ddpperf(world_size=2, device="cpu", backend="gloo", counts="only", timeout=60)


{mark}
def test_it(ddpperf):
    def build(ctx):
        return lambda: [dist.all_reduce(ones(2)) for _ in range({calls})] and None

    ddpperf.check(build, name="mine")
"""


def run(inner: pytest.Pytester, calls: int, *options: str, mark: str = "") -> tuple[pytest.RunResult, dict[str, Any]]:
    inner.makepyfile(test_suite=SUITE.format(calls=calls, mark=mark))
    done = inner.runpytest("--ddpperf-report=json:run.json", *options)
    (found,) = json.loads((inner.path / "run.json").read_text())["results"]
    return done, found


def test_what_a_run_or_a_test_accepts_fails_nothing_up_to_its_limit(inner: pytest.Pytester) -> None:
    run(inner, 1, "--ddpperf-save")
    names = ("collective_calls", "collective_bytes", "operators", "peak_tensor_bytes")
    options = [f"--ddpperf-allow=test_suite.py::test_it {name}" for name in names]
    allowed, result = run(inner, 3, *options, "--ddpperf-allow=test_site.py::test_it operators")
    allowed.assert_outcomes(passed=1)
    allowed.stdout.fnmatch_lines(["*-allow='test_site.py::test_it operators': no benchmark that ran belongs to*"])
    allowed.stdout.no_fnmatch_line("*test_suite.py::test_it operators': no benchmark*")
    assert result["verdict"] == "unchanged"
    assert "accepted: collective_calls 1 -> 3 (--ddpperf-allow)" in result["findings"]
    assert (result["metrics"]["collective_calls"]["verdict"], result["failure"]) == ("regressed", "")

    limits = {"collective_calls": "+2", **dict.fromkeys(names[1:], "+900%")}
    mark = f"@pytest.mark.ddpperf(accept={limits}, reason='more buckets')"
    accepted, result = run(inner, 3, mark=mark)
    accepted.assert_outcomes(passed=1)
    assert "accepted: collective_calls 1 -> 3 (more buckets)" in result["findings"]

    beyond, result = run(inner, 4, mark=mark)
    beyond.assert_outcomes(failed=1)
    assert "worse than what is accepted: collective_calls 1 -> 4 (more buckets)" in result["findings"]


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("accept={'step_time': '+20%'}", "*accept= is for what is meant, and reports say why: give reason=*"),
        ("accept='step_time', reason='r'", "*accept='step_time'): expected worsenings by metric, such as *"),
    ],
)
def test_an_acceptance_without_a_reason_or_a_limit_is_refused(inner: pytest.Pytester, mark: str, problem: str) -> None:
    inner.makepyfile(test_suite=SUITE.format(calls=1, mark=f"@pytest.mark.ddpperf({mark})"))
    done = inner.runpytest("-q")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {problem}"])


def test_an_accepted_metric_that_nobody_knows_is_refused_before_anything_is_measured(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_suite=SUITE.format(calls=1, mark=""))
    done = inner.runpytest("-q", "--ddpperf-allow=test_suite.py step_tim")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*accepted: there is no metric 'step_tim'; did you mean step_time?*"])
    done.stdout.no_fnmatch_line("*ddpperf time*")  # of what was launched
