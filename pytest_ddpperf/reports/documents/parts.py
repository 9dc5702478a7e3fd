"""The parts of a benchmark in the results document: machine, counts, communication, and what it is compared with.

A field without a description has the words of the record's attribute.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from pytest_ddpperf.baselines.document import Date, Document, Natural, NotNegative, Positive, about
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.metrics.launch_figures import gpus_of
from pytest_ddpperf.metrics.phases import SectionSummary
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.diagnosis import Advice, Bottleneck, Cause, Diagnosis
from pytest_ddpperf.records.health import GpuHealth, Health
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.records.results import PairedRevision, Provenance, Result
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.diagnosis import advice_text, cause_text, diagnosis_text

_UNPLACED = ("operators", "flops", "collective_send_bytes")  # counts of which others tell the lines


class EnvironmentData(Document, record=Environment):
    """The facts that a result depends on. Two environments with equal facts, but for recorded, have one key."""

    device: Literal["cpu", "cuda"]
    simulated: bool


class GpuProcessData(Document):
    """Another process on a GPU."""

    pid: int = about("Process id; in a container it may be the host's.", itemgetter(0))
    memory: int | None = about("Bytes of the GPU's memory.", itemgetter(1))


class GpuData(Document, record=GpuHealth):
    """A GPU that the ranks computed on; null for what the driver does not tell."""

    others: list[GpuProcessData] = about(
        "Processes that used the GPU before the launch began and still did when it had ended.",
        lambda gpu: gpu.others.items(),
    )

    @classmethod
    def made(cls, **values: Any) -> GpuHealth:
        """Returns the GPU with the memory of other processes by their ids."""
        return GpuHealth(**values | {"others": {each.pid: each.memory for each in values["others"]}})


class HealthData(Document, record=Health, inside="health", without=("unread_gpus",)):
    """What else went on in the machine during a launch."""

    gpus: tuple[GpuHealth, ...] = about(
        "The GPUs that the ranks computed on; null for what the driver does not tell.", gpus_of
    )


class CallSiteData(Document, record=CallSite, sparse=True):
    """A line of code that a part of a count comes from."""


class CountsData(Document, record=Counts, without=("copy", "alike", "sites_by_rank"), sparse=True):
    """What one step does, counted: what the counted metrics are made of."""

    details: dict[str, dict[str, float]] = about(
        source=lambda counts: {metric: parts for metric, parts in counts.details.items() if parts}
    )
    sites: dict[str, tuple[CallSite, ...]] = about(
        source=lambda counts: {metric: sites for metric, sites in counts.sites.items() if metric not in _UNPLACED}
    )


class ProfileData(Document, of=[CommunicationProfile]):
    """Communication of a step as the profiler sees it, averages over steps and ranks, in seconds."""

    step: float
    communication_busy: float = about(source="busy")
    communication_busy_share: float = about(source="busy_share")
    overlap: float | None
    exposed: float
    gaps: float
    transfer: float | None
    wait: float | None
    slowest: dict[str, float] | None = about(
        "The rank that came last most often, and for which share of the collectives.",
        lambda profile: profile.slowest and {"rank": profile.slowest[0], "share": profile.slowest[1]},
    )
    bandwidths: dict[str, dict[str, float]] = about(
        "By kind of collective, algbw and busbw in bytes per second, as nccl-tests has them.",
        lambda profile: {each.kind: {"algbw": each.algorithm, "busbw": each.bus} for each in profile.bandwidths},
    )
    ddp_window: dict[str, float] | None = about(
        "DDP's own figures on rank 0: seconds of its window of communication, and the part after backward.",
        lambda profile: (
            profile.window and {"communication": profile.window.communication, "exposed": profile.window.exposed}
        ),
    )


class CauseData(Document, of=[Cause]):
    """One cause and the time that it has in a step."""

    bottleneck: Bottleneck
    seconds: NotNegative
    share: NotNegative
    text: str = about("In words, with the figures that it rests on.", cause_text)


class AdviceData(Document, of=[Advice]):
    """A change that may pay."""

    change: str = about(source="code")
    bottleneck: Bottleneck
    gain: float | None
    estimated: bool
    text: str = about("In words.", advice_text)


class DiagnosisData(Document, of=[Diagnosis]):
    """What a step is bound by."""

    bottleneck: Bottleneck
    step: float
    causes: list[CauseData]
    memory: float | None
    lost: float
    advice: list[AdviceData]
    text: str = about("In one line.", diagnosis_text)


class SectionData(Document, record=SectionSummary, without=("memory",)):
    """A part of a step that the user named."""


class AgainstData(Document, of=[PairedRevision]):
    """The other side of a run with --ddpperf-against or --ddpperf-against-python."""

    revision: str
    commit: str | None
    launches: Natural
    modules: dict[str, dict[str, str | None]] = about(
        "By module of the project, the file that the ranks imported here and there; null if a side did not.",
        lambda paired: {
            name: dict(zip(("here", "there"), files, strict=True)) for name, files in paired.modules.items()
        },
    )
    python: str | None
    environment: Environment | None = about(
        "The environment of that side; null if it cannot run the benchmark.",
        lambda paired: None if paired.record is None else paired.record.environment,
    )
    packages: dict[str, dict[str, str | None]] = about(
        "The versions of installed packages that differ, by name, there and here; null if there is none.",
        lambda paired: {
            name: dict(zip(("there", "here"), both, strict=True)) for name, both in paired.packages.items()
        },
    )


class ProvenanceData(Document, of=[Provenance]):
    """When and at what commit something was saved."""

    date: Date
    commit: str | None
    dirty: bool


class BaselineData(ProvenanceData):
    """The record compared with."""

    environment_key: str = about(
        "The environment it was measured in.", lambda baseline: environment_key(baseline.environment)
    )
    counted: ProvenanceData | None = about(
        "When and at what commit its counts were saved, where not with the rest; else null."
    )


class TimeData(Document, record=TimeSpent):
    """Where the seconds of a call went."""

    total: NotNegative


class BenchmarkData(Document, inside="measurement", of=[Result, Measurement]):
    """A benchmark that was measured."""

    test: str
    name: str
    strategy: str
    recipe: dict[str, str]
    world_size: Positive
    environment_key: str = about(
        "Stands for the environment of this benchmark; names the folder of its baseline.",
        lambda benchmark: environment_key(benchmark.measurement.environment),
    )
    health: list[Health | None] = about(
        "What else went on in the machine, for each launch; null if nobody looked.",
        lambda benchmark: (launch if launch.health else None for launch in benchmark.measurement.launches),
    )
