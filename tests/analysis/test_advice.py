"""What would make a step faster, and by how much at most."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.analysis.advice import advice_on
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Advice, Bottleneck, Cause, Diagnosis, Finding
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.phases import PHASES, PhaseTimes
from pytest_ddpperf.reports.diagnosis import ADVICE, BOUND_BY, advice_text
from tests.factories import make_counts, make_environment, make_launch, make_measurement, make_rank_launch, make_series

FACTS = {"rank": 1, "phase": "forward"}


def caused(*causes: Cause, memory: float | None = None, **fields: Any) -> dict[str, Advice]:
    """The advice by code, the largest gain first, for a step of a second with these causes."""
    diagnosis = Diagnosis(bottleneck=causes[0].bottleneck, step=1.0, causes=causes, memory=memory)
    found = {advice.code: advice for advice in advice_on(diagnosis, make_measurement(**fields))}
    assert all(map(advice_text, found.values()))
    return found


def cause(bottleneck: Bottleneck, seconds: float, **facts: Any) -> Cause:
    """What takes so many seconds of a step of one."""
    return Cause(bottleneck=bottleneck, seconds=seconds, share=seconds, facts=facts)


def gains(bottleneck: Bottleneck, share: float, **fields: Any) -> dict[str, float | None]:
    """The gains by code, for a step of which one cause has a share."""
    return {code: advice.gain for code, advice in caused(cause(bottleneck, share, **FACTS), **fields).items()}


def phases(**shares: float) -> tuple[Series, ...]:
    """Phases of a step, by their shares."""
    return tuple(make_series(f"phase_{name}", value) for name, value in shares.items())


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
    assert "pin_memory" not in gains("data", 0.5, recipe={"loader": "workers=2,pin_memory=true"}, environment=gpu)
    assert "pin_memory" not in gains("data", 0.5, recipe={"loader": "workers=2"})


def test_communication_is_sent_less_often_or_hidden() -> None:
    naive = gains("communication", 0.5, strategy="naive", series=phases(backward=0.4, forward=0.6))
    assert naive == pytest.approx({"accumulation": 0.375, "overlap": 0.16})  # 0.8 x 40 % of the other half
    assert "compression" in gains("communication", 0.5)
    assert "keep_gathered" in gains("communication", 0.5, strategy="fsdp2")
    assert "keep_gathered" not in gains("communication", 0.5, strategy="fsdp1[sharding=SHARD_GRAD_OP]")
    unheeded = {"accumulation_steps": "4", "no_sync": "false"}
    assert gains("communication", 0.4, recipe=unheeded, strategy="overlap") == pytest.approx({"no_sync": 0.3})


def test_accumulation_is_advised_if_work_that_happens_once_per_step_takes_most_of_it() -> None:
    # Of 30 % for sending, 20 % for the optimizer and 5 % for the rest of a step, three of four are saved for a sample.
    series = phases(forward=0.3, backward=0.45, optimizer=0.2, other=0.05)
    found = caused(cause("communication", 0.3), cause("memory_bandwidth", 0.7), series=series)
    first = next(iter(found.values()))
    assert (first.code, first.bottleneck, first.estimated) == ("accumulation", "communication", False)
    assert first.gain == pytest.approx(0.75 * 0.55)
    assert "larger_batch" not in found  # it needs memory for no more


def test_a_tiny_batch_is_cured_by_a_larger_one() -> None:
    # Operators take 40 % of the step, of which 25 of the 70 % of computing are the optimizer's: 25.7 % are not.
    series = phases(forward=0.2, backward=0.55, optimizer=0.25)
    causes = (cause("overhead", 0.4), cause("communication", 0.3), cause("memory_bandwidth", 0.3))
    larger, accumulated, *_ = caused(*causes, series=series).values()
    assert (larger.code, accumulated.code) == ("larger_batch", "accumulation")
    assert larger.gain == pytest.approx(0.75 * (0.3 + 0.25 + 0.4 * 45 / 70))
    assert accumulated.gain == pytest.approx(0.75 * 0.55)
    assert (larger.bottleneck, larger.estimated) == ("overhead", True)  # products may take no longer, too
    assert "larger_batch" not in caused(cause("memory_capacity", 0.0), cause("overhead", 0.6), series=series)


def test_the_gain_of_accumulation_is_at_most_the_work_that_happens_once_per_step() -> None:
    series = phases(forward=0.1, optimizer=0.9)  # in steps of their own, which are shorter
    found = caused(cause("communication", 0.8), cause("overhead", 0.2), series=series)
    assert next(iter(found.values())).gain == 0.75


def test_fsdp_gathers_for_each_micro_batch() -> None:
    found = gains("communication", 0.6, strategy="fsdp2")
    assert (found["larger_batch"], found["accumulation"]) == pytest.approx((0.45, 0.15))
    kept = gains("communication", 0.6, strategy="fsdp2[reshard_after_forward=false]")
    assert kept == pytest.approx({"larger_batch": 0.45, "accumulation": 0.225})


def test_others_wait_for_the_rank_that_waits_longest_for_data() -> None:
    ranks = tuple(
        make_rank_launch(rank, (0.1,) * 4, phases=PhaseTimes(seconds={**dict.fromkeys(PHASES, (0.0,) * 4), **seconds}))
        for rank, wait in enumerate((0.3, 0.7))
        for seconds in [{"data_wait": (wait,) * 4, "forward": (1 - wait,) * 4}]
    )
    found = gains("data", 0.3, launches=(make_launch(ranks=ranks),))
    assert found == pytest.approx({"more_workers": 0.7, "cheaper_loading": 0.7})


@pytest.mark.parametrize(
    ("bottleneck", "share", "fields", "expected"),
    [
        # A step of one's own gets no advice on settings.
        ("communication", 0.5, {"strategy": "custom"}, {}),
        ("memory_capacity", 0.0, {"strategy": "custom"}, {}),
        ("overhead", 0.5, {"strategy": "custom"}, {"larger_batch": 0.375, "compile": 0.25}),
        # What is compiled is not to be compiled.
        ("overhead", 0.5, {"recipe": {"compile": "model"}}, {"larger_batch": 0.375}),
        ("memory_bandwidth", 0.5, {"recipe": {"compile": "step"}}, {}),
        # A small gain is no advice.
        ("straggler", 0.02, {}, {}),
        ("straggler", 0.04, {}, {"even_work": 0.04}),
    ],
)
def test_only_changes_that_are_possible_and_gain_enough_are_advised(
    bottleneck: Bottleneck, share: float, fields: dict[str, Any], expected: dict[str, float]
) -> None:
    assert gains(bottleneck, share, **fields) == expected


def test_if_memory_is_full_changes_that_save_memory_are_advised() -> None:
    room = dict.fromkeys(("checkpointing", "smaller_micro_batch", "gradients_in_buckets", "sharding"))
    assert gains("memory_capacity", 0.0) == room
    assert "gradients_in_buckets" not in gains("memory_capacity", 0.0, strategy="ddp[gradient_as_bucket_view=true]")
    assert "sharding" not in gains("memory_capacity", 0.0, strategy="fsdp2")


def test_if_gpu_memory_is_full_expandable_segments_or_half_precision_are_advised() -> None:
    gpu = make_environment(device="cuda")
    split, whole = ((make_series("fragmentation", share),) for share in (0.25, 0.1))
    found = gains("memory_capacity", 0.0, environment=gpu, series=split)
    assert {"expandable_segments", "half_precision"} <= found.keys()
    assert "expandable_segments" not in gains("memory_capacity", 0.0, environment=gpu, series=whole)
    assert "half_precision" not in gains("memory_capacity", 0.0, environment=gpu, recipe={"precision": "bf16"})


@pytest.mark.parametrize(
    ("strategy", "sizes", "megabytes"),
    [
        ("ddp", (1, 25, 14), 10.0),
        ("ddp[bucket_cap_mb=10]", (1, 10, 10, 10, 9), None),
        ("ddp[bucket_cap_mb=4]", (1, *(4,) * 9, 3), 10.0),
        ("ddp", (0.5,), None),  # a bucket of less than a MiB is no better in parts
    ],
)
def test_gradients_are_cut_into_about_four_buckets(
    strategy: str, sizes: tuple[float, ...], megabytes: float | None
) -> None:
    buckets = {str(number): size * 2**20 for number, size in enumerate(sizes)}
    counts = Counts(totals={}, details={"ddp_buckets": buckets}, unstable={})
    found = caused(cause("communication", 0.5, collectives=9, sent=1e6), strategy=strategy, counts=counts)
    assert ("bucket_size" in found) == (megabytes is not None)
    if megabytes is not None:
        assert found["bucket_size"].facts == {"megabytes": megabytes}
        assert f"such as ddp[bucket_cap_mb={megabytes:g}]" in advice_text(found["bucket_size"])


def test_gradients_that_are_copied_should_be_views() -> None:
    # 10 MB are read and written on their way out of buckets: 20 MB at 0.4 GB/s are a twentieth of the second.
    causes = (cause("memory_bandwidth", 0.5, moved=2e8, rate=4e8), cause("communication", 0.2, collectives=1, sent=1e7))
    assert caused(*causes)["bucket_views"].gain == pytest.approx(0.05)
    assert "bucket_views" not in caused(*causes, strategy="ddp[gradient_as_bucket_view=true]")
    assert "bucket_views" not in caused(*causes, strategy="flat")
    strided = (Finding("strided_gradients", {"shape": "[8, 3, 3, 3]"}),)
    assert caused(*causes, findings=strided)["gradient_layout"].gain is None
    assert "gradient_layout" not in caused(*causes)


def test_a_static_graph_needs_no_search_for_unused_parameters() -> None:
    found = caused(cause("overhead", 0.4, operators=9, each=1e-6), strategy="zero1[find_unused_parameters=true]")
    assert found["static_graph"].gain == pytest.approx(0.2)
    assert "replace find_unused_parameters: zero1[static_graph=true] (" in advice_text(found["static_graph"])
    assert "static_graph" not in caused(cause("overhead", 0.4, operators=9, each=1e-6))


@pytest.mark.parametrize(
    ("loader", "missing"),
    [
        ("workers=2", "prefetch_factor=4,persistent_workers=true"),
        ("workers=2,prefetch_factor=8,persistent_workers=false", "persistent_workers=true"),
        ("workers=2,prefetch_factor=4,persistent_workers=true", ""),
        ("workers=0", ""),
    ],
)
def test_workers_keep_batches_ready(loader: str, missing: str) -> None:
    found = caused(cause("data", 0.5), recipe={"loader": loader})
    assert ("ready_batches" in found) == bool(missing)
    if missing:
        assert found["ready_batches"].gain == 0.5
        assert advice_text(found["ready_batches"]).startswith(f"keep workers and batches ready: loader {missing} (")


def test_a_model_that_fits_needs_no_shards() -> None:
    """Two ranks have 30 of 100 bytes of state each, and use half of their memory: with 30 more they use 80."""
    sending = cause("communication", 0.6, collectives=2, sent=1e6)
    fields = {"strategy": "fsdp2", "recipe": {"memory_limit": "100B"}, "environment": make_environment(world_size=2)}
    fitting = {**fields, "counts": make_counts({}, model_state_bytes=30)}
    assert caused(sending, memory=0.5, **fitting)["whole_model"].gain == pytest.approx(0.2)
    assert "whole_model" not in caused(sending, memory=0.7, **fitting)
    for kept in ("fsdp1[sharding=NO_SHARD]", "fsdp2[reshard_after_forward=false]"):  # which send no more than ddp
        assert "whole_model" not in caused(sending, memory=0.5, **{**fitting, "strategy": kept})
    assert "whole_model" not in caused(sending, memory=None, **fitting)
    assert "whole_model" not in caused(sending, memory=0.5, **fields)
    gathered = caused(sending, strategy="fsdp1")["keep_gathered"]
    assert advice_text(gathered).startswith(
        "keep parameters gathered between forward and backward: fsdp1[sharding=SHARD_"
    )
    hybrid = caused(sending, strategy="fsdp1[sharding=HYBRID_SHARD,replicas=2]")["keep_gathered"]
    assert advice_text(hybrid).startswith("keep parameters gathered between forward and backward (")


def test_fewer_ranks_are_advised_if_they_were_measured_to_be_faster() -> None:
    """Four ranks do 0.9 times the work of one, and half of that of two."""
    slower = tuple(
        Finding("negative_scaling", {"world_size": 4, "base_size": ranks, "speedup": speedup})
        for ranks, speedup in ((1, 0.9), (2, 0.5))
    )
    advice = caused(cause("memory_bandwidth", 0.6, moved=1.0, rate=1.0), findings=slower)["smaller_group"]
    assert advice.bottleneck == "memory_bandwidth"
    assert advice.gain == pytest.approx(0.5)
    assert advice_text(advice) == (
        "train on 2 ranks, where the same work takes less time (saves about 50 % of the time of a sample)"
    )


def test_gpus_are_advised_nccl_and_half_precision() -> None:
    gpu = make_environment(device="cuda", backend="gloo")
    assert caused(cause("communication", 0.5, collectives=1, sent=8), environment=gpu)["nccl"].gain == 0.5
    counts = Counts(totals={}, details={"model_size": {"float32": 8}}, unstable={})
    found = caused(cause("compute", 0.6, flops=1e9, rate=1e9), environment=gpu, counts=counts)
    assert found["mixed_precision"].gain == 0.3


def test_an_update_that_takes_most_of_the_time_is_fused() -> None:
    moving = cause("memory_bandwidth", 0.6, moved=1.0, rate=1.0)
    assert caused(moving, series=phases(optimizer=0.5, forward=0.5))["fused_optimizer"].gain == 0.3
    assert "fused_optimizer" not in caused(moving, series=phases(optimizer=0.2, forward=0.8))


@pytest.mark.parametrize("bottleneck", list(BOUND_BY))
def test_each_advice_has_words(bottleneck: Bottleneck) -> None:
    assert caused(cause(bottleneck, 0.5, **FACTS)).keys() <= ADVICE.keys()
