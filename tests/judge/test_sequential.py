from __future__ import annotations

import pytest

from pytest_ddpperf.judge.sequential import STOP, Action, Phase, alpha_of_benchmark, next_action
from pytest_ddpperf.records.verdict import Verdict


@pytest.mark.parametrize(
    ("verdicts", "last", "expected"),
    [
        pytest.param((), False, STOP, id="nothing is judged"),
        pytest.param(
            (Verdict.NEW, Verdict.INCOMPATIBLE, Verdict.IMPROVED), False, STOP, id="decided or not comparable"
        ),
        pytest.param((Verdict.UNCHANGED, Verdict.INCONCLUSIVE), False, Action("more", 1), id="one is open"),
        pytest.param((Verdict.INCONCLUSIVE,), True, STOP, id="no time is left"),
        pytest.param((Verdict.REGRESSED,), True, Action("confirm", 6), id="what is worse is confirmed even then"),
    ],
)
def test_open_verdicts_ask_for_a_launch_and_worse_ones_for_a_confirmation(
    verdicts: tuple[Verdict, ...], expected: Action, *, last: bool
) -> None:
    assert next_action(Phase.SCREEN, verdicts, launches=6, suspects=False, last=last) == expected


@pytest.mark.parametrize(
    ("benchmarks", "expected", "side_by_side"),
    [(1, 0.01, 0.007), (20, 0.002, 0.00175), (50, 0.0008, 0.0007), (0, 0.01, 0.007)],
)
def test_benchmarks_share_the_level(benchmarks: int, expected: float, side_by_side: float) -> None:
    assert alpha_of_benchmark(benchmarks) == pytest.approx(expected)
    assert alpha_of_benchmark(benchmarks, paired=True) == pytest.approx(side_by_side)
