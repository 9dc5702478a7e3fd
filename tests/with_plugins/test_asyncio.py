"""pytest-asyncio: a coroutine measures as any other test does."""

from __future__ import annotations

import pytest

from tests.with_plugins.conftest import Run
from tests.with_plugins.suites import COUNTED

MODULE = "pytest_asyncio"
TESTS = """
import asyncio


@pytest.mark.asyncio
@pytest.mark.parametrize("expected", [1, 2])
async def test_step(ddpperf, expected):
    await asyncio.sleep(0)
    ddpperf.check(build_of(1))
    await asyncio.sleep(0)
    ddpperf.expect(collectives={"all_reduce": expected})


@pytest.mark.asyncio
async def test_ranks(ddpperf_group):
    await asyncio.sleep(0)
    assert ddpperf_group.run(lambda ctx: ctx.rank).values == (0, 1)
"""


def test_a_coroutine_measures(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + TESTS)
    run = run_with(MODULE, "-o", "asyncio_default_fixture_loop_scope=function")
    run.assert_outcomes(passed=2, failed=1)
    run.stdout.fnmatch_lines(["expected 2 all_reduce calls per step, counted 1", "  at test_suite.py:* in test_step"])
