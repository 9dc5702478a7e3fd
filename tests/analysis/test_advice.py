"""What would make a step faster, and by how much at most."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.analysis.advice import advice_on
from pytest_ddpperf.records.diagnosis import Bottleneck, Cause, Diagnosis
from pytest_ddpperf.reports.diagnosis import ADVICE, BOUND_BY, advice_text
from tests.factories import make_environment, make_measurement, make_series

FACTS = {"rank": 1, "phase": "forward"}


def gains(bottleneck: Bottleneck, share: float, **fields: Any) -> dict[str, float | None]:
    """The advice by code, for a step of which one cause has a share."""
    cause = Cause(bottleneck=bottleneck, seconds=share, share=share, facts=FACTS)
    diagnosis = Diagnosis(bottleneck=bottleneck, step=1.0, causes=(cause,))
    return {advice.code: advice.gain for advice in advice_on(diagnosis, make_measurement(**fields))}


def test_workers_load_while_the_rank_trains() -> None:
    # Four workers need 0.8 / 4 of a step for a batch: the training of 0.2 is as long.
    none = {"loader": "workers=0"}
    assert gains("data", 0.8, recipe=none) == pytest.approx({"loader_workers": 0.8, "cheaper_loading": 0.8})
    # Of a loader of its own nobody knows how many there are.
    assert gains("data", 0.8) == pytest.approx({"more_workers": 0.8, "cheaper_loading": 0.8})
    # Two workers need two steps for a batch, six a third of that.
    assert gains("data", 0.9, recipe={"loader": "workers=2"})["loader_workers"] == pytest.approx(2 / 3)


def test_pinned_memory_is_for_gpus() -> None:
    gpu = make_environment(device="cuda")
    given = gains("data", 0.5, recipe={"loader": "workers=2"}, environment=gpu)
    assert given["pin_memory"] == 0.5
    assert "pin_memory" not in gains("data", 0.5, recipe={"loader": "pin_memory=true workers=2"}, environment=gpu)
    assert "pin_memory" not in gains("data", 0.5, recipe={"loader": "workers=2"})


def test_communication_is_sent_less_often_or_hidden() -> None:
    phases = tuple(make_series(f"phase_{name}", value) for name, value in (("backward", 0.4), ("forward", 0.6)))
    naive = gains("communication", 0.5, strategy="naive", series=phases)
    assert naive == pytest.approx({"accumulation": 0.375, "overlap": 0.16})  # 0.8 x 40 % of the other half
    assert {"compression", "bucket_size"} <= gains("communication", 0.5).keys()
    assert "keep_gathered" in gains("communication", 0.5, strategy="fsdp2")
    assert "keep_gathered" not in gains("communication", 0.5, strategy="fsdp1[sharding=SHARD_GRAD_OP]")
    unheeded = {"accumulation_steps": "4", "no_sync": "false"}
    assert gains("communication", 0.4, recipe=unheeded, strategy="overlap") == pytest.approx({"no_sync": 0.3})


def test_fsdp_gathers_for_each_micro_batch() -> None:
    assert gains("communication", 0.6, strategy="fsdp2")["accumulation"] == pytest.approx(0.15)
    kept = gains("communication", 0.6, strategy="fsdp2[reshard_after_forward=false]")
    assert kept == pytest.approx({"accumulation": 0.225})


def test_a_step_of_ones_own_gets_no_advice_on_settings() -> None:
    assert gains("communication", 0.5, strategy="custom") == {}
    assert gains("memory_capacity", 0.0, strategy="custom") == {}
    assert gains("overhead", 0.5, strategy="custom") == {"larger_batch": 0.25, "compile": 0.25}


def test_what_is_compiled_is_not_to_be_compiled() -> None:
    assert gains("overhead", 0.5, recipe={"compile": "model"}) == {"larger_batch": 0.25}
    assert gains("memory_bandwidth", 0.5, recipe={"compile": "step"}) == {}


def test_a_small_gain_is_no_advice() -> None:
    assert gains("straggler", 0.02) == {}
    assert gains("straggler", 0.04) == {"even_work": 0.04}


def test_a_full_memory_needs_room() -> None:
    assert gains("memory_capacity", 0.0) == {"checkpointing": None, "smaller_micro_batch": None, "sharding": None}
    assert "sharding" not in gains("memory_capacity", 0.0, strategy="fsdp2")


def test_a_full_gpu_has_room_between_tensors_and_in_half_precision() -> None:
    gpu = make_environment(device="cuda")
    split, whole = ((make_series("fragmentation", share),) for share in (0.25, 0.1))
    found = gains("memory_capacity", 0.0, environment=gpu, series=split)
    assert {"expandable_segments", "half_precision"} <= found.keys()
    assert "expandable_segments" not in gains("memory_capacity", 0.0, environment=gpu, series=whole)
    assert "half_precision" not in gains("memory_capacity", 0.0, environment=gpu, recipe={"precision": "bf16"})


@pytest.mark.parametrize("bottleneck", list(BOUND_BY))
def test_each_advice_has_words(bottleneck: Bottleneck) -> None:
    found = advice_on(
        Diagnosis(
            bottleneck=bottleneck, step=1.0, causes=(Cause(bottleneck=bottleneck, seconds=0.5, share=0.5, facts=FACTS),)
        ),
        make_measurement(),
    )
    assert all(advice.code in ADVICE and advice_text(advice) for advice in found)
