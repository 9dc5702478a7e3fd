"""What a step is bound by: the share of each cause, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.analysis.advice import advice_on
from pytest_ddpperf.analysis.diagnosis import diagnosed, diagnosis_of
from pytest_ddpperf.analysis.evidence import SlowRank, StepEvidence
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Diagnosis
from pytest_ddpperf.records.launch import MachineRates
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.phases import PHASES, BlockTimes, PhaseTimes
from pytest_ddpperf.reports.diagnosis import diagnosis_text
from tests.factories import known, make_environment, make_launch, make_measurement, make_rank_launch, make_series

RATES = MachineRates(products=100e9, copies=20e9, operator=2e-6)
NOTHING: dict[str, Any] = {
    "step": 0.1,
    "data": 0.0,
    "communication": 0.0,
    "unmeasured": False,
    "outside": 0.0,
    "slow": None,
    "cpu": 0.1,
    "flops": 0.0,
    "operators": 100.0,
    "moved": 0.0,
    "rates": RATES,
    "sent": 0.0,
    "collectives": 0.0,
    "lost": 0.0,
    "memory": None,
}
SLOW = SlowRank(rank=1, own=0.08, others=0.02, phase="forward")


def share_of(found: Diagnosis) -> float:
    """The share of the step that its bottleneck has; 0 if that is no cause."""
    cause = found.cause(found.bottleneck)
    return 0.0 if cause is None else cause.share


def evidence(**fields: Any) -> StepEvidence:
    """A step of 100 ms that keeps its core busy, and these figures."""
    return StepEvidence(**{**NOTHING, **fields})


@pytest.mark.parametrize(
    ("fields", "bottleneck", "share"),
    [
        ({"data": 0.06, "cpu": 0.04}, "data", 0.6),
        ({"communication": 0.05, "cpu": 0.05}, "communication", 0.5),
        ({"slow": SLOW, "cpu": 0.04}, "straggler", 0.6),
        # 5 GFLOP at 100 GFLOP/s are 50 ms, 100 calls 0.2 ms: of 100 ms of computing 50 in 50.2.
        ({"flops": 5e9}, "compute", 50 / 50.2),
        ({"flops": 5e9, "memory": 0.95}, "memory_capacity", 0.0),
        ({"moved": 1e9}, "memory_bandwidth", 50 / 50.2),
        ({"operators": 40_000.0}, "overhead", 1.0),
        ({"operators": 10_000.0}, "overhead", 1.0),  # 20 ms of calls: Python around them takes five times as long
        ({"operators": 10_000.0, "step": 0.3, "cpu": 0.3}, "unclear", 2 / 3),  # but no longer
        ({"operators": 1.0}, "unclear", 0.9999),  # Python computes, and no operator
        ({"flops": 1e9, "operators": 1.0}, "unclear", 0.6999),  # beside 10 ms of products, which take 30 at most
        ({"cpu": 0.04, "flops": 4e9}, "unclear", 0.6),  # 60 ms that no instrument sees
        ({"data": 0.25e-1, "communication": 0.25e-1, "cpu": 0.05, "flops": 2.5e9, "moved": 0.5e9}, "unclear", 0.0),
        ({"lost": 0.8, "cpu": 0.04}, "disturbed", 0.6),
        ({"communication": 0.05, "lost": 0.8, "cpu": 0.02}, "communication", 0.5),
        ({"data": 0.06, "lost": 0.8, "cpu": 0.02}, "data", 0.6),
        ({"operators": 0.0}, "unclear", 1.0),  # nothing was counted
        ({"rates": None}, "unclear", 1.0),
    ],
)
def test_the_cause_with_the_largest_share_is_the_bottleneck(
    fields: dict[str, Any], bottleneck: str, share: float
) -> None:
    found = diagnosed(evidence(**fields), make_environment())
    assert found.bottleneck == bottleneck
    assert share_of(found) == pytest.approx(share, abs=1e-9)


def test_the_parts_of_a_step_add_up_to_it() -> None:
    figures = {"data": 0.02, "communication": 0.01, "cpu": 0.05, "flops": 1e9, "moved": 2e8, "operators": 2000.0}
    causes = diagnosed(evidence(**figures), make_environment()).causes
    assert sum(cause.share for cause in causes) == pytest.approx(1)
    # 70 ms are left for computing, 20 of them idle: 50 ms in the proportion of 10, 10 and 4 ms.
    seconds = {cause.bottleneck: cause.seconds for cause in causes}
    assert seconds == pytest.approx(
        {
            "data": 0.02,
            "communication": 0.01,
            "unclear": 0.02,
            "compute": 0.05 * 10 / 24,
            "memory_bandwidth": 0.05 * 10 / 24,
            "overhead": 0.05 * 4 / 24,
        }
    )


GPU = make_environment(device="cuda", device_count=8)


@pytest.mark.parametrize(
    ("fields", "environment", "shares"),
    [
        pytest.param(
            {"data": 0.08, "communication": 0.04, "cpu": 0.0},
            make_environment(),
            {"data": 2 / 3, "communication": 1 / 3},
            id="waits that exceed the step are scaled to it",
        ),
        pytest.param(  # others took 40 % of the cores, and ranks were idle for 60 of 100 ms
            {"lost": 0.4, "cpu": 0.04, "flops": 4e9},
            make_environment(cores=2),
            {"disturbed": 0.4, "unclear": 0.2, "compute": 0.4 * 40 / 40.2},
            id="others are blamed for no more than they took",
        ),
        pytest.param(  # 10 ms of products, 40 ms of calls
            {"cpu": None, "flops": 1e9, "operators": 20_000.0}, GPU, {"overhead": 1.0}, id="the host is the limit"
        ),
        pytest.param(
            {"cpu": None, "flops": 5e9, "operators": 20_000.0}, GPU, {"compute": 1.0}, id="the device is the limit"
        ),
    ],
)
def test_large_shares_of_causes_agree_with_those_by_hand(
    fields: dict[str, Any], environment: Environment, shares: dict[str, float]
) -> None:
    causes = diagnosed(evidence(**fields), environment).causes
    assert {cause.bottleneck: cause.share for cause in causes if cause.share > 0.1} == pytest.approx(shares)


@pytest.mark.parametrize("counts", [{"collectives": 2.0, "sent": 8.0}, {}])
def test_only_counted_collectives_are_a_fact(counts: dict[str, float]) -> None:
    cause = known(
        diagnosed(evidence(communication=0.05, cpu=0.05, **counts), make_environment()).cause("communication")
    )
    assert cause.facts == counts


def test_ranks_that_share_saturated_cores_are_oversubscribed() -> None:
    shared = make_environment(cores=2, world_size=8)
    busy = diagnosed(evidence(cpu=0.025, flops=1e9), shared)  # 8 x 25 ms on two cores in 100 ms
    assert busy.bottleneck == "oversubscribed"
    assert share_of(busy) == pytest.approx(0.75)
    # Whose threads keep the cores busy has a core all the time, and shares it.
    working = diagnosed(evidence(cpu=0.1, flops=1e9), make_environment(cores=2, world_size=4))
    assert working.bottleneck == "oversubscribed"
    assert share_of(working) == pytest.approx(0.5)
    asleep = diagnosed(evidence(cpu=0.005, data=0.09, flops=1e9), shared)
    assert (asleep.bottleneck, asleep.cause("oversubscribed")) == ("data", None)


def test_communication_that_nothing_timed_is_unclear() -> None:
    """Of 100 ms a rank computes for 40. No instrument says how much of the other 60 it waits for its collectives."""
    found = diagnosed(evidence(unmeasured=True, collectives=4.0, cpu=0.04, flops=2e9), make_environment())
    assert (found.bottleneck, found.cause("communication")) == ("unclear", None)
    assert share_of(found) == pytest.approx(0.6)
    cause = known(found.cause("unclear"))
    assert cause.facts["collectives"] == 4.0


def test_work_that_no_operator_does_is_unclear_and_no_advice_promises_its_time() -> None:
    """A rank works for 27 ms in NumPy, after 30 operators and a collective of 16 kB that takes 3 ms."""
    fields = {"step": 0.03, "cpu": 0.027, "operators": 30.0, "communication": 3e-3, "collectives": 1.0, "sent": 16e3}
    found = diagnosed(evidence(**fields), make_environment())
    assert share_of(found) == pytest.approx(0.9 - 5 * 30 * 2e-6 / 0.03)
    assert diagnosis_text(found).startswith("unclear: nothing that was measured explains 89 % of the step (")
    gains = {
        each.code: each.gain for each in advice_on(found, make_measurement(series=(make_series("phase_other", 0.03),)))
    }
    assert gains["accumulation"] == pytest.approx(3 / 4 * 0.11)


def test_a_wait_outside_of_all_phases_holds_no_collective() -> None:
    """Of 100 ms a rank sleeps for 50 after the optimizer, and its collectives are in backward."""
    fields = {"unmeasured": True, "collectives": 4.0, "cpu": 0.04, "flops": 2e9, "outside": 0.05}
    cause = known(diagnosed(evidence(**fields), make_environment()).cause("unclear"))
    assert cause.share == pytest.approx(0.6)
    assert (cause.facts["outside"], "collectives" in cause.facts) == (0.05, False)


def test_on_a_gpu_unexplained_time_is_unclear_if_collectives_were_not_timed() -> None:
    """30 of 100 ms are products, and 0.2 ms calls, which run beside them."""
    figures = {"cpu": None, "flops": 3e9, "collectives": 4.0}
    found = diagnosed(evidence(unmeasured=True, **figures), GPU)
    assert {cause.bottleneck: cause.share for cause in found.causes} == pytest.approx({"unclear": 0.7, "compute": 0.3})
    timed = diagnosed(evidence(unmeasured=False, **figures), GPU)
    assert timed.bottleneck == "compute"
    assert share_of(timed) == pytest.approx(0.9)  # three times as long as in the micro-benchmark
    python = diagnosed(evidence(unmeasured=False, **figures | {"flops": 1e9}), GPU)  # 10 ms of products
    assert python.bottleneck == "unclear"
    assert share_of(python) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("flops", "sent", "bottleneck", "share"),
    [
        (3e9, 1e9, "unclear", 0.698),
        (6e9, 1e9, "compute", 60 / 60.2),
        (1e8, 1e9, "unclear", 0.988),
        # Sending takes at most 4 x 0.3 ms, and 10 / (20 GB/s) for a byte: 9.7 or 11.2 ms.
        (3e9, 1.7e7, "compute", 0.9),
        (3e9, 2e7, "unclear", 0.698),
        (1e8, 2e7, "unclear", 0.988),
    ],
)
def test_on_a_cpu_unexplained_time_is_unclear_if_untimed_collectives_may_take_a_tenth_of_it(
    flops: float, sent: float, bottleneck: str, share: float
) -> None:
    """A rank is busy for 100 ms, as with FSDP's gathering: products explain 30, 60 or 1 of them, calls 0.2."""
    found = diagnosed(evidence(unmeasured=True, collectives=4.0, flops=flops, sent=sent), make_environment())
    assert found.bottleneck == bottleneck
    assert share_of(found) == pytest.approx(share)


def test_a_rank_that_takes_longer_alone_than_with_the_others_is_no_straggler() -> None:
    # 130 ms alone, in a step of 100 ms: something else slowed it down while it was alone. 70 ms are not explained.
    impossible = SlowRank(rank=0, own=0.13, others=0.06, phase="optimizer")
    found = diagnosed(evidence(slow=impossible, cpu=0.03, flops=1e9), make_environment())
    assert found.cause("straggler") is None
    assert found.bottleneck == "unclear"
    assert share_of(found) == pytest.approx(0.7)
    within = SlowRank(rank=0, own=0.104, others=0.06, phase="optimizer")  # by what times scatter
    assert diagnosed(evidence(slow=within, cpu=0.03, flops=1e9), make_environment()).bottleneck == "straggler"


def test_ranks_of_a_script_that_differ_in_their_flops_have_a_straggler() -> None:
    """Rank 0 computes 7 GFLOP, the other one 1: at 100 GFLOP/s it waits for 60 of 100 ms."""
    slow = [phases(forward=0.06, backward=0.04), phases(forward=0.01, backward=0.09)]
    ranks = tuple(
        make_rank_launch(rank, (0.1,) * 4, cpu_time=cpu, phases=slow[rank], rates=RATES)
        for rank, cpu in enumerate((0.1, 0.06))
    )
    counts = Counts(
        totals={"flops": 7e9, "operators": 50.0, "collective_calls": 1.0},
        details={},
        unstable={},
        by_rank={"flops": (7e9, 1e9)},
    )
    launch = make_launch(ranks=ranks)
    found = known(diagnosis_of(make_measurement(launches=(launch,), counts=counts, environment=make_environment())))
    assert found.bottleneck == "straggler"
    cause = known(found.cause("straggler"))
    assert (cause.facts["rank"], cause.facts["phase"]) == (0, "forward")
    assert cause.seconds == pytest.approx(0.06)


def test_a_wait_in_one_of_several_steps_is_a_part_of_all_of_them() -> None:
    """In each fourth step ranks wait 0.5 s for data, and in each they compute for 0.1 s: 0.5 of 0.9 s."""
    waits = PhaseTimes(
        seconds=dict.fromkeys(PHASES, (0.0,) * 4) | {"data_wait": (0.0, 0.0, 0.5, 0.0), "forward": (0.1,) * 4}
    )
    times = (0.1, 0.1, 0.6, 0.1) * 3
    ranks = tuple(make_rank_launch(rank, times, cpu_time=0.1, phases=waits, rates=RATES) for rank in (0, 1))
    launch = make_launch(ranks=ranks)
    found = known(diagnosis_of(make_measurement(launches=(launch,), environment=make_environment())))
    assert found.bottleneck == "data"
    assert share_of(found) == pytest.approx(5 / 9)


def phases(**seconds: float) -> PhaseTimes:
    """Four equal steps."""
    return PhaseTimes(seconds={phase: (seconds.get(phase, 0.0),) * 4 for phase in PHASES})


@pytest.mark.parametrize(
    ("strategy", "forward", "share"),
    [("ddp", 0.0, 0.7), ("ddp", 0.06, 0.4), ("naive", 0.0, 0.0)],
    ids=["rank 1 may wait in backward", "rank 1 computes meanwhile", "nobody waits in backward"],
)
def test_a_rank_that_waits_in_backward_for_a_rank_that_waits_for_data_waits_for_data(
    strategy: str, forward: float, share: float
) -> None:
    """Rank 0 waits 70 of 100 ms for its loader, and rank 1 waits inside of backward, where nothing is timed."""
    waits = (phases(data_wait=0.07, backward=0.03), phases(forward=forward, backward=0.1 - forward))
    ranks = tuple(make_rank_launch(i, (0.1,) * 4, cpu_time=0.03, phases=waits[i], rates=RATES) for i in (0, 1))
    launch = make_launch(ranks=ranks)
    measured = make_measurement(launches=(launch,), environment=make_environment(), strategy=strategy)
    cause = known(diagnosis_of(measured)).cause("data")
    assert (0.0 if cause is None else cause.share) == pytest.approx(share)


def test_a_measurement_gives_the_evidence() -> None:
    own = [
        make_rank_launch(
            rank,
            (0.1,) * 4,
            cpu_time=0.03,
            phases=phases(data_wait=0.01, forward=forward, backward=0.08 - forward, optimizer=0.01),
            communication=BlockTimes(synchronised=(0.1,) * 4, unsynchronised=(alone,) * 4),
            rates=RATES,
        )
        for rank, (forward, alone) in enumerate([(0.02, 0.03), (0.06, 0.07)])
    ]
    launch = make_launch(ranks=tuple(own))
    counts = Counts(
        totals={"flops": 1e9, "operators": 50.0, "collective_bytes": 8.0, "collective_calls": 1.0},
        details={"operator_bytes": {"aten.addmm": 1e9, "aten.relu": 2e6}},
        unstable={},
    )
    found = known(diagnosis_of(make_measurement(launches=(launch,), counts=counts, environment=make_environment())))
    seconds = {cause.bottleneck: cause.seconds for cause in found.causes}
    # 100 ms with synchronisation, 70 ms without on the slower rank and 30 ms on the other; 10 ms of data on both.
    assert seconds["data"] == pytest.approx(0.01)
    assert seconds["communication"] == pytest.approx(0.03)
    assert seconds["straggler"] == pytest.approx(0.04)
    assert found.bottleneck == "straggler"
    cause = known(found.cause("straggler"))
    assert (cause.facts["rank"], cause.facts["phase"]) == (1, "forward")


def test_without_steps_that_were_divided_into_phases_there_is_no_diagnosis() -> None:
    assert diagnosis_of(make_measurement(launches=(make_launch((0.1, 0.1)),))) is None
    assert diagnosis_of(make_measurement()) is None
    with pytest.raises(SettingError, match=r"measurement=3 is not a Measurement; ddpperf.measure"):
        diagnosis_of(3)  # type: ignore[arg-type]
