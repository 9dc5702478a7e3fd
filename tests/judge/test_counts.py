"""Counts held against a baseline's, as a whole result; the numbers are small enough to be read off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.decision import decide_compared_count, decide_count
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.alike import Alike
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.results import PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import broken_reason, finding_text
from pytest_ddpperf.reports.phrases import counts_text, decisive, findings
from tests.judge.made_up import ENVIRONMENT, judged, measured, stored

MEASURED, BASELINE = measured(), stored()


def counts(**totals: float) -> Counts:
    return Counts(totals=totals, details={metric: {"part": value} for metric, value in totals.items()}, unstable={})


def counted(now: Counts, then: Counts | None, *differs: str) -> Result:
    """The judgement on counts alone, held against a baseline of another machine."""
    base = None if then is None else replace(BASELINE, counts=then)
    measurement = replace(MEASURED, counts=now, series=counted_series(now), launches=())
    return judged(
        measurement,
        StoredBaseline(record=None, origin="no baseline", differs=(), counted=base, counted_differs=differs),
    )


@pytest.mark.parametrize(
    ("calls", "verdict"), [(2.0, Verdict.UNCHANGED), (3.0, Verdict.REGRESSED), (1.0, Verdict.IMPROVED)]
)
def test_counts_are_compared_exactly_with_counts_of_any_machine(calls: float, verdict: Verdict) -> None:
    result = counted(counts(collective_calls=calls, flops=10.0), counts(collective_calls=2.0, flops=10.0))
    assert result["collective_calls"].verdict is verdict
    assert result["flops"].verdict is Verdict.UNCHANGED
    assert result.verdict is verdict
    less = ("collective_calls is 1 per step, 2 in the baseline: part 2 -> 1 calls per step (-1)",)
    assert findings(result) == (less if verdict is Verdict.IMPROVED else ())
    if verdict is Verdict.REGRESSED:
        assert finding_text(result["collective_calls"].note) == "part 2 -> 3 calls per step (+1)"


def test_counts_that_a_run_lacks_are_missed() -> None:
    base = StoredBaseline(record=BASELINE, origin="cpu-8c-gloo-w2")
    then = replace(base, counted=replace(BASELINE, counts=counts(collective_calls=2.0)))
    assert judged(MEASURED, base).findings == ()
    assert findings(judged(MEASURED, then)) == (
        "the baseline has counts, but this run has none: no count can fail the test",
    )
    assert judged(MEASURED, replace(then, counted_differs=("torch 2.11 -> 2.13",))).findings == ()


def test_a_count_whose_value_the_run_lacks_has_no_verdict() -> None:
    """As in a file of results that was changed."""
    then, now = counts(operators=1.0, flops=1.0), counts(operators=1.0)
    assert decide_compared_count("flops", then, now, differs=False) is Verdict.NEW


def test_counts_of_another_torch_are_not_comparable() -> None:
    result = counted(counts(flops=11.0), counts(flops=10.0), "torch 2.11 -> 2.13")
    assert result.verdict is Verdict.INCOMPATIBLE
    assert finding_text(result["flops"].note) == "the baseline is not comparable: torch 2.11 -> 2.13"
    assert finding_text(result["flops"].difference) == "part 10 FLOP -> 11 FLOP per step (+1 FLOP, +10 %)"
    assert counted(counts(flops=10.0), counts(flops=10.0), "torch 2.11 -> 2.13")["flops"].difference is None


def test_counts_of_kernels_are_not_compared_between_gpus_and_hide_no_regression() -> None:
    then = replace(BASELINE, counts=counts(operators=3.0, kernel_launches=5.0, collective_calls=1.0))
    base = StoredBaseline(
        record=None, origin="no baseline", counted=then, kernels_differ=("GPU NVIDIA A100 -> NVIDIA H200",)
    )

    def against(now: Counts) -> Result:
        return judged(replace(MEASURED, counts=now, series=counted_series(now), launches=()), base)

    result = against(counts(operators=3.0, kernel_launches=6.0, collective_calls=1.0))
    verdicts = {one.series.metric: one.verdict for one in result.comparisons}
    assert verdicts == {
        "operators": Verdict.INCOMPATIBLE,
        "kernel_launches": Verdict.INCOMPATIBLE,
        "collective_calls": Verdict.UNCHANGED,
    }
    assert finding_text(result["operators"].note) == "the baseline is not comparable: GPU NVIDIA A100 -> NVIDIA H200"
    assert result.verdict is Verdict.INCOMPATIBLE
    assert against(counts(operators=3.0, kernel_launches=5.0, collective_calls=2.0)).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("operators", "recorded", "verdict"),
    [
        (264.0, 64.5, Verdict.REGRESSED),
        (263.0, 64.5, Verdict.REGRESSED),
        (264.5, 64.5, Verdict.UNCHANGED),
        (266.0, 66.0, Verdict.UNCHANGED),  # by less than 1 % of all operators
        (264.0, 63.5, Verdict.UNCHANGED),
    ],
)
def test_newly_recorded_operators_have_no_floor_if_no_operators_came_in(
    operators: float, recorded: float, verdict: Verdict
) -> None:
    """A lost no_grad of an evaluation in each tenth step: 0.5 of 64 recorded operators are less than 1 %."""
    then = counts(operators=264.0, recorded_operators=64.0)
    now = counts(operators=operators, recorded_operators=recorded)
    assert decide_count("recorded_operators", then, now) is verdict


RESTLESS = {"operators": "part 9 in one step, 10 in the next"}


@pytest.mark.parametrize(
    ("most", "unstable_then", "more"),
    [(10.0, {}, ""), (9.0, {}, ""), (11.0, RESTLESS, "; at most 11 now, 10 in the baseline")],
    ids=["as before", "less", "as restless"],
)
def test_a_count_that_differs_between_steps_is_not_gated_and_is_reported(
    most: float, unstable_then: dict[str, str], more: str
) -> None:
    now = replace(counts(operators=most, flops=10.0), unstable=RESTLESS)
    result = counted(now, replace(counts(operators=10.0, flops=10.0), unstable=unstable_then))
    assert result.verdict is Verdict.UNCHANGED
    assert not result["operators"].gated
    reason = "part 9 in one step, 10 in the next"
    said = f"the count differs from step to step, so it is not compared exactly: {reason}"
    assert finding_text(result["operators"].note) == said
    assert findings(result) == (f"not compared exactly, because steps differ: operators ({reason}{more})",)
    assert [counts_text(result, brief=brief) for brief in (True, False)] == [
        "same, 1 vary",
        "1 same, 1 vary over 2 steps",
    ]
    assert counts_text(counted(replace(now, unstable={}), now), brief=True) == "same"


@pytest.mark.parametrize("now", [10.0, 50.0])
def test_a_count_that_is_steady_again_asks_for_a_new_baseline(now: float) -> None:
    then = replace(counts(operators=10.0, flops=10.0), unstable=RESTLESS)
    result = counted(counts(operators=now, flops=10.0), then)
    assert (result.verdict, result["operators"].gated) == (Verdict.UNCHANGED, False)
    more = "; at most 50 now, 10 in the baseline" if now > 10 else ""
    assert findings(result) == (
        (
            "not compared exactly, because steps differ: operators (in the baseline part 9 in one step, 10 in the "
            f"next{more}); --ddpperf-save renews the baseline"
        ),
    )


def test_an_unstable_count_without_a_baseline_asks_for_none() -> None:
    now = replace(counts(operators=11.0, flops=10.0), unstable=RESTLESS)
    assert not counted(now, None)["operators"].gated
    assert counted(now, None)["flops"].gated
    assert findings(counted(now, None)) == (
        "not compared exactly, because steps differ: operators (part 9 in one step, 10 in the next)",
    )
    assert counted(now, counts(flops=10.0)).verdict is Verdict.UNCHANGED


def test_a_metric_that_a_probe_does_not_ask_for_is_not_gated_although_it_is_worse() -> None:
    now = replace(counts(operators=11.0), unstable={"operators": "part 10 in one step, 11 in the next"})
    base = StoredBaseline(record=None, origin="no baseline", counted=replace(BASELINE, counts=counts(operators=10.0)))
    others = tuple(replace(one, gated=False) for one in counted_series(now))
    assert not judged(replace(MEASURED, counts=now, series=others), base)["operators"].gated


def test_derived_counts_are_not_judged_twice() -> None:
    now = replace(counts(flops_forward=11.0), unstable={"flops_forward": "part 10 in one step, 11 in the next"})
    assert not counted(now, counts(flops_forward=10.0))["flops_forward"].gated


def sent(calls_bytes: float, sent_bytes: float) -> Counts:
    parts = {"collective_bytes": {"all_reduce": calls_bytes}, "collective_send_bytes": {"all_reduce": sent_bytes}}
    return Counts(
        totals={"collective_bytes": calls_bytes, "collective_send_bytes": sent_bytes}, details=parts, unstable={}
    )


def test_a_collective_of_a_larger_group_is_a_regression_though_it_has_as_many_bytes() -> None:
    """Of 2 ranks a rank sends 2 x 1/2 of an all-reduce, of 4 ranks 2 x 3/4 of it."""
    result = counted(sent(800.0, 1200.0), sent(800.0, 800.0))
    assert (result.verdict, result["collective_send_bytes"].verdict) == (Verdict.REGRESSED, Verdict.REGRESSED)
    assert (
        finding_text(result["collective_send_bytes"].note)
        == "all_reduce 800 B -> 1200 B per step (+400 B, +50 %), bytes unchanged"
    )
    assert counted(sent(600.0, 900.0), sent(800.0, 800.0)).verdict is Verdict.REGRESSED  # though the bytes are fewer


@pytest.mark.parametrize(
    ("flops", "types", "gated"),
    [
        (100.0, {"float32": 80.0}, [True, True]),  # autocast was lost for a part
        (100.0, {"float32": 20.0, "float64": 40.0}, [True, True]),
        (150.0, {"float32": 80.0}, [True, False]),  # a larger model
        (50.0, {"float32": 50.0}, [True, True]),  # a smaller one without autocast
    ],
)
def test_more_full_precision_flops_are_a_regression_unless_all_flops_grew(
    flops: float, types: dict[str, float], gated: list[bool]
) -> None:
    def of_types(flops: float, types: dict[str, float]) -> Counts:
        totals = {"flops": flops, "full_precision_flops": sum(types.values())}
        return Counts(totals=totals, details={"full_precision_flops": types}, unstable={})

    result = counted(of_types(flops, types), of_types(100.0, {"float32": 40.0}))
    assert result.verdict is Verdict.REGRESSED
    assert result["full_precision_flops"].verdict is Verdict.REGRESSED
    assert [one.gated for one in result.comparisons] == gated


@pytest.mark.parametrize("bytes_now", [1600.0, 400.0])
def test_sent_bytes_are_not_judged_again_if_they_changed_like_the_collective_bytes(bytes_now: float) -> None:
    result = counted(sent(bytes_now, bytes_now), sent(800.0, 800.0))
    assert [one.gated for one in result.comparisons] == [True, False]
    assert "collective_send_bytes" not in "".join(findings(result))


BUCKETS = {"bucket 0": 1.0, "bucket 1": 25.0, "bucket 2": 4.0}


def parts_of(metric: str, parts: Mapping[str, float]) -> Counts:
    total = float(len(parts)) if metric == "ddp_buckets" else sum(parts.values())
    return Counts(totals={metric: total}, details={metric: parts}, unstable={})


@pytest.mark.parametrize(
    ("metric", "then", "now", "verdict"),
    [
        ("collective_calls", {"all_reduce": 1.0}, {"broadcast": 1.0}, Verdict.REGRESSED),
        ("collective_bytes", {"all_reduce": 8.0, "send": 2.0}, {"all_reduce": 2.0, "send": 8.0}, Verdict.REGRESSED),
        ("collective_calls", {"all_reduce": 3.0}, {"broadcast": 2.0}, Verdict.IMPROVED),  # fewer in all
        ("optimizer_steps", {"SGD": 1.0}, {"Adam": 1.0}, Verdict.REGRESSED),
        ("retained_bytes", {"kept_tensors": 0.0}, {"kept_tensors": 1024.0}, Verdict.UNCHANGED),
        ("retained_bytes", {"kept_tensors": 0.0}, {"kept_tensors": 1025.0}, Verdict.REGRESSED),
        ("peak_tensor_bytes", {"activations": 1e6}, {"activations": 1e6 + 4096}, Verdict.UNCHANGED),
        ("peak_tensor_bytes", {"activations": 1e6}, {"activations": 1e6 + 4097}, Verdict.REGRESSED),
        ("peak_tensor_bytes", {"activations": 1e7}, {"activations": 1.001e7}, Verdict.UNCHANGED),  # 0.1 %
        ("peak_tensor_bytes", {"activations": 1e7}, {"activations": 1.0011e7}, Verdict.REGRESSED),
        ("peak_tensor_bytes", {"activations": 1e7}, {"activations": 9.99e6}, Verdict.UNCHANGED),
        ("operators", {"aten.mm": 200.0}, {"aten.mm": 200.0, "aten.pow": 2.0}, Verdict.UNCHANGED),  # 1 %
        ("operators", {"aten.mm": 200.0}, {"aten.mm": 200.0, "aten.pow": 3.0}, Verdict.REGRESSED),
        ("synchronisations", {"item": 200.0}, {"item": 201.0}, Verdict.REGRESSED),
        ("ddp_buckets", BUCKETS, {"bucket 0": 1.0, "bucket 1": 20.0, "bucket 2": 9.0}, Verdict.REGRESSED),
        ("ddp_buckets", BUCKETS, {"bucket 0": 1.0, "bucket 1": 20.0, "bucket 2": 4.0}, Verdict.IMPROVED),
        ("ddp_buckets", BUCKETS, {**BUCKETS, "bucket 3": 1.0}, Verdict.REGRESSED),
        ("collective_bytes", {"all_reduce": 8.0, "barrier": 0.0}, {"all_reduce": 8.0}, Verdict.UNCHANGED),
        ("flops", {"head": 8.0}, {"result": 8.0}, Verdict.UNCHANGED),  # another name of a module
        ("flops_forward", {"head": 8.0}, {"result": 8.0}, Verdict.UNCHANGED),
        ("graph_breaks", {"head": 8.0}, {"result": 8.0}, Verdict.UNCHANGED),
    ],
)
def test_more_and_something_else_are_worse_and_less_is_better(
    metric: str, then: dict[str, float], now: dict[str, float], verdict: Verdict
) -> None:
    assert decide_count(metric, parts_of(metric, then), parts_of(metric, now)) is verdict


def test_a_step_with_more_backward_passes_is_another_one_and_its_calls_are_as_many_times_more() -> None:
    """Four times the collectives are no regression of a step of four times the samples."""
    result = counted(
        counts(backward_passes=4.0, collective_calls=4.0), counts(backward_passes=1.0, collective_calls=1.0)
    )
    assert result.verdict is Verdict.INCOMPATIBLE
    assert [one.series.metric for one in result.comparisons if one.gated] == ["backward_passes"]
    assert findings(result)[0] == (
        "a step has 4 backward passes, 1 in the baseline: batches differ, so the plugin compares only collective calls "
        "and waits that grew by a larger factor"
    )
    fewer = counted(
        counts(backward_passes=1.0, collective_calls=1.0), counts(backward_passes=4.0, collective_calls=4.0)
    )
    assert fewer.verdict is Verdict.REGRESSED
    assert [one.series.metric for one in fewer.comparisons if one.gated] == ["backward_passes"], "nothing is improved"


@pytest.mark.parametrize(
    ("metric", "before", "parts"),
    [
        ("synchronisations", 1.0, {"item": 3.0}),
        ("allocator_calls", 0.0, {"empty_cache": 1.0}),
        ("collective_calls", 1.0, {"all_reduce": 3.0}),
        ("collective_calls", 2.0, {"all_reduce": 2.0, "barrier": 1.0}),  # some passes send nothing
    ],
)
def test_more_backward_passes_do_not_excuse_a_count_that_grew_more_than_they_did(
    metric: str, before: float, parts: Mapping[str, float]
) -> None:
    def side(passes: float, of_metric: Mapping[str, float]) -> Counts:
        totals = {"backward_passes": passes, "flops": passes * 9, metric: sum(of_metric.values())}
        return Counts(totals=totals, details={metric: of_metric}, unstable={})

    result = counted(side(2.0, parts), side(1.0, {next(iter(parts)): before}))
    assert result.verdict is Verdict.REGRESSED
    assert {one.series.metric for one in result.comparisons if one.gated} == {metric, "backward_passes"}


def test_a_step_with_larger_batches_is_another_one_if_forward_computes_more_too() -> None:
    small = counts(backward_passes=1.0, batch_rows=8.0, flops_forward=1024.0, flops=3072.0)
    large = counts(backward_passes=1.0, batch_rows=16.0, flops_forward=2048.0, flops=6144.0)
    more, less = counted(large, small), counted(small, large)
    assert (more.verdict, less.verdict) == (Verdict.INCOMPATIBLE, Verdict.REGRESSED)
    assert [one.series.metric for one in less.comparisons if one.gated] == ["batch_rows"], "nothing is improved"
    assert findings(more)[0] == (
        "a step has batches of 16 rows, 8 in the baseline: batches differ, so the plugin compares nothing else"
    )
    flat = counts(backward_passes=1.0, batch_rows=32.0, flops_forward=1024.0, flops=3072.0)
    assert counted(flat, small).verdict is Verdict.UNCHANGED, "the same samples, flattened before forward"
    accumulated = counts(backward_passes=2.0, batch_rows=16.0, flops_forward=2048.0, flops=6144.0)
    told = [each for each in findings(counted(accumulated, small)) if "batches differ" in each]
    assert [each.partition(",")[0] for each in told] == ["a step has 2 backward passes"]


def test_rows_that_a_run_is_not_sure_of_are_not_lost() -> None:
    sure, unsure = counts(flops=3072.0, batch_rows=8.0), counts(flops=3072.0)
    base = StoredBaseline(record=replace(BASELINE, counts=sure, series=counted_series(sure)), origin="")
    measurement = replace(MEASURED, counts=unsure, series=counted_series(unsure), launches=())
    assert not [each for each in judged(measurement, base).findings if each.code == "lost_metric"]


def test_more_passes_over_the_same_forward_are_more_work_and_fewer_are_less() -> None:
    """Two losses, one after the other: backward runs twice, and forward computes what it did."""
    once = counts(backward_passes=1.0, flops_forward=2048.0, flops=4096.0)
    twice = counts(backward_passes=2.0, flops_forward=2048.0, flops=6144.0)
    assert decide_count("backward_passes", once, twice) is Verdict.REGRESSED
    assert decide_count("backward_passes", twice, once) is Verdict.IMPROVED
    accumulated = counts(backward_passes=2.0, flops_forward=4096.0, flops=8192.0)
    assert decide_count("backward_passes", once, accumulated) is Verdict.INCOMPATIBLE
    assert decide_count("backward_passes", accumulated, once) is Verdict.REGRESSED


@pytest.mark.parametrize("grown", ["collective_calls", "flops", "synchronisations"])
def test_a_few_operators_are_a_change_if_they_come_with_work_that_a_count_names(grown: str) -> None:
    then, now = counts(operators=200.0, **{grown: 1.0}), counts(operators=202.0, **{grown: 2.0})
    assert decide_count("operators", then, now) is Verdict.REGRESSED
    assert decide_count("operators", then, replace(now, totals={**now.totals, grown: 1.0})) is Verdict.UNCHANGED


def test_a_change_below_its_floor_is_a_note() -> None:
    result = counted(counts(retained_bytes=4.0), counts(retained_bytes=0.0))
    assert result.verdict is Verdict.UNCHANGED
    assert finding_text(result["retained_bytes"].note) == "part 0 B -> 4 B per step (+4 B)"


@pytest.mark.parametrize(
    ("ranks", "then", "now", "sent", "unstable", "apart"),
    [
        pytest.param(2, 4.0, 0.0, 8.0, {}, True, id="each trains alone"),
        pytest.param(2, 4.0, 0.0, 4.0, {}, True, id="gradients were sent in half the bytes"),
        pytest.param(2, 1.0, 0.0, 0.0, {}, False, id="a barrier synchronises no gradients"),
        pytest.param(1, 4.0, 0.0, 8.0, {}, False, id="there is one rank"),
        pytest.param(2, 0.0, 0.0, 0.0, {}, False, id="they never sent anything"),
        pytest.param(2, 4.0, 1.0, 8.0, {}, False, id="they send less"),
        pytest.param(2, 4.0, 0.0, 8.0, {"collective_calls": "4 in one step, 0 in the next"}, False, id="in some steps"),
    ],
)
def test_ranks_that_send_nothing_any_more_are_broken_and_not_improved(
    ranks: int, then: float, now: float, sent: float, unstable: dict[str, str], *, apart: bool
) -> None:
    gradients = {"gradients": 8.0, "parameters": 8.0}
    before = replace(
        counts(collective_calls=then, collective_bytes=sent),
        unstable=unstable,
        details={"model_state_bytes": gradients},
    )
    found = counts(collective_calls=now)
    environment = replace(ENVIRONMENT, world_size=ranks)
    new = replace(MEASURED, counts=found, series=counted_series(found), environment=environment)
    base = replace(BASELINE, counts=before)
    result = judged(new, StoredBaseline(record=None, origin="no baseline", differs=(), counted=base))
    assert (result.verdict is Verdict.BROKEN) is apart
    assert broken_reason(result) == (
        "2 ranks send each other nothing, so each trains alone: collective calls per step were 4 in the baseline"
        if apart
        else "the measurement failed"
    )


LOG = counts(collective_calls=1.0, collective_bytes=4.0)
STATE = {"gradients": 4096.0, "parameters": 4096.0}


@pytest.mark.parametrize(
    ("now", "state", "alike", "apart"),
    [
        pytest.param({}, {}, Alike(), True, id="only a loss"),
        pytest.param({"collective_bytes": 0.0}, {}, Alike(), True, id="only a barrier"),
        pytest.param({"collective_bytes": 128.0}, {}, Alike(), False, id="the signs of gradients"),
        pytest.param({}, {}, Alike(wrapped=True), False, id="DDP compresses"),
        pytest.param({}, {}, Alike(copies=(0, 0), data=(0, 1)), False, id="different data keep copies equal"),
        pytest.param({}, {"parameters": 2048.0}, Alike(), False, id="ranks divide the model"),
        pytest.param({}, {"gradients": 64.0}, Alike(), False, id="nearly all parameters are frozen"),
        pytest.param({}, {}, None, False, id="ranks are not compared"),
    ],
)
def test_ranks_that_send_only_logs_any_more_are_broken_and_not_improved(
    now: dict[str, float], state: dict[str, float], alike: Alike | None, *, apart: bool
) -> None:
    before = counts(collective_calls=2.0, collective_bytes=4100.0)
    before = replace(before, details={**before.details, "model_state_bytes": STATE})
    after = replace(
        LOG, totals={**LOG.totals, **now}, details={**LOG.details, "model_state_bytes": {**STATE, **state}}, alike=alike
    )
    result = counted(after, before)
    assert result.verdict is (Verdict.BROKEN if apart else Verdict.IMPROVED)
    reason = "and no gradients, so each trains alone: the bytes were 4.00 KiB in the baseline"
    assert (reason in broken_reason(result)) is apart
    averaged = {"collective_bytes": {"": ((4100.0,) + (4.0,) * 9,)}}
    assert counted(replace(after, varying=averaged, steps=10), before).verdict is not Verdict.BROKEN
    large = {**after.details, "model_state_bytes": dict.fromkeys(STATE, 1000000000.0)}  # sends more than before
    grown = replace(after, totals={**after.totals, "collective_bytes": 5000.0}, details=large)
    assert counted(grown, before).verdict is not Verdict.BROKEN
    kinds = {**after.details, "collective_calls": {"all_to_all": 1.0}}
    assert counted(replace(after, details=kinds), before).verdict is not Verdict.BROKEN


@pytest.mark.parametrize(
    ("sent", "apart"), [pytest.param(8.0, True, id="an average"), pytest.param(1.0, False, id="a log")]
)
def test_ranks_that_averaged_in_a_few_steps_and_send_nothing_any_more_are_broken(sent: float, *, apart: bool) -> None:
    """In each fifth of 20 steps; the mean is a fifth of all gradients."""
    every_fifth = ((sent, 0.0, 0.0, 0.0, 0.0) * 4,)
    before = replace(
        counts(collective_calls=0.2, collective_bytes=sent / 5),
        details={"model_state_bytes": {"gradients": 8.0}},
        varying={"collective_calls": {"": ((1.0, 0.0, 0.0, 0.0, 0.0) * 4,)}, "collective_bytes": {"": every_fifth}},
        steps=20,
    )
    found = replace(counts(collective_calls=0.0, collective_bytes=0.0), steps=20)
    result = counted(found, before)
    assert result.verdict is (Verdict.BROKEN if apart else Verdict.IMPROVED)
    assert broken_reason(result).endswith("were 0.2 in the baseline") is apart


@pytest.mark.parametrize(
    ("metric", "then", "now", "verdict"),
    [
        # A floor holds on each rank by itself.
        ("peak_tensor_bytes", ({"": 100e6}, {"": 90e6}), ({"": 80e6}, {"": 90e6 + 12}), Verdict.IMPROVED),
        ("peak_tensor_bytes", ({"": 100e6}, {"": 90e6}), ({"": 80e6}, {"": 90e6 + 1e6}), Verdict.REGRESSED),
        ("python_objects", ({"": 500.0}, {"": 3.0}), ({"": 0.0}, {"": 5.0}), Verdict.IMPROVED),
        # A rank that does more is worse, though another does most.
        ("operators", ({"mm": 3}, {"mm": 0}), ({"mm": 3}, {"mm": 2}), Verdict.REGRESSED),
        ("operators", ({"mm": 3}, {"mm": 0}), ({"mm": 2}, {"mm": 1}), Verdict.REGRESSED),  # though the most fell
        ("operators", ({"mm": 3}, {"mm": 2}), ({"mm": 3}, {"mm": 0}), Verdict.IMPROVED),
        ("operators", ({"mm": 3}, {"mm": 2}), ({"mm": 3}, {"mm": 2}), Verdict.UNCHANGED),
        ("operators", ({"mm": 3}, {"mm": 2}), ({"mm": 3}, {"mm": 2}, {"mm": 9}), Verdict.REGRESSED),  # of three ranks
        # So is another collective on a rank that is not the first.
        ("collective_calls", ({"sum": 1}, {"sum": 1}), ({"sum": 1}, {"send": 1}), Verdict.REGRESSED),
        ("collective_calls", ({"sum": 1}, {"send": 1}), ({"sum": 1}, {"recv": 1}), Verdict.REGRESSED),
        ("collective_calls", ({"sum": 1}, {"send": 1}), ({"sum": 1}, {"sum": 1}), Verdict.REGRESSED),
        ("collective_calls", ({"sum": 1}, {"send": 1}), ({"sum": 1}, {"send": 1}), Verdict.UNCHANGED),
    ],
)
def test_each_rank_is_compared_with_itself(
    metric: str, then: tuple[dict[str, float], ...], now: tuple[dict[str, float], ...], verdict: Verdict
) -> None:
    before, after = (merged([parts_of(metric, parts) for parts in ranks]) for ranks in (then, now))
    assert decide_count(metric, before, after) is verdict


def test_a_baseline_without_details_of_each_rank_stays_valid() -> None:
    now = merged([parts_of("collective_bytes", {"broadcast": size}) for size in (100.0, 80.0)])
    before = replace(now, details_by_rank={})
    assert decide_count("collective_bytes", before, now) is Verdict.UNCHANGED


@pytest.mark.parametrize(
    ("calls", "told", "verdict"),
    [(2.0, (), Verdict.UNCHANGED), (3.0, (("collective_calls", 2.0, 3.0),), Verdict.REGRESSED)],
)
def test_counts_compared_with_another_torch_are_reported_and_gate_nothing(
    calls: float, told: tuple[tuple[str, float, float], ...], verdict: Verdict
) -> None:
    """A slower step is still a regression; without times nothing is judged."""
    then, now = counts(collective_calls=2.0, flops=8.0), counts(collective_calls=calls, flops=8.0)
    measurement = replace(MEASURED, counts=now, series=counted_series(now))
    differs = ("torch 2.11 -> 2.13",)
    beside = PairedRevision(
        revision="this checkout", commit=None, record=replace(BASELINE, counts=then), counted_differs=differs
    )
    result = judged(measurement, beside)
    assert (result["collective_calls"].verdict, result["collective_calls"].gated) == (verdict, False)
    assert result["collective_calls"].note is None or result["collective_calls"].note.code == "count_changed"
    facts = {"differs": differs, "changed": told, "number": 2}
    assert [finding.facts for finding in result.findings if finding.code == "told_counts"] == [facts]
    assert result.verdict is Verdict.INCOMPATIBLE
    assert judged(measurement, replace(beside, counted_differs=())).verdict is verdict


def test_counts_that_only_another_torch_has_are_not_lost() -> None:
    """What one torch counts and another does not is nothing that the code has lost."""
    then, now = counts(collective_calls=2.0, graph_breaks=1.0), counts(collective_calls=2.0)
    measurement = replace(MEASURED, counts=now, series=counted_series(now))
    record = replace(BASELINE, counts=then, series=counted_series(then))
    codes = {}
    for differs in ((), ("torch 2.11 -> 2.13",)):
        beside = PairedRevision(revision="main", commit=None, record=record, counted_differs=differs)
        result = judged(measurement, beside)
        codes[bool(differs)] = any(finding.code == "lost_metric" for finding in result.findings)
    assert codes == {False: True, True: False}


OWN, SAME = Alike(samples=(), batches=(), apart=()), Alike(samples=(0, 1), batches=(0, 1), apart=())
STREAM, EQUAL = Alike(batches=(), apart=(), loaded=True), Alike(batches=(0, 1), apart=(), loaded=True)
APART = Alike(apart=(0, 1), parameter="w")


@pytest.mark.parametrize(
    ("then", "now", "broken"),
    [
        (None, OWN, False),
        (None, SAME, True),
        (OWN, SAME, True),
        (None, replace(SAME, batches=()), False),  # each takes its part of a batch, or has a dataset of its own
        (OWN, replace(SAME, batches=()), False),
        (OWN, replace(SAME, batches=None), True),
        (None, replace(SAME, apart=(0, 1)), False),  # each has a part of the model
        (None, EQUAL, False),
        (EQUAL, EQUAL, False),
        (STREAM, EQUAL, True),
        (None, APART, False),
        (APART, APART, False),
        (OWN, APART, True),
        (replace(OWN, model=7), APART, False),
        (None, replace(APART, wrapped=True), True),
    ],
)
def test_replicas_with_equal_data_or_different_parameters_are_broken(
    then: Alike | None,
    now: Alike,
    broken: bool,  # noqa: FBT001
) -> None:
    plain = counts(collective_calls=1.0)
    result = counted(replace(plain, alike=now), None if then is None else replace(plain, alike=then))
    assert (result.verdict is Verdict.BROKEN) is broken
    assert bool(findings(result)) is (broken or now is EQUAL)


# Ranks 0 and 1 hold the two parts of a model, as 2 and 3 do; ranks 0 and 2 have the same part, as 1 and 3 do.
GRID = Alike(batches=(0, 1, 2, 3), apart=(0, 1, 2, 3), parameter="w", copies=(0, 1, 0, 1), data=(0, 0, 2, 2))
EACH = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("then", "now", "code", "ranks"),
    [
        (GRID, GRID, None, ()),
        (GRID, replace(GRID, copies=EACH), "parameters_apart", (0, 2)),
        (GRID, replace(GRID, copies=(0, 0, 2, 2)), "parameters_apart", (0, 2)),  # averaged over the parts of a model
        (GRID, replace(GRID, data=(0, 0, 0, 0)), "same_data", (0, 2)),
        (GRID, replace(GRID, data=(0, 1, 0, 1)), "same_data", (0, 2)),  # divided among the parts of a model
        (GRID, replace(GRID, copies=(0, 0, 2, 2), data=(0, 1, 0, 1)), None, ()),  # another order of ranks
        (replace(GRID, copies=(0, 0, 0, 0)), GRID, None, ()),  # parts that were the same by the same seed
        (replace(GRID, data=(0, 0, 0, 0)), replace(GRID, copies=EACH), None, ()),  # perhaps never averaged
        (replace(GRID, copies=EACH), replace(GRID, copies=EACH, data=(0, 0, 0, 0)), None, ()),
        (GRID, replace(GRID, model=7, copies=EACH), None, ()),
        (GRID, replace(GRID, copies=(0, 1), data=(0, 0)), None, ()),
        (replace(GRID, copies=()), replace(GRID, copies=EACH), None, ()),
        (replace(GRID, data=()), replace(GRID, copies=EACH), None, ()),
        (GRID, replace(GRID, copies=(), data=()), None, ()),
    ],
)
def test_replicas_that_no_longer_learn_from_the_data_of_others_are_broken(
    then: Alike, now: Alike, code: str | None, ranks: tuple[int, ...]
) -> None:
    plain = counts(collective_calls=1.0)
    result = counted(replace(plain, alike=now), replace(plain, alike=then))
    assert [(each.code, each.facts["ranks"]) for each in result.findings] == ([] if code is None else [(code, ranks)])
    assert (result.verdict is Verdict.BROKEN) is (code is not None)


@pytest.mark.parametrize(
    ("kind", "values", "broken"),
    [
        ("part", (), True),
        ("part", (8.0, 4.0, 4.0), True),  # a log
        ("part", (104.0, 4.0, 4.0), False),  # parameters are averaged in every third step
        ("all_gather", (), False),
    ],
)
def test_replicas_may_differ_if_collectives_are_of_a_new_kind_or_average_rarely(
    kind: str,
    values: tuple[float, ...],
    broken: bool,  # noqa: FBT001
) -> None:
    state, plain = {"model_state_bytes": {"gradients": 100.0}}, counts(collective_calls=1.0)
    varying = {"collective_bytes": {"": (values,)}} if values else {}
    now = replace(plain, details={**state, "collective_calls": {kind: 1.0}}, varying=varying)
    then = replace(plain, alike=GRID)
    assert (counted(replace(now, alike=replace(GRID, copies=EACH)), then).verdict is Verdict.BROKEN) is broken
    if not values:
        assert (counted(replace(now, alike=APART), replace(plain, alike=OWN)).verdict is Verdict.BROKEN) is broken


def test_an_equal_share_of_data_is_broken_though_collectives_are_rare() -> None:
    now = replace(counts(collective_calls=1.0), unstable={"collective_calls": "1 in one step, 0 in the next"})
    result = counted(replace(now, alike=replace(GRID, data=(0,) * 4)), replace(now, alike=GRID))
    assert "ranks 0 and 2 train on the same batches" in broken_reason(result)


@pytest.mark.parametrize(("calls", "alone"), [(0.0, True), (1.0, False)])
def test_replicas_that_send_each_other_nothing_are_said_to_train_alone(calls: float, *, alone: bool) -> None:
    reason = broken_reason(counted(replace(counts(collective_calls=calls), alike=SAME), None))
    assert ("send each other nothing" in reason) is alone


def test_parameters_that_are_averaged_in_some_steps_only_are_not_compared() -> None:
    plain = counts(collective_calls=1.0)
    now = replace(plain, alike=APART, unstable={"collective_calls": "1 in one step, 0 in the next"})
    assert counted(now, replace(plain, alike=OWN)).verdict is not Verdict.BROKEN


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (0.0, 1.0, Verdict.REGRESSED),
        (1.0, 0.0, Verdict.IMPROVED),
        (None, 1.0, Verdict.UNCHANGED),  # a loader that has workers now
        (1.0, None, Verdict.UNCHANGED),
    ],
)
def test_loaders_that_restart_their_workers_are_compared_if_both_sides_have_workers(
    then: float | None, now: float | None, expected: Verdict
) -> None:
    def totals(anew: float | None) -> dict[str, float]:
        return {"optimizer_steps": 1.0, **({} if anew is None else {"workers_restarted": anew})}

    assert counted(counts(**totals(now)), counts(**totals(then))).verdict is expected


def test_a_count_that_an_older_baseline_lacks_is_said_not_to_be_compared() -> None:
    """Neither one that not every run is sure of, nor one that is only shown, says that a baseline is older."""
    later = {"python_objects": 5.0, "backward_passes": 2.0, "workers_restarted": 1.0, "flops_forward": 9.0}
    result = counted(counts(flops=10.0, **later), counts(flops=10.0))
    said = "the baseline is older and has no backward_passes and python_objects; --ddpperf-save renews it"
    assert (result.verdict, findings(result)) == (Verdict.UNCHANGED, (said,))
    assert findings(counted(counts(flops=10.0, **later), counts(flops=10.0), "torch 2.11 -> 2.13")) == ()


@pytest.mark.parametrize(
    ("compiled", "operators", "expected"),
    [
        ((12, 0), (30, 30), Verdict.REGRESSED),  # torch.compile was lost
        ((12, 0), (30, 20), Verdict.REGRESSED),  # it was lost, and the model became simpler
        ((12, 6), (30, 30), Verdict.REGRESSED),  # a block is no longer compiled
        ((500, 3), (1000, 999), Verdict.REGRESSED),  # the model is no longer compiled, and its loss still is
        ((12, 8), (30, 30), Verdict.UNCHANGED),  # DDP is wrapped around the compiled model
        ((500, 498), (1000, 1001), Verdict.UNCHANGED),  # a fused softmax, and a metric
        ((12, 4), (30, 22), Verdict.UNCHANGED),  # the model became simpler
        ((0, 12), (30, 30), Verdict.UNCHANGED),  # the model is compiled now
    ],
)
def test_operators_that_are_no_longer_compiled_are_a_regression_unless_there_are_fewer_of_them(
    compiled: tuple[int, int], operators: tuple[int, int], expected: Verdict
) -> None:
    then, now = (
        counts(compiled_operators=float(inside), operators=float(every))
        for inside, every in zip(compiled, operators, strict=True)
    )
    result = counted(now, then)
    assert result["compiled_operators"].verdict is expected


def test_sums_of_fractions_are_no_change() -> None:
    """Three calls in every 10th step, moved from one line to two: 0.1 + 0.2 is more than 0.3."""
    then, now = counts(collective_calls=0.3), counts(collective_calls=0.1 + 0.2)
    assert [decide_count("collective_calls", *pair) for pair in ((then, now), (now, then))] == [Verdict.UNCHANGED] * 2


@pytest.mark.parametrize("metric", ["optimizer_steps", "backward_passes"])
def test_a_step_that_trains_nothing_any_more_is_worse(metric: str) -> None:
    assert decide_count(metric, counts(**{metric: 1.0}), counts(**{metric: 0.0})) is Verdict.REGRESSED
    assert decide_count(metric, counts(**{metric: 0.0}), counts(**{metric: 0.0})) is Verdict.UNCHANGED


def test_rows_of_another_shape_are_another_step() -> None:
    def of(length: int, flops: float = 1.0) -> Counts:
        total = {"batch_rows": 8.0, "flops_forward": flops, "flops": flops}
        return Counts(totals=total, details={"batch_rows": {f"8 x {length} int64": 8.0}}, unstable={})

    result = counted(of(64, 5.0), of(128, 10.0))
    assert (result.verdict, result["flops"].gated) == (Verdict.INCOMPATIBLE, False)
    then, now = (
        replace(each, totals={**each.totals, "collective_calls": calls})
        for each, calls in ((of(64, 5.0), 8.0), (of(128, 10.0), 4.0))
    )
    assert counted(then, now).verdict is Verdict.REGRESSED  # the number of calls depends on no shape
    more = replace(of(64, 5.0), totals={"batch_rows": 9.0, "flops_forward": 5.0})
    assert decide_count("batch_rows", of(128, 10.0), more) is Verdict.UNCHANGED
    told = "a step has 8 x 64 int64, 8 x 128 int64 in the baseline: batches differ, so the plugin compares nothing else"
    assert told in findings(result)
    assert decide_count("batch_rows", of(128), of(64)) is Verdict.UNCHANGED  # the model does as much as before


def test_buckets_of_two_models_that_swap_places_are_the_same() -> None:
    def of(*sizes: float) -> Counts:
        details = {"ddp_buckets": {f"bucket {number}": size for number, size in enumerate(sizes)}}
        return Counts(totals={"ddp_buckets": float(len(sizes))}, details=details, unstable={})

    assert decide_count("ddp_buckets", of(41.0, 20.0), of(20.0, 41.0)) is Verdict.UNCHANGED
    assert decide_count("ddp_buckets", of(41.0, 20.0), of(20.0, 42.0)) is Verdict.REGRESSED


def test_a_wait_is_a_cause_before_more_operators_that_autograd_records() -> None:
    then, now = (counts(recorded_operators=50.0 * more, synchronisations=more - 1.0) for more in (1, 2))
    red = decisive(counted(now, then), {Verdict.REGRESSED})
    assert [each.series.metric for each in red] == ["synchronisations", "recorded_operators"]


@pytest.mark.parametrize(
    ("more", "red"), [(2.0, ["collective_calls"]), (3.0, ["collective_calls", "blocking_collectives"])]
)
def test_a_count_that_grows_more_than_twice_as_much_as_its_leader_is_judged(more: float, red: list[str]) -> None:
    """A step has a new all-reduce, and 2 or 3 calls that block now."""
    then = counts(collective_calls=4.0, blocking_collectives=0.0)
    now = counts(collective_calls=5.0, blocking_collectives=more)
    found = decisive(counted(now, then), {Verdict.REGRESSED})
    assert [each.series.metric for each in found] == red
