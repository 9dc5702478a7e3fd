"""The parts of a benchmark in the results document: machine, counts, communication, and what it is compared with."""

from __future__ import annotations

from operator import itemgetter
from typing import Literal

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.metrics.launch_figures import gpus_of
from pytest_ddpperf.records.diagnosis import Bottleneck
from pytest_ddpperf.records.phases import MemoryKind
from pytest_ddpperf.reports.diagnosis import advice_text, cause_text, diagnosis_text
from pytest_ddpperf.reports.document import Date, Document, Natural, NotNegative, Positive, about

_UNPLACED = ("operators", "flops", "collective_send_bytes")  # counts of which others tell the lines


class EnvironmentData(Document):
    """The facts that a result depends on. Two environments with equal facts, but for recorded, have one key."""

    device: Literal["cpu", "cuda"] = about("Kind of device the ranks compute on.")
    device_model: str = about("Name of the GPU; on cpu the same as cpu_model.")
    device_count: Natural = about("GPUs of a node; 0 on cpu.")
    cpu_model: str = about("Name of the processor.")
    cores: Positive = about("Cores that the run may use.")
    threads: Positive = about("Threads per rank.")
    nodes: Positive = about("Machines that take part.")
    backend: str = about("Backend of torch.distributed: gloo or nccl, or fake where ranks are simulated.")
    simulated: bool = about("Whether one rank was simulated: its step was counted, and nothing was timed.")
    world_size: Positive = about("Number of ranks.")
    torch: str = about("Version of torch, major.minor.")
    cuda: str | None = about("Version, major.minor, of the CUDA that torch was built for; null for none.")
    gpu_setup: str | None = about(
        "Links between the GPUs, power limit and MIG, as in nvlink 700w; null for none or unknown."
    )
    recorded: dict[str, str] = about("More facts, which do not decide what is comparable: host, kernel, full versions.")


class CpuData(Document):
    """The processor, from the start of a launch to its end; null for what the system does not tell."""

    others: float | None = about("Share of the usable cores' time that other processes used.")
    steal: float | None = about("Share of the usable cores' time that a hypervisor gave to others.")
    throttled: float | None = about("Seconds for which a CPU quota held processes back, added up over cores.")
    overheated: int | None = about("How many times a core slowed down because it was too hot.")
    swapped: int | None = about("Bytes that the machine moved between memory and swap.")
    governor: str | None = about("What sets the cores' frequency.")
    frequency: float | None = about("Mean frequency of the cores at the end of the launch, in Hz.")
    power: float | None = about("Mean power of all processor packages in timed steps, in W.")


class GpuProcessData(Document):
    """Another process on a GPU."""

    pid: int = about("Process id; in a container it may be the host's.", itemgetter(0))
    memory: int | None = about("Bytes of the GPU's memory.", itemgetter(1))


class GpuData(Document):
    """A GPU that the ranks computed on; null for what the driver does not tell."""

    device: str = about("PCI id, such as 0000:1b:00.0.")
    readings: Natural = about("During timed steps: the figures are of them.")
    utilisation: float | None = about("Mean share of the time in which something ran on it.")
    sm_clock: float | None = about("Median clock of the multiprocessors, in Hz.")
    sm_clock_limit: float | None = about("The highest that the GPU can have, in Hz.")
    memory_clock: float | None = about("Median clock of the memory, in Hz.")
    memory_clock_limit: float | None = about("The highest that the GPU can have, in Hz.")
    temperature: float | None = about("The highest, in degrees Celsius.")
    power: float | None = about("Mean, in W.")
    throttled: dict[str, float] = about("Share of the time by what held the clocks back.")
    others: list[GpuProcessData] = about(
        "Processes that used the GPU before the launch began and still did when it had ended.",
        lambda gpu: gpu.others.items(),
    )
    mig: bool = about("Whether it is divided into instances: the figures are of all, and others are not known.")


class HealthData(Document):
    """What else went on in the machine during a launch."""

    cpu: CpuData = about(
        "The processor, from the start of the launch to its end; null for what the system does not tell.", "health.cpu"
    )
    nodes: dict[str, CpuData] = about("The same of other nodes, by name.", "health.nodes")
    gpus: list[GpuData] = about("The GPUs that the ranks computed on; null for what the driver does not tell.", gpus_of)


class CallSiteData(Document, sparse=True):
    """A line of code that a part of a count comes from."""

    part: str = about("Of the count, such as all_reduce.")
    file: str = about(
        "Relative to the project or to where it is imported from, else its name; empty if only torch led to it."
    )
    line: Natural = about("Its number.")
    function: str = about("The function that it is in.")
    source: str = about("A digest of the text of the line that called torch; empty if unknown.")
    backward: bool = about("Whether autograd's backward led to it.")
    value: float = about("For one step.")
    strategy: str = about("That the line belongs to, or that has torch do it.")
    through: str = about("The line of another package that it led to, and that called torch.")


class CountsData(Document, sparse=True):
    """What one step does, counted: what the counted metrics are made of."""

    totals: dict[str, float] = about("By metric, for one step.")
    details: dict[str, dict[str, float]] = about(
        "By metric: operators, modules, buckets or categories that make up the total.",
        lambda counts: {metric: parts for metric, parts in counts.details.items() if parts},
    )
    unstable: dict[str, str] = about(
        "Metrics that steps of one run differed in without a rule, and in what; they are not gated."
    )
    by_rank: dict[str, list[float]] = about("Metrics that are not equal on all ranks: their totals by rank.")
    details_by_rank: dict[str, dict[str, list[float]]] = about(
        "Of collectives and optimizer steps what is not equal on all ranks: each detail by rank."
    )
    sites: dict[str, list[CallSiteData]] = about(
        "By metric, the lines of code that the total comes from; they decide nothing.",
        lambda counts: {metric: sites for metric, sites in counts.sites.items() if metric not in _UNPLACED},
    )
    steps: Natural = about("The steps that were looked at.")
    varying: dict[str, dict[str, list[list[float]]]] = about(
        "By metric and detail, '' being the whole: values in each step of what differs."
    )


class SlowestData(Document):
    """The rank that came last most often."""

    rank: Natural = about("Its number.", itemgetter(0))
    share: float = about("Of the collectives.", itemgetter(1))


class BandwidthData(Document):
    """How fast collectives of one kind were."""

    algbw: float = about("Size over time.", "algorithm")
    busbw: float = about("Load of the links.", "bus")


class WindowData(Document):
    """DDP's own figures on rank 0, from its sample of steps."""

    communication: float = about("From the start of the first all-reduce to the end of the last.")
    exposed: float = about("What of it came after backward's computation.")


class ProfileData(Document):
    """Communication of a step as the profiler sees it, averages over steps and ranks, in seconds."""

    step: float = about("A step under the profiler.")
    communication_busy: float = about("In which at least one collective was under way.", "busy")
    communication_busy_share: float = about("That as a share of the step.", "busy_share")
    overlap: float | None = about("Share of the busy time in which something was computed; null if nothing was sent.")
    exposed: float = about("Busy time in which nothing was computed.")
    gaps: float = about("Of that, what may be the host between two operators: an estimate of its error.")
    transfer: float | None = about(
        "Of the collectives, each as on the rank where it was shortest; null if ranks differ in them, or nobody "
        "knows which ranks met."
    )
    wait: float | None = about("How much longer they were on the average rank; null likewise.")
    slowest: SlowestData | None = about(
        "The rank that came last most often, and for which share of the collectives; null if unknown."
    )
    bandwidths: dict[str, BandwidthData] = about(
        "By kind of collective, in bytes per second, by the definitions of nccl-tests.",
        lambda profile: {bandwidth.kind: bandwidth for bandwidth in profile.bandwidths},
    )
    ddp_window: WindowData | None = about(
        "DDP's own figures on rank 0, from its sample of steps; null for other strategies.", "window"
    )


class CauseData(Document):
    """One cause and the time that it has in a step."""

    bottleneck: Bottleneck = about("Which.")
    seconds: NotNegative = about("Of the step.")
    share: NotNegative = about("That as a share of the step.")
    text: str = about("In words, with the figures that it rests on.", cause_text)


class AdviceData(Document):
    """A change that may pay."""

    change: str = about("Its code.", "code")
    bottleneck: Bottleneck = about("What it takes effect on.")
    gain: float | None = about(
        "The share of the step, or of a sample's time, that it saves at most; null if it makes room in memory."
    )
    estimated: bool = about("Whether the gain is an estimate, which the change may exceed.")
    text: str = about("In words.", advice_text)


class DiagnosisData(Document):
    """What a step is bound by."""

    bottleneck: Bottleneck = about("The cause with the largest share; unclear or disturbed where none has a third.")
    step: NotNegative = about("Seconds of a step.")
    causes: list[CauseData] = about("All causes, the largest first; they add up to the step.")
    memory: float | None = about("The share of its memory that a rank uses at most; null if no limit is known.")
    lost: float = about("The share of the cores' time that other processes took.")
    advice: list[AdviceData] = about("Changes that may pay, the largest gain first.")
    text: str = about("In one line.", diagnosis_text)


class SectionData(Document):
    """A part of a step that the user named."""

    path: str = about("Its name behind those of the sections around it: outer/inner.")
    count: float = about("How many times a step enters it.")
    seconds: float = about("Of a step, in all entries together, with the sections inside it.")
    own_seconds: float = about("The same without the sections inside it.")
    share: float = about("Seconds as a fraction of the step.")


class MemoryUseData(Document):
    """What a phase did to the memory of a rank in one step."""

    kind: MemoryKind = about("allocated: live tensors on CUDA. heap: what the process had asked malloc for.")
    change: int = about("Bytes more after it than before.")
    peak: int | None = about("The most there were inside it; null for heap.")


class PlanData(Document):
    """Steps of each launch, fixed before measuring."""

    warmup: Natural = about("Untimed steps at the start.")
    steps: Natural = about("Timed steps.")


class ModuleData(Document):
    """The files that the ranks of each side imported a module from."""

    here: str | None = about("Of this checkout; null if it was not imported.", itemgetter(0))
    there: str | None = about("Of the other one; null if it was not imported.", itemgetter(1))


class PackageData(Document):
    """The versions of a package in two environments."""

    there: str | None = about("Of the reference; null if it is not installed.", itemgetter(0))
    here: str | None = about("Of the candidate; null if it is not installed.", itemgetter(1))


class AgainstData(Document):
    """The other side of a run with --ddpperf-against or --ddpperf-against-python."""

    revision: str = about("The revision in words: 3f2a1c0 (main), or this checkout.")
    commit: str | None = about("Its full hash; null for a folder that is no git checkout.")
    launches: Natural = about(
        "Number of launches of that side that the verdict rests on; 0 if it cannot run the benchmark."
    )
    modules: dict[str, ModuleData] = about("By module of the project, the file that the ranks of each side imported.")
    python: str | None = about("The interpreter of its ranks, as given; null for that of this environment.")
    environment: EnvironmentData | None = about(
        "The environment of that side; null if it cannot run the benchmark.",
        lambda paired: None if paired.record is None else paired.record.environment,
    )
    packages: dict[str, PackageData] = about("The installed packages that differ between both environments, by name.")


class ProvenanceData(Document):
    """When and at what commit something was saved."""

    date: Date = about("The day.")
    commit: str | None = about("The commit; null if unknown.")
    dirty: bool = about("Whether tracked files differed from that commit.")


class BaselineData(Document):
    """The record compared with."""

    environment_key: str = about(
        "The environment it was measured in.", lambda baseline: environment_key(baseline.environment)
    )
    date: Date = about("The day it was saved.")
    commit: str | None = about("The commit it was saved at; null if unknown.")
    dirty: bool = about("Whether tracked files differed from that commit.")
    counted: ProvenanceData | None = about(
        "When and at what commit its counts were saved, where not with the rest; else null."
    )


class TimeData(Document):
    """Where the seconds of a call went."""

    starting: NotNegative = about("Start of launchers; launches until their first step, and their end.")
    verifying: NotNegative = about("Comparing with a single process.")
    counting: NotNegative = about("Counting what one step does.")
    measuring: NotNegative = about("Steps that were timed, and their warm-up.")
    diagnosing: NotNegative = about("Growth of memory, phases and communication, and the profile.")
    other: NotNegative = about("Judging, launches that failed, and what lies between launches.")
    total: NotNegative = about("All of it.")


class BenchmarkData(Document, inside="measurement"):
    """A benchmark that was measured."""

    test: str = about("pytest node id.")
    name: str = about("Tells the benchmarks of one test apart.")
    strategy: str = about("How training is made parallel, options included; custom for a step that brings its own.")
    recipe: dict[str, str] = about("The settings that change what a step does, where they are not the defaults.")
    world_size: Positive = about("Number of ranks.")
    environment_key: str = about(
        "Stands for the environment of this benchmark; names the folder of its baseline.",
        lambda benchmark: environment_key(benchmark.measurement.environment),
    )
    health: list[HealthData | None] = about(
        "What else went on in the machine, for each launch; null if nobody looked.",
        lambda benchmark: (launch if launch.health else None for launch in benchmark.measurement.launches),
    )
