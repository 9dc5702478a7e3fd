"""Changes that would make a step faster, chosen by the bottleneck of the step, each with its expected gain."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_ddpperf.analysis.evidence import longest_data_wait, memory_limit, sends_after_backward, strategy_name
from pytest_ddpperf.metrics.figures import precision_of_products
from pytest_ddpperf.records.finding import Advice, Bottleneck, Diagnosis
from pytest_ddpperf.records.loader_settings import loader_settings
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import BACKWARD, OPTIMIZER, OTHER

WORTH = 0.03  # share of the step: a smaller gain is not worth advice
WORKERS = 4  # how many more workers of a DataLoader are advised
_PREFETCHED = 2  # torch's default prefetch_factor
TIMES = 4  # the advised factor for more micro-batches, or samples, in a step
ROOM = 0.9  # of a memory, that tensors may take: the rest is for the allocator, the context and NCCL's buffers
FRAGMENTED = 0.20  # of the memory that the allocator holds: above, too much of it is unused
_BY_SETTING = frozenset(
    {
        *("accumulation", "no_sync", "mixed_precision", "checkpointing", "smaller_micro_batch", "sharding"),
        *("loader_workers", "ready_batches", "pin_memory", "overlap", "compression", "bucket_size"),
    }
)
_ESTIMATED = frozenset(
    {
        *("larger_batch", "overlap", "compression", "bucket_size", "keep_gathered", "whole_model", "mixed_precision"),
        *("fusion", "fused_optimizer", "compile", "static_graph", "fewer_ranks", "smaller_group", "alone"),
    }
)
"""Codes of changes whose gain is only estimated, and may be larger: for example, half the bytes may overlap fully."""
_KEPT = r"SHARD_GRAD_OP|NO_SHARD|reshard_after_forward=false"  # options that keep parameters gathered
_UPDATE: tuple[Bottleneck, ...] = ("memory_bandwidth", "overhead")  # the causes of an optimizer's time
_KEEPING = {"fsdp1": "fsdp1[sharding=SHARD_GRAD_OP]", "fsdp2": "fsdp2[reshard_after_forward=false]"}
_BUCKETS = 4  # of gradients: enough to hide all but the last, and few enough to add little latency
_OVERLAPPED = 0.8  # the share of backward that can hide communication: the last bucket is ready at its end


def advice_on(diagnosis: Diagnosis, measurement: Measurement) -> tuple[Advice, ...]:
    """Returns changes that may make steps faster, the largest gain first; changes that only free memory come last.

    A gain is an upper bound unless it is ``estimated``. The gain of a larger batch or more micro-batches is per sample.
    """
    advisers = [_BY_CAUSE[cause.bottleneck] for cause in diagnosis.causes if cause.bottleneck in _BY_CAUSE]
    found = [advice for adviser in advisers for advice in adviser(diagnosis, measurement)]
    found += [*_fewer_steps(diagnosis, measurement), *_fewer_ranks(diagnosis, measurement)]
    if diagnosis.bottleneck == "memory_capacity":
        found += _room(measurement)
    if measurement.strategy == "custom":  # whose step has no settings of ours
        found = [advice for advice in found if advice.code not in _BY_SETTING]
    worth = [
        replace(advice, estimated=advice.code in _ESTIMATED)
        for advice in found
        if advice.gain is None or advice.gain >= WORTH
    ]
    return tuple(sorted(worth, key=lambda advice: -(advice.gain or 0.0)))


def _share(diagnosis: Diagnosis, bottleneck: Bottleneck) -> float:
    cause = diagnosis.cause(bottleneck)
    return 0.0 if cause is None else cause.share


def _data(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    wait = max(_share(diagnosis, "data"), longest_data_wait(measurement))  # others wait for that rank as well
    found = [Advice(code="cheaper_loading", bottleneck="data", gain=wait)]
    loader = measurement.recipe.get("loader", "")
    if measurement.environment.device == "cuda" and "pin_memory=true" not in loader:
        found.append(Advice(code="pin_memory", bottleneck="data", gain=wait))
    missing = _missing(loader)
    if missing:
        found.append(Advice(code="ready_batches", bottleneck="data", gain=wait, facts={"missing": missing}))
    said = re.search(r"workers=(\d+)", loader)
    if said is None:  # nobody knows how many a loader of the workload's own has
        return [Advice(code="more_workers", bottleneck="data", gain=wait), *found]
    workers = int(said[1])
    more = workers + WORKERS
    loading = workers or wait  # a batch takes all workers one step, or the rank itself the wait
    gain = 1 - max(1 - wait, loading / more)
    return [Advice(code="loader_workers", bottleneck="data", gain=gain, facts={"workers": more}), *found]


def _missing(loader: str) -> str:
    """Returns settings that a loader with workers should add, such as ``prefetch_factor=4``; "" if there are none."""
    given = loader_settings(loader) if loader else None
    if given is None or not given.workers:
        return ""
    factor = [] if (given.prefetch_factor or _PREFETCHED) > _PREFETCHED else [f"prefetch_factor={2 * _PREFETCHED}"]
    return ",".join([*factor, *(["persistent_workers=true"] if not given.persistent_workers else [])])


def _communication(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    share, strategy = _share(diagnosis, "communication"), strategy_name(measurement)
    found: dict[str, float] = {}
    if _synchronises_each(measurement):
        found["no_sync"] = share * (1 - 1 / _micro_batches(measurement))
    if sends_after_backward(measurement):
        found["overlap"] = min(share, _OVERLAPPED * _phase_share(measurement, BACKWARD) * (1 - share))
    buckets = _bucket_size(measurement)
    if strategy == "ddp" and "comm_hook" not in measurement.strategy:
        found["compression"] = share / 2
        found |= {} if buckets is None else {"bucket_size": share / 2}
    if strategy.startswith("fsdp") and not _kept(measurement):
        found["keep_gathered"] = share / 3
        found |= {"whole_model": share / 3} if _fits_whole(diagnosis, measurement) else {}
    if measurement.environment.device == "cuda" and measurement.environment.backend == "gloo":
        found["nccl"] = share
    facts: dict[str, dict[str, Any]] = {
        "bucket_size": {"megabytes": buckets},
        "keep_gathered": {"strategy": None if "replicas" in measurement.strategy else _KEEPING.get(strategy)},
    }
    return [
        Advice(code=code, bottleneck="communication", gain=gain, facts=facts.get(code, {}))
        for code, gain in found.items()
    ]


def _bucket_size(measurement: Measurement) -> float | None:
    """Returns the bucket size in MiB for four buckets; None if it is below 1, or if DDP already has four to eight."""
    nbytes = [] if measurement.counts is None else [*measurement.counts.details.get("ddp_buckets", {}).values()]
    size = float(round(sum(nbytes) / _BUCKETS / 2**20))
    return size if size >= 1 and not _BUCKETS <= len(nbytes) <= 2 * _BUCKETS else None


def _fits_whole(diagnosis: Diagnosis, measurement: Measurement) -> bool:
    """Returns whether the whole model's parameters, gradients and optimizer state are known to fit on each rank."""
    limit, counts = memory_limit(measurement), measurement.counts
    if limit is None or diagnosis.memory is None or counts is None or "model_state_bytes" not in counts.totals:
        return False
    others = counts.totals["model_state_bytes"] * (measurement.world_size - 1)
    return diagnosis.memory + others / limit <= ROOM


def _fewer_ranks(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    """Returns the advice to use the fastest smaller number of ranks, if it does more work per second."""
    slower = [each.facts for each in measurement.findings if each.code == "negative_scaling"]
    if not slower:
        return []
    least = min(slower, key=lambda facts: float(facts["speedup"]))
    gain, facts = 1 - least["speedup"], {"ranks": least["base_size"]}
    return [Advice(code="smaller_group", bottleneck=diagnosis.bottleneck, gain=gain, facts=facts)]


def _fewer_steps(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    """Returns advice to process more samples in a step, so that the fixed work of a step costs less per sample."""
    communication, overhead = _share(diagnosis, "communication"), _share(diagnosis, "overhead")
    computing = sum(_share(diagnosis, each) for each in ("compute", "memory_bandwidth", "overhead"))
    update = min(computing, _phase_share(measurement, OPTIMIZER) + _phase_share(measurement, OTHER))
    calls = overhead * max(0.0, 1 - update / computing) if computing else 0.0  # of operators outside of the update
    saved = 1 - 1 / TIMES
    # The share of what is sent that accumulation sends once: FSDP gathers parameters for each micro-batch.
    sent_once = 1.0 if not strategy_name(measurement).startswith("fsdp") else 1 / 2 if _kept(measurement) else 1 / 3
    accumulated = saved * min(1.0, communication * sent_once + update)
    larger = saved * min(1.0, communication + update + calls)
    found = []
    if communication and not _synchronises_each(measurement):  # else no_sync for the present micro-batches comes first
        facts = {"steps": _micro_batches(measurement) * TIMES}
        cause = _largest(diagnosis, "communication", *(_UPDATE if update > communication else ()))
        found.append(Advice(code="accumulation", bottleneck=cause, gain=accumulated, facts=facts))
    if larger - accumulated >= WORTH and diagnosis.bottleneck != "memory_capacity":
        cause = _largest(diagnosis, "communication", *_UPDATE)
        found.append(Advice(code="larger_batch", bottleneck=cause, gain=larger, facts={"times": TIMES}))
    return found


def _largest(diagnosis: Diagnosis, *among: Bottleneck) -> Bottleneck:
    return next((cause.bottleneck for cause in diagnosis.causes if cause.bottleneck in among), among[0])


def _micro_batches(measurement: Measurement) -> int:
    return int(measurement.recipe.get("accumulation_steps", "1"))


def _synchronises_each(measurement: Measurement) -> bool:
    return _micro_batches(measurement) > 1 and measurement.recipe.get("no_sync") == "false"


def _kept(measurement: Measurement) -> bool:
    return re.search(_KEPT, measurement.strategy) is not None


def _phase_share(measurement: Measurement, phase: str) -> float:
    found = {series.metric: series.value for series in measurement.series if series.metric.startswith("phase_")}
    whole = sum(found.values())
    return found.get(f"phase_{phase}", 0.0) / whole if whole else 0.0


def _compute(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    if measurement.environment.device != "cuda" or precision_of_products(measurement) not in {"fp32", "tf32"}:
        return []
    return [Advice(code="mixed_precision", bottleneck="compute", gain=_share(diagnosis, "compute") / 2)]


def _memory_bandwidth(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    share = _share(diagnosis, "memory_bandwidth")
    found = {"fusion": share / 2} if "compile" not in measurement.recipe else {}
    if _phase_share(measurement, "optimizer") > share / 2:
        found["fused_optimizer"] = share / 2
    if _copies_gradients(measurement):
        found["bucket_views"] = min(share, _copied_back(diagnosis))
    advice = [Advice(code=code, bottleneck="memory_bandwidth", gain=gain) for code, gain in found.items()]
    if any(each.code == "strided_gradients" for each in measurement.findings):
        advice.append(Advice(code="gradient_layout", bottleneck="memory_bandwidth", gain=None))
    return advice


def _copied_back(diagnosis: Diagnosis) -> float:
    """Returns the estimated fraction of the step in which DDP copies gradients back from its buckets."""
    communication, moving = diagnosis.cause("communication"), diagnosis.cause("memory_bandwidth")
    if communication is None or moving is None or not moving.facts.get("rate") or not diagnosis.step:
        return 0.0
    seconds: float = 2 * communication.facts.get("sent", 0.0) / moving.facts["rate"]
    return seconds / diagnosis.step


def _copies_gradients(measurement: Measurement) -> bool:
    """Returns whether gradients are no views of DDP's buckets, so that DDP copies each gradient into its bucket."""
    return strategy_name(measurement) == "ddp" and "gradient_as_bucket_view=true" not in measurement.strategy


def _overhead(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    share = _share(diagnosis, "overhead")
    codes = ["compile"] if "compile" not in measurement.recipe else []
    if "find_unused_parameters=true" in measurement.strategy:  # each step looks through the whole graph for them
        codes.append("static_graph")
    facts = {"strategy": strategy_name(measurement)}
    return [Advice(code=code, bottleneck="overhead", gain=share / 2, facts=facts) for code in codes]


def _straggler(diagnosis: Diagnosis, _measurement: Measurement) -> list[Advice]:
    cause = diagnosis.cause("straggler")
    facts = {} if cause is None else {name: cause.facts[name] for name in ("rank", "phase")}
    return [Advice(code="even_work", bottleneck="straggler", gain=_share(diagnosis, "straggler"), facts=facts)]


def _oversubscribed(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    gain = _share(diagnosis, "oversubscribed")
    facts = {"ranks": measurement.world_size, "threads": measurement.environment.threads}
    return [Advice(code="fewer_ranks", bottleneck="oversubscribed", gain=gain, facts=facts)]


def _room(measurement: Measurement) -> list[Advice]:
    """Returns advice to free memory, for a larger batch or a larger model."""
    split = next((series.value for series in measurement.series if series.metric == "fragmentation"), 0.0)
    whole = not strategy_name(measurement).startswith(("fsdp", "zero")) and measurement.world_size > 1
    codes = {
        "expandable_segments": split >= FRAGMENTED,
        "checkpointing": "activation_checkpointing" not in measurement.recipe,
        "smaller_micro_batch": True,
        "gradients_in_buckets": _copies_gradients(measurement),
        "half_precision": measurement.environment.device == "cuda" and "precision" not in measurement.recipe,
        "sharding": whole,
    }
    facts = {"share": split}
    return [Advice(code=c, bottleneck="memory_capacity", gain=None, facts=facts) for c, told in codes.items() if told]


_BY_CAUSE: Mapping[Bottleneck, Callable[[Diagnosis, Measurement], list[Advice]]] = {
    "compute": _compute,
    "communication": _communication,
    "memory_bandwidth": _memory_bandwidth,
    "data": _data,
    "overhead": _overhead,
    "straggler": _straggler,
    "oversubscribed": _oversubscribed,
    "disturbed": lambda *_: [Advice(code="alone", bottleneck="disturbed", gain=None)],  # nobody knows the gain
}
