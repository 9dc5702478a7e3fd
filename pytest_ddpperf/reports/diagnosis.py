"""The words of a diagnosis: the bottleneck of a step, the figures behind it, and advice to make it faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.analysis.diagnosis import DISTURBED
from pytest_ddpperf.records.finding import Advice, Cause, Diagnosis
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.findings import CAUSES, sentence
from pytest_ddpperf.reports.lines import with_names
from pytest_ddpperf.units import format_count, format_percent, format_value

_BY_SAMPLE = frozenset({"accumulation", "larger_batch", "smaller_group"})  # they change the samples of a step
_SHOWN = 2  # causes that one line names if no cause is decisive


def diagnosis_lines(results: Sequence[Result]) -> list[str]:
    """Returns one line for each benchmark that has a diagnosis."""
    named = [(name, one.step.diagnosis) for name, one in with_names(results)]
    return [f"{name}: {diagnosis_text(diagnosis)}" for name, diagnosis in named if diagnosis is not None]


def in_words(diagnosis: Diagnosis) -> Diagnosis:
    """Fills in the field ``text`` of a diagnosis, of each cause and of each advice, and returns the diagnosis."""
    return replace(
        diagnosis,
        text=diagnosis_text(diagnosis),
        causes=tuple(replace(cause, text=cause_text(cause)) for cause in diagnosis.causes),
        advice=tuple(replace(advice, text=advice_text(advice)) for advice in diagnosis.advice),
    )


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Returns the bottleneck of a step, its figures, and the most useful changes."""
    bottleneck = diagnosis.bottleneck
    first = diagnosis.causes[0].bottleneck if diagnosis.causes else bottleneck
    if bottleneck == "unclear" or (bottleneck == "disturbed" and bottleneck != first):
        largest = [cause for cause in diagnosis.causes if cause.bottleneck != "unclear"][:_SHOWN]
        causes = ", ".join(f"{CAUSES[cause.bottleneck]} {format_percent(cause.share)}" for cause in largest)
        idle = _idle(diagnosis) if bottleneck == "unclear" else ""
        told = f"{bottleneck}: {idle or 'no cause takes a third of the step'}{f' ({causes})' if causes else ''}"
    else:
        cause = diagnosis.cause(bottleneck)
        figures = "" if cause is None else cause_text(cause)
        if cause is None and bottleneck == "memory_capacity" and diagnosis.memory is not None:
            figures = f"a rank uses {format_percent(diagnosis.memory)} of its memory"
        told = f"{BOUND_BY[bottleneck]}{figures and f': {figures}'}"
    own = [each for each in diagnosis.advice if each.bottleneck == bottleneck][:1]
    disturbed = [f"other processes took {format_percent(diagnosis.lost)} of the cores"] * (diagnosis.lost >= DISTURBED)
    return "; ".join([told, *map(advice_text, own), *disturbed])


def cause_text(cause: Cause) -> str:
    """Returns the share of one cause, and the figures that prove it."""
    share = f"{format_percent(cause.share)} of the step ({format_value(cause.seconds, 's')})"
    figures = _FIGURES.get(cause.bottleneck)
    return f"{share}{f', {sentence(figures, cause.facts)}' if figures and cause.facts else ''}"


def advice_text(advice: Advice) -> str:
    """Returns one recommended change, and how much time it saves."""
    words = sentence(ADVICE[advice.code], advice.facts)
    if advice.gain is None:
        return words
    share = f"{'about' if advice.estimated else 'at most'} {format_percent(advice.gain)}"
    return f"{words} (saves {share}{' of the time of a sample' * (advice.code in _BY_SAMPLE)})"


def _idle(diagnosis: Diagnosis) -> str:
    """Returns the share of the step that no measurement explains, if this makes the diagnosis unclear."""
    cause = diagnosis.cause("unclear")
    if cause is None or not cause.facts or cause.bottleneck != diagnosis.causes[0].bottleneck:
        return ""
    share, collectives = format_percent(cause.share), round(cause.facts.get("collectives", 0.0))
    told = f"nothing that was measured explains {share} of the step"
    if "idle" in cause.facts:
        told = f"ranks wait for {share} of the step for an unknown reason"
        told += ", outside of forward, backward and optimizer" if cause.facts.get("outside") else ""
    return f"{told}; its {format_count(collectives, 'collective')} were not timed" if collectives else told


_BOUND = ("compute", "communication", "memory_capacity", "memory_bandwidth", "data", "overhead")
BOUND_BY: Mapping[str, str] = {
    **{bottleneck: f"{bottleneck.replace('_', '-')}-bound" for bottleneck in _BOUND},
    **{word: word for word in ("straggler", "oversubscribed", "disturbed", "unclear")},
}
_FIGURES: Mapping[str, str | Callable[..., str]] = {
    "compute": "{flops:FLOP}; a rank computes up to {rate:G}FLOP/s",
    "communication": "{sent:B} in {collectives:collective}",
    "memory_bandwidth": "{moved:B} moved; a rank moves up to {rate:G}B/s",
    "overhead": "{operators:operator}; a small operator takes {each:s}",
    "straggler": "rank {rank} takes {own:s}, the others {others:s}; most of the difference is in {phase}",
    "oversubscribed": lambda wanted, there, resource: (
        f"{format_count(wanted, 'thread' if resource == 'core' else 'rank')} on {format_count(there, resource)}"
    ),
}
ADVICE: Mapping[str, str | Callable[..., str]] = {
    "loader_workers": "load data with workers={workers}",
    "more_workers": "load data with more workers (num_workers of the DataLoader)",
    "ready_batches": "keep workers and batches ready: loader {missing}",
    "pin_memory": "copy batches to the GPU from pinned memory: loader pin_memory=true",
    "cheaper_loading": "prepare the data before training, or make loading cheaper",
    "accumulation": "synchronise and update less often: accumulation_steps={steps} with no_sync",
    "no_sync": "synchronise only in the last micro-batch: no_sync=true",
    "overlap": "send gradients while backward runs: strategy bucketed or ddp",
    "compression": "send gradients in half the bytes: ddp[comm_hook=bf16]",
    "bucket_size": "try another bucket size, such as ddp[bucket_cap_mb={megabytes:g}]",
    "keep_gathered": lambda strategy: (
        f"keep parameters gathered between forward and backward{f': {strategy}' if strategy else ''}"
    ),
    "whole_model": "keep the whole model on each rank, because it fits into memory: ddp[gradient_as_bucket_view=true]",
    "nccl": "use NCCL between GPUs: backend=nccl",
    "mixed_precision": "train with precision=bf16",
    "fusion": "fuse elementwise operators: torch.compile",
    "fused_optimizer": "if the optimizer is not fused yet, set fused=True",
    "bucket_views": "let gradients be views of DDP's buckets: ddp[gradient_as_bucket_view=true]",
    "gradient_layout": "before DDP wraps the model, convert parameters to the memory format of their gradients",
    "static_graph": "if each step uses the same parameters, replace find_unused_parameters: "
    "{strategy}[static_graph=true]",
    "larger_batch": "use a batch {times} times as large",
    "compile": "compile the step (torch.compile), or use fewer and larger layers",
    "even_work": "give rank {rank} no more work than each other rank has",
    "fewer_ranks": "use fewer ranks or threads: now {ranks:rank} with {threads:thread} each",
    "smaller_group": "train on {ranks:rank}, where the same work takes less time",
    "alone": "measure while nothing else runs",
    "expandable_segments": "{share:%} of the memory that is held lies unused between tensors; to save memory, set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "gradients_in_buckets": "save memory with gradients as views of DDP's buckets: ddp[gradient_as_bucket_view=true]",
    "checkpointing": "save memory with activation_checkpointing=true",
    "smaller_micro_batch": "save memory with smaller micro-batches: raise accumulation_steps",
    "half_precision": "save memory with activations in half precision: precision=bf16",
    "sharding": "save memory with sharding: strategy fsdp2 or zero1",
}
"""The sentence of each advice by its code, with names of facts in braces, or a function that makes it from facts."""
