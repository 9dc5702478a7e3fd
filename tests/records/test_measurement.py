"""What the nouns look like in a prompt and in a failed assertion: a line, not pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import BUSY, CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.measurement import Measurement
from tests.factories import make_environment, make_launch, make_measurement, make_series

LAUNCH = make_launch((0.0418,) * 100)
MEASURED = make_measurement(series=(make_series("step_time", 0.0418),), launches=(LAUNCH,) * 8)


def test_a_measurement_is_its_name_its_ranks_and_its_step_time() -> None:
    assert repr(MEASURED) == "<Measurement ddp: 2 ranks, step_time 41.8 ms in 8 launches>"


def test_a_custom_name_does_not_hide_strategy_and_precision() -> None:
    named = replace(MEASURED, name="mine", recipe={"precision": "bf16"})
    assert repr(named).startswith("<Measurement mine: ddp precision=bf16, 2 ranks, ")


def test_the_repr_of_a_measurement_that_was_not_timed_shows_its_counts() -> None:
    counts = Counts(totals={"operators": 9.0}, details={}, unstable={})
    assert repr(replace(MEASURED, series=(), launches=(), counts=counts)) == (
        "<Measurement ddp: 2 ranks, <Counts operators 9>>"
    )
    assert repr(replace(MEASURED, series=(), launches=())) == "<Measurement ddp: 2 ranks, not timed>"


def test_iterating_a_measurement_gives_the_names_of_its_metrics() -> None:
    assert list(MEASURED) == ["step_time"]
    assert "step_time" in MEASURED
    assert "step" not in MEASURED


@pytest.mark.parametrize(
    ("name", "recipe", "plain"),
    [
        ("ddp", {}, "ddp"),
        ("ddp[bucket_cap_mb=5]", {}, "ddp"),
        ("ddp accumulation_steps=4 no_sync=false", {"accumulation_steps": "4", "no_sync": "false"}, "ddp"),
        ("ddp[bucket_cap_mb=5] loader=workers=2,pin_memory=true", {"loader": "workers=2,pin_memory=true"}, "ddp"),
        ("weak w2 precision=mine", {}, "weak w2 precision=mine"),
    ],
)
def test_only_options_are_taken_off_a_name(name: str, recipe: dict[str, str], plain: str) -> None:
    assert replace(MEASURED, name=name, recipe=recipe).plain_name == plain


def on_cpu(*launches: Health | None) -> Measurement:
    """Launches in which so much went on besides; None if nobody looked."""
    return replace(MEASURED, launches=tuple(replace(LAUNCH, health=health) for health in launches))


def others(share: float | None, steal: float | None = None, **nodes: float) -> Health:
    """Others took so much of the cores, and a hypervisor; of nodes of these names others alone."""
    return Health(
        cpu=CpuHealth(others=share, steal=steal), nodes={node: CpuHealth(others=each) for node, each in nodes.items()}
    )


@pytest.mark.parametrize(
    ("launches", "lost", "busy"),
    [
        pytest.param([others(0.0)], 0.0, False, id="quiet"),
        pytest.param([others(0.10)], 0.1, False, id="a tenth is usual"),
        pytest.param([others(0.101)], 0.101, True, id="more is not"),
        pytest.param([others(0.06, 0.06)], 0.12, True, id="together with a hypervisor"),
        pytest.param([others(0.9), others(0.0), others(0.3)], 0.3, True, id="the launch in the middle"),
        pytest.param([others(0.9), others(0.0), others(0.0)], 0.0, False, id="one disturbed launch of three"),
        pytest.param([None, others(0.3), None], 0.3, True, id="of those that know"),
        pytest.param([others(None, 0.0), others(0.05)], 0.05, False, id="one launch tells"),
        pytest.param([others(0.1, b=0.3, c=0.2)], 0.3, True, id="the node that lost most"),
        pytest.param([others(None, b=0.3)], 0.3, True, id="of the nodes that know"),
        pytest.param([others(None)], 0.0, True, id="a system that tells neither"),
        pytest.param([others(None, 0.0)], 0.0, True, id="a hypervisor alone is known"),
        pytest.param([None], 0.0, True, id="unknown counts as busy"),
        pytest.param([], 0.0, False, id="nothing was timed"),
    ],
)
def test_a_machine_is_busy_if_others_take_more_than_a_tenth_of_its_cores(
    launches: list[Health | None], lost: float, *, busy: bool
) -> None:
    assert BUSY == 0.10
    assert on_cpu(*launches).lost == pytest.approx(lost)
    assert on_cpu(*launches).busy is busy


GPU = GpuHealth(device="0000:1b:00.0", readings=9, sm_clock=1.98e9)


def on_gpus(*launches: tuple[GpuHealth, ...] | None) -> Measurement:
    """Launches on GPUs of this health, on a machine whose cores are busy; None if nobody looked."""
    environment = make_environment(device="cuda", device_model="NVIDIA H100", device_count=8)
    busy = CpuHealth(others=0.9)
    made = (replace(LAUNCH, health=None if gpus is None else Health(cpu=busy, gpus=gpus)) for gpus in launches)
    return replace(MEASURED, environment=environment, launches=tuple(made))


@pytest.mark.parametrize(
    ("launches", "busy"),
    [
        pytest.param([(GPU,), (GPU, GPU)], False, id="busy cores are no busy GPU"),
        pytest.param([(GPU,), (GPU, replace(GPU, others={4711: None}))], True, id="another process on one of them"),
        pytest.param([(replace(GPU, throttled={"power": 0.10}),)], False, id="a tenth of the time held back"),
        pytest.param([(replace(GPU, throttled={"idle": 0.0, "power": 0.11}),)], True, id="more of it"),
        pytest.param([(replace(GPU, mig=True),)], True, id="others of an instance are not known"),
        pytest.param([(GPU,), None], True, id="nobody looked in one launch"),
        pytest.param([(GPU,), ()], True, id="the driver does not tell"),
    ],
)
def test_gpus_are_busy_if_another_process_is_there_or_their_clocks_are_held_back(
    launches: list[tuple[GpuHealth, ...] | None], *, busy: bool
) -> None:
    measured = on_gpus(*launches)
    assert measured.busy is busy
    assert measured.lost == 0.0


def test_the_clock_belongs_to_the_slowest_gpu_of_the_median_launch() -> None:
    """Of launches at 1.5, 1.9 and 1.98 GHz, each with a faster GPU beside it."""
    launches = [(GPU, replace(GPU, sm_clock=clock)) for clock in (1.9e9, 1.5e9, 1.98e9)]
    assert on_gpus(*launches).clock == 1.9e9
    assert on_gpus((GPU, replace(GPU, sm_clock=None))).clock == 1.98e9
    assert on_gpus((replace(GPU, sm_clock=None),)).clock is None
    assert on_gpus((GPU,), None).clock is None
    assert on_cpu(others(0.0)).clock is None
