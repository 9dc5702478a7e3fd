"""What other processes and the hypervisor took of the cores, and what that excuses: worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.allowance import excused_by
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import words_of_note
from tests.judge.made_up import ENVIRONMENT, STEADY, beside, found, judged, measured, series


def disturbed(*metrics: Series, others: Sequence[float | None], steal: float | None = None) -> Measurement:
    """A measurement in whose launches others took so much of the cores; None where nobody looked."""
    launches = tuple(
        Launch(
            round=i,
            ranks=(
                RankLaunch(
                    rank=0, step_times=(1.0,), memory={}, loss=None, samples_per_step=None, tokens_per_step=None
                ),
            ),
            seconds=1.0,
            health=None if share is None else Health(cpu=CpuHealth(others=share, steal=steal)),
        )
        for i, share in enumerate(others)
    )
    return replace(measured(*metrics), launches=launches)


@pytest.mark.parametrize(
    ("others", "steal", "explained"),
    [
        pytest.param([0.23], None, (97 / 77) ** 2 - 1, id="23 %, where 3 % are usual"),
        pytest.param([0.13], 0.1, (97 / 77) ** 2 - 1, id="part of it taken by a hypervisor"),
        pytest.param([0.0, 0.23, 0.9], None, (97 / 77) ** 2 - 1, id="the launch in the middle"),
        pytest.param([None, 0.23, None], None, (97 / 77) ** 2 - 1, id="of those that know"),
        pytest.param([0.515], None, 3.0, id="twice as long, squared"),
        pytest.param([1.0], None, 9.7**2 - 1, id="90 % at most"),
    ],
)
def test_lost_cores_explain_a_slowdown(others: Sequence[float | None], steal: float | None, explained: float) -> None:
    one = disturbed(others=others, steal=steal)
    assert excused_by(one, 0.0, 0.999 * explained) is not None
    assert excused_by(one, 0.0, 1.001 * explained) is None


def test_the_excuse_has_its_figures() -> None:
    cure = "which may explain it; run it again on a quiet machine, or see --ddpperf-against"
    one = disturbed(others=[0.23])
    assert words_of_note(excused_by(one, 0.0, 0.5)) == (
        f"disturbed: other processes or the hypervisor took 23 % of the cores, {cure}"
    )
    assert words_of_note(excused_by(one, 0.1, 0.3)) == (
        f"disturbed: other processes or the hypervisor took 23 % of the cores, 10 % when the baseline was made, {cure}"
    )


def test_what_others_took_when_the_baseline_was_made_excuses_nothing_now() -> None:
    """From 40 to 50 % steps may take (0.6 / 0.5) ** 2 = 1.44 times as long; from 50 % or more they have no excuse."""
    one = disturbed(others=[0.5])
    assert excused_by(one, 0.4, 0.439) is not None
    assert excused_by(one, 0.4, 0.441) is None
    assert excused_by(one, 0.5, 0.01) is None
    assert excused_by(one, 0.9, 0.01) is None


@pytest.mark.parametrize("others", [[0.03], [0.0, 0.01], [None], [], [0.03, 0.03, 0.9]])
def test_what_a_system_takes_in_quiet_too_excuses_nothing(others: Sequence[float | None]) -> None:
    assert excused_by(disturbed(others=others), 0.0, 1e-6) is None


def test_nothing_tells_how_much_of_a_gpu_others_took() -> None:
    on_gpu = replace(disturbed(others=[0.5]), environment=replace(ENVIRONMENT, device="cuda", backend="nccl"))
    assert excused_by(on_gpu, 0.0, 0.1) is None


def test_a_machine_that_does_not_tell_excuses_nothing() -> None:
    one = disturbed(others=[None])
    silent = replace(one, launches=(replace(one.launches[0], health=Health(cpu=CpuHealth())),))
    assert excused_by(silent, 0.0, 0.1) is None


def slower(factor: float, others: float, metric: str = "step_time") -> Comparison:
    """So much slower than the baseline, while others took so much of the cores."""
    time = metric == "step_time"
    before, now = series("step_time" if time else "throughput", STEADY), factor if time else 1 / factor
    before = replace(before, metric=metric)
    new = disturbed(replace(before, samples=tuple(now * one for one in before.samples)), others=[others] * 8)
    return judged(new, found(before))[metric]


@pytest.mark.parametrize("metric", ["step_time", "throughput", "speedup", "scaling_efficiency"])
@pytest.mark.parametrize(
    ("factor", "others", "expected"),
    [
        pytest.param(1.5, 0.0, Verdict.REGRESSED, id="on a quiet machine"),
        pytest.param(1.5, 0.23, Verdict.INCONCLUSIVE, id="less than the 56 % that may be explained"),
        pytest.param(2.0, 0.23, Verdict.REGRESSED, id="more than that"),
        pytest.param(1.5, 0.13, Verdict.REGRESSED, id="more than the 23 % of a tenth"),
        pytest.param(1.0, 0.23, Verdict.UNCHANGED, id="not slower"),
        pytest.param(0.7, 0.23, Verdict.IMPROVED, id="faster all the same"),
    ],
)
def test_beside_a_stored_baseline_a_slowdown_that_others_may_have_made_is_not_known(
    metric: str, factor: float, others: float, expected: Verdict
) -> None:
    """A rate falls to 1 / 1.5, which is as much slower."""
    one = slower(factor, others, metric)
    assert one.verdict is expected
    assert words_of_note(one.note).startswith("disturbed: ") is (expected is Verdict.INCONCLUSIVE)
    assert one.suspicious is (factor > 1)  # so it is measured again all the same


def test_a_baseline_that_was_made_beside_as_much_load_excuses_nothing() -> None:
    before = series("step_time", STEADY)
    new = disturbed(series("step_time", STEADY, factor=1.5), others=[0.5] * 8)
    quiet = found(before)
    assert quiet.record is not None
    loaded = replace(quiet, record=replace(quiet.record, lost=0.5))
    assert [judged(new, one)["step_time"].verdict for one in (quiet, loaded)] == [
        Verdict.INCONCLUSIVE,
        Verdict.REGRESSED,
    ]


def test_what_others_take_hits_both_sides_of_a_round() -> None:
    new = disturbed(series("step_time", STEADY, factor=1.5), others=[0.5] * 8)
    assert judged(new, beside(series("step_time", STEADY)))["step_time"].verdict is Verdict.REGRESSED


def test_bytes_are_not_excused() -> None:
    new = disturbed(series("peak_resident", [5e8] * 8, factor=1.3), others=[0.5] * 8)
    assert judged(new, found(series("peak_resident", [5e8] * 8))).verdict is Verdict.REGRESSED
