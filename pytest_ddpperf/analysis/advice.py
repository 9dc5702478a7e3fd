"""What would make a step faster, by what it is bound by, with the gain to be expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pytest_ddpperf.analysis.evidence import sends_after_backward, strategy_name
from pytest_ddpperf.metrics.figures import precision_of_products
from pytest_ddpperf.records.diagnosis import Advice, Bottleneck, Diagnosis
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import BACKWARD

WORTH = 0.03  # of the step: a smaller gain is not worth advice
WORKERS = 4  # of a loader
MICRO_BATCHES = 4
FRAGMENTED = 0.20  # of the memory that the allocator holds: above, tensors do not fill what is there
_BY_SETTING = frozenset(
    {
        *("accumulation", "no_sync", "mixed_precision", "checkpointing", "smaller_micro_batch", "sharding"),
        *("loader_workers", "pin_memory", "overlap", "compression", "bucket_size"),
    }
)
_KEPT = r"SHARD_GRAD_OP|NO_SHARD|reshard_after_forward=false"  # options that keep parameters gathered
_OVERLAPPED = 0.8  # of backward, which can hide communication: the last bucket is ready at its end


def advice_on(diagnosis: Diagnosis, measurement: Measurement) -> tuple[Advice, ...]:
    """The changes that may pay, the largest gain first; those that make room come last.

    A gain is an upper bound: of a cause that goes away, everything else stays as it is. A larger batch and more
    micro-batches gain for each sample.
    """
    found = [advice for cause in diagnosis.causes for advice in _BY_CAUSE[cause.bottleneck](diagnosis, measurement)]
    if diagnosis.bottleneck == "memory_capacity":
        found += _room(measurement)
    if measurement.strategy == "custom":  # whose step has no settings of ours
        found = [advice for advice in found if advice.code not in _BY_SETTING]
    worth = [advice for advice in found if advice.gain is None or advice.gain >= WORTH]
    return tuple(sorted(worth, key=lambda advice: -(advice.gain or 0.0)))


def _share(diagnosis: Diagnosis, bottleneck: Bottleneck) -> float:
    cause = diagnosis.cause(bottleneck)
    return 0.0 if cause is None else cause.share


def _data(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    """Workers load while the rank trains: the step is as long as the longer of both."""
    wait = _share(diagnosis, "data")
    found = [Advice(code="cheaper_loading", bottleneck="data", gain=wait)]
    loader = measurement.recipe.get("loader", "")
    if measurement.environment.device == "cuda" and "pin_memory=true" not in loader:
        found.append(Advice(code="pin_memory", bottleneck="data", gain=wait))
    said = re.search(r"workers=(\d+)", loader)
    if said is None:  # nobody knows how many a loader of the workload's own has
        return [Advice(code="more_workers", bottleneck="data", gain=wait), *found]
    workers = int(said[1])
    more = workers + WORKERS
    loading = workers or wait  # a batch takes all workers one step, or the rank itself the wait
    gain = 1 - max(1 - wait, loading / more)
    return [Advice(code="loader_workers", bottleneck="data", gain=gain, facts={"workers": more}), *found]


def _communication(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    """Less, later, hidden, or on fewer ranks."""
    share, strategy = _share(diagnosis, "communication"), strategy_name(measurement)
    kept = re.search(_KEPT, measurement.strategy) is not None
    found: dict[str, float] = {}
    steps = int(measurement.recipe.get("accumulation_steps", "1"))
    if steps > 1 and measurement.recipe.get("no_sync") == "false":  # first of all, what it accumulates already
        found["no_sync"] = share * (1 - 1 / steps)
    else:
        found["accumulation"] = share * (1 - 1 / MICRO_BATCHES) * _once_in_a_step(strategy, kept=kept)
    if sends_after_backward(measurement):
        found["overlap"] = min(share, _OVERLAPPED * _phase_share(measurement, BACKWARD) * (1 - share))
    if strategy == "ddp" and "comm_hook" not in measurement.strategy:
        found |= {"compression": share / 2, "bucket_size": share / 2}
    if strategy.startswith("fsdp") and not kept:
        found["keep_gathered"] = share / 3
    if measurement.environment.device == "cuda" and measurement.environment.backend == "gloo":
        found["nccl"] = share
    facts = {"steps": steps * MICRO_BATCHES}
    return [Advice(code=code, bottleneck="communication", gain=gain, facts=facts) for code, gain in found.items()]


def _once_in_a_step(strategy: str, *, kept: bool) -> float:
    """The share of what is sent that accumulation sends once: FSDP gathers parameters for each micro-batch."""
    return 1.0 if not strategy.startswith("fsdp") else 1 / 2 if kept else 1 / 3


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
    codes = ["fusion"] if "compile" not in measurement.recipe else []
    if _phase_share(measurement, "optimizer") > share / 2:
        codes.append("fused_optimizer")
    return [Advice(code=code, bottleneck="memory_bandwidth", gain=share / 2) for code in codes]


def _overhead(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    share = _share(diagnosis, "overhead")
    found = [Advice(code="larger_batch", bottleneck="overhead", gain=share / 2)]
    if "compile" not in measurement.recipe:
        found.append(Advice(code="compile", bottleneck="overhead", gain=share / 2))
    return found


def _straggler(diagnosis: Diagnosis, _measurement: Measurement) -> list[Advice]:
    cause = diagnosis.cause("straggler")
    facts = {} if cause is None else {name: cause.facts[name] for name in ("rank", "phase")}
    return [Advice(code="even_work", bottleneck="straggler", gain=_share(diagnosis, "straggler"), facts=facts)]


def _oversubscribed(diagnosis: Diagnosis, measurement: Measurement) -> list[Advice]:
    share = _share(diagnosis, "oversubscribed")
    return [
        Advice(
            code="fewer_ranks",
            bottleneck="oversubscribed",
            gain=share,
            facts={"ranks": measurement.world_size, "threads": measurement.environment.threads},
        )
    ]


def _disturbed(diagnosis: Diagnosis, _measurement: Measurement) -> list[Advice]:
    return [Advice(code="alone", bottleneck="disturbed", gain=_share(diagnosis, "disturbed"))]


def _room(measurement: Measurement) -> list[Advice]:
    """What makes room in memory, for a larger batch or a larger model."""
    split = next((series.value for series in measurement.series if series.metric == "fragmentation"), 0.0)
    whole = not strategy_name(measurement).startswith(("fsdp", "zero")) and measurement.world_size > 1
    codes = {
        "expandable_segments": split >= FRAGMENTED,
        "checkpointing": "activation_checkpointing" not in measurement.recipe,
        "smaller_micro_batch": True,
        "half_precision": measurement.environment.device == "cuda" and "precision" not in measurement.recipe,
        "sharding": whole,
    }
    facts = {"share": split}
    return [Advice(code=c, bottleneck="memory_capacity", gain=None, facts=facts) for c, told in codes.items() if told]


def _nothing(_diagnosis: Diagnosis, _measurement: Measurement) -> list[Advice]:
    return []


_BY_CAUSE: Mapping[Bottleneck, Callable[[Diagnosis, Measurement], list[Advice]]] = {
    "compute": _compute,
    "communication": _communication,
    "memory_capacity": _nothing,
    "memory_bandwidth": _memory_bandwidth,
    "data": _data,
    "overhead": _overhead,
    "straggler": _straggler,
    "oversubscribed": _oversubscribed,
    "disturbed": _disturbed,
    "unclear": _nothing,
}
