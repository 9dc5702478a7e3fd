"""The parts of a benchmark in the results document: machine, counts, communication, and what it is compared with.

A field without a description has the words of the record's attribute.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Literal

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.metrics.launch_figures import gpus_of
from pytest_ddpperf.metrics.phases import SectionSummary
from pytest_ddpperf.records.communication import Bandwidth, CommunicationProfile, Window
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.diagnosis import Advice, Bottleneck, Cause, Diagnosis
from pytest_ddpperf.records.health import CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.records.results import PairedRevision, Provenance, Result
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.diagnosis import advice_text, cause_text, diagnosis_text
from pytest_ddpperf.reports.document import Date, Document, Natural, NotNegative, Positive, about

_UNPLACED = ("operators", "flops", "collective_send_bytes")  # counts of which others tell the lines


class EnvironmentData(Document, record=Environment):
    """The facts that a result depends on. Two environments with equal facts, but for recorded, have one key."""

    device: Literal["cpu", "cuda"]
    simulated: bool


class GpuProcessData(Document):
    """Another process on a GPU."""

    pid: int = about("Process id; in a container it may be the host's.", itemgetter(0))
    memory: int | None = about("Bytes of the GPU's memory.", itemgetter(1))


class GpuData(Document, of=[GpuHealth]):
    """A GPU that the ranks computed on; null for what the driver does not tell."""

    device: str
    readings: Natural
    utilisation: float | None
    sm_clock: float | None
    sm_clock_limit: float | None
    memory_clock: float | None
    memory_clock_limit: float | None
    temperature: float | None
    power: float | None
    throttled: dict[str, float]
    others: list[GpuProcessData] = about(
        "Processes that used the GPU before the launch began and still did when it had ended.",
        lambda gpu: gpu.others.items(),
    )
    mig: bool


class HealthData(Document, of=[Health]):
    """What else went on in the machine during a launch."""

    cpu: CpuHealth = about(source="health.cpu")
    nodes: dict[str, CpuHealth] = about(source="health.nodes")
    gpus: list[GpuData] = about("The GPUs that the ranks computed on; null for what the driver does not tell.", gpus_of)


class CallSiteData(Document, record=CallSite, sparse=True):
    """A line of code that a part of a count comes from."""


class CountsData(Document, of=[Counts], sparse=True):
    """What one step does, counted: what the counted metrics are made of."""

    totals: dict[str, float]
    details: dict[str, dict[str, float]] = about(
        source=lambda counts: {metric: parts for metric, parts in counts.details.items() if parts}
    )
    unstable: dict[str, str]
    by_rank: dict[str, list[float]]
    details_by_rank: dict[str, dict[str, list[float]]]
    sites: dict[str, list[CallSite]] = about(
        source=lambda counts: {metric: sites for metric, sites in counts.sites.items() if metric not in _UNPLACED}
    )
    steps: Natural
    varying: dict[str, dict[str, list[list[float]]]]


class SlowestData(Document):
    """The rank that came last most often."""

    rank: Natural = about("Its number.", itemgetter(0))
    share: float = about("Of the collectives.", itemgetter(1))


class BandwidthData(Document, of=[Bandwidth]):
    """How fast collectives of one kind were."""

    algbw: float = about(source="algorithm")
    busbw: float = about(source="bus")


class WindowData(Document, of=[Window]):
    """DDP's own figures on rank 0, from its sample of steps."""

    communication: float
    exposed: float


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
    slowest: SlowestData | None
    bandwidths: dict[str, BandwidthData] = about(
        source=lambda profile: {bandwidth.kind: bandwidth for bandwidth in profile.bandwidths}
    )
    ddp_window: WindowData | None = about(source="window")


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


class SectionData(Document, of=[SectionSummary]):
    """A part of a step that the user named."""

    path: str
    count: float
    seconds: float
    own_seconds: float
    share: float


class ModuleData(Document):
    """The files that the ranks of each side imported a module from."""

    here: str | None = about("Of this checkout; null if it was not imported.", itemgetter(0))
    there: str | None = about("Of the other one; null if it was not imported.", itemgetter(1))


class PackageData(Document):
    """The versions of a package in two environments."""

    there: str | None = about("Of the reference; null if it is not installed.", itemgetter(0))
    here: str | None = about("Of the candidate; null if it is not installed.", itemgetter(1))


class AgainstData(Document, of=[PairedRevision]):
    """The other side of a run with --ddpperf-against or --ddpperf-against-python."""

    revision: str
    commit: str | None
    launches: Natural
    modules: dict[str, ModuleData] = about("By module of the project, the file that the ranks of each side imported.")
    python: str | None
    environment: Environment | None = about(
        "The environment of that side; null if it cannot run the benchmark.",
        lambda paired: None if paired.record is None else paired.record.environment,
    )
    packages: dict[str, PackageData] = about("The installed packages that differ between both environments, by name.")


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
    health: list[HealthData | None] = about(
        "What else went on in the machine, for each launch; null if nobody looked.",
        lambda benchmark: (launch if launch.health else None for launch in benchmark.measurement.launches),
    )
