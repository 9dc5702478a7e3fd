"""A step in a results document: its counts, its communication, its parts."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import NotRequired, TypedDict

from pytest_ddpperf.records.phases import MemoryKind
from pytest_ddpperf.reports.documents.kinds import Natural, about


class CountsData(TypedDict):
    """What one step does, counted: what the counted metrics are made of."""

    totals: Annotated[dict[str, float], about("By metric, for one step.")]
    details: Annotated[
        dict[str, dict[str, float]],
        about("By metric: operators, modules, buckets or categories that make up the total."),
    ]
    unstable: Annotated[
        dict[str, str], about("Metrics that two steps of one run differed in, and in what; they are not gated.")
    ]
    by_rank: Annotated[dict[str, list[float]], about("Metrics that are not equal on all ranks: their totals by rank.")]
    details_by_rank: NotRequired[
        Annotated[
            dict[str, dict[str, list[float]]],
            about("Of collectives and optimizer steps what is not equal on all ranks: each detail by rank."),
        ]
    ]


class SlowestData(TypedDict):
    """The rank that came last most often."""

    rank: Annotated[Natural, about("Its number.")]
    share: Annotated[float, about("Of the collectives.")]


class BandwidthData(TypedDict):
    """How fast collectives of one kind were."""

    algbw: Annotated[float, about("Size over time.")]
    busbw: Annotated[float, about("Load of the links.")]


class WindowData(TypedDict):
    """DDP's own figures on rank 0, from its sample of steps."""

    communication: Annotated[float, about("From the start of the first all-reduce to the end of the last.")]
    exposed: Annotated[float, about("What of it came after backward's computation.")]


class ProfileData(TypedDict):
    """Communication of a step as the profiler sees it, averages over steps and ranks, in seconds."""

    step: Annotated[float, about("A step under the profiler.")]
    communication_busy: Annotated[float, about("In which at least one collective was under way.")]
    communication_busy_share: Annotated[float, about("That as a share of the step.")]
    overlap: Annotated[
        float | None, about("Share of the busy time in which something was computed; null where nothing was sent.")
    ]
    exposed: Annotated[float, about("Busy time in which nothing was computed.")]
    gaps: Annotated[float, about("Of that, what may be the host between two operators: an estimate of its error.")]
    transfer: Annotated[
        float | None,
        about(
            "Of the collectives, each as on the rank where it was shortest; null where ranks differ in them, or "
            "nobody knows which ranks met."
        ),
    ]
    wait: Annotated[float | None, about("How much longer they were on the average rank; null likewise.")]
    slowest: Annotated[
        SlowestData | None,
        about("The rank that came last most often, and for which share of the collectives; null where unknown."),
    ]
    bandwidths: Annotated[
        dict[str, BandwidthData], about("By kind of collective, in bytes per second, by the definitions of nccl-tests.")
    ]
    ddp_window: Annotated[
        WindowData | None, about("DDP's own figures on rank 0, from its sample of steps; null for other strategies.")
    ]


class SectionData(TypedDict):
    """A part of a step that the user named."""

    path: Annotated[str, about("Its name behind those of the sections around it: outer/inner.")]
    count: Annotated[float, about("How many times a step enters it.")]
    seconds: Annotated[float, about("Of a step, in all entries together, with the sections inside it.")]
    own_seconds: Annotated[float, about("The same without the sections inside it.")]
    share: Annotated[float, about("Seconds as a fraction of the step.")]


class MemoryUseData(TypedDict):
    """What a phase did to the memory of a rank in one step."""

    kind: Annotated[MemoryKind, about("allocated: live tensors on CUDA. heap: what the process had asked malloc for.")]
    change: Annotated[int, about("Bytes more after it than before.")]
    peak: Annotated[int | None, about("The most there were inside it; null for heap.")]
