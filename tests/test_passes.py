"""What each launch of a benchmark is asked for; no rank is started."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.errors import OtherSideFailed, OtherSideStopped
from pytest_ddpperf.launch import LaunchResult
from pytest_ddpperf.measure import ONLY_TIMES, Telling, Variant
from pytest_ddpperf.passes import Passes
from pytest_ddpperf.records import Environment, Plan, RankLaunch
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.loop import LaunchJob

ENVIRONMENT = Environment("cpu", "chip", 0, "chip", 8, 1, 1, "gloo", 2, "2.13", None)
DIAGNOSED = Telling(diagnosed=True, growth=False)


def test_both_sides_of_a_round_are_diagnosed_with_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the pilot of one was slow and made again."""
    jobs: list[tuple[bool, LaunchJob]] = []

    def launch(
        _passes: Passes, _settings: Settings, variant: Variant, _function: Any, job: LaunchJob
    ) -> LaunchResult[RankLaunch]:
        jobs.append((variant.other, job))
        return LaunchResult((RankLaunch(0, (1.0,), {}, None, None, None),), (), 1.0)

    monkeypatch.setattr(Passes, "_launch", launch)
    session: Any = None  # nothing of it is asked for
    run = Passes(session, "test_x.py::test_a", []).timed(Settings())
    ours, theirs = (Variant("ddp", None, None, None, ENVIRONMENT, other=other) for other in (False, True))
    for variant in (ours, ours, theirs):
        run([(variant, Plan(1, 5))], ONLY_TIMES)
    for variant in (ours, theirs, theirs, ours):
        run([(variant, Plan(1, 5))], DIAGNOSED)
    assert [(other, job.seed) for other, job in jobs if job.diagnosed] == [(False, 0), (True, 0), (True, 1), (False, 1)]


@pytest.mark.parametrize(
    ("before", "plan", "telling", "stopped"),
    [
        pytest.param(None, Plan(1, 5), ONLY_TIMES, False, id="its first launch"),
        pytest.param((Plan(1, 5), ONLY_TIMES), Plan(1, 5), ONLY_TIMES, True, id="one as before"),
        pytest.param((Plan(1, 5), DIAGNOSED), Plan(1, 5), ONLY_TIMES, True, id="less than before"),
        pytest.param((Plan(1, 5), ONLY_TIMES), Plan(1, 5), DIAGNOSED, False, id="more than before"),
        pytest.param((Plan(1, 5), ONLY_TIMES), Plan(1, 90), ONLY_TIMES, False, id="more steps than the pilot"),
    ],
)
def test_what_the_other_revision_has_run_it_can_run(
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[Plan, Telling] | None,
    plan: Plan,
    telling: Telling,
    *,
    stopped: bool,
) -> None:
    """Else one lost connection would let a regression pass as new."""
    theirs = Variant("ddp", None, None, None, ENVIRONMENT, other=True)
    fine: list[bool] = []

    def launch(*_: Any) -> LaunchResult[RankLaunch]:
        if not fine:
            raise OtherSideFailed("rank 0 of 2 raised", benchmark=theirs.key)
        return LaunchResult((RankLaunch(0, (1.0,), {}, None, None, None),), (), 1.0)

    monkeypatch.setattr(Passes, "_launch", launch)
    session: Any = None  # nothing of it is asked for
    run = Passes(session, "test_x.py::test_a", []).timed(Settings())
    if before is not None:
        fine.append(True)
        run([(theirs, before[0])], before[1])
        fine.clear()
    with pytest.raises(OtherSideStopped if stopped else OtherSideFailed):
        run([(theirs, plan)], telling)
