"""Ranks that do not train one model together, in words."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.count_changes import place_text, reference_text
from pytest_ddpperf.reports.lines import words_of
from pytest_ddpperf.units import format_count


def ranks_apart(ranks: int, calls: float, paired: bool) -> str:  # noqa: FBT001 - a fact
    """Ranks that have stopped to train together."""
    made = format_count(round(calls), "collective call")
    return f"{ranks} ranks send each other nothing, so each trains alone: {reference_text(paired)} has {made} a step"


def same_data(*, ranks: Sequence[int], drawn: bool, paired: bool | None, alone: bool, sites: Sequence[CallSite]) -> str:
    """Ranks that train on the same data; ``paired`` is None if the reference does not say that they should not."""
    what = "draw the same samples from the dataset" if drawn else "train on the same batches"
    beside = "" if paired is None else f", and those of {reference_text(paired)} do not"
    by = [f"the {site.part} at {place_text(site)}" for site in sites]
    cure = f"let {words_of(by) if by else 'their sampler (DistributedSampler)'} or their dataset know the rank"
    if alone:
        what += " and send each other nothing"
        cure = "let them join a process group and wrap the model (DistributedDataParallel, FSDP), or give world_size=1"
    return f"ranks {words_of(list(map(str, ranks)))} {what}{beside}: {cure}"


def parameters_apart(ranks: Sequence[int], parameter: str, sites: Sequence[CallSite]) -> str:
    """Ranks that no longer train one model."""
    cause = "not all gradients are averaged before each optimizer step; does a step's last micro-batch synchronise?"
    for site in sites:
        cause = f"the last micro-batch of a step defers its gradients, by {site.part} at {place_text(site)}"
    return f"parameters of ranks {words_of(list(map(str, ranks)))} differ after a few steps, first {parameter}: {cause}"
