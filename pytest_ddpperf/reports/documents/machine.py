"""The machine in a results document: its facts, and what else went on in it."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from pytest_ddpperf.reports.documents.kinds import Natural, Positive, about


class EnvironmentData(TypedDict):
    """The facts that a result depends on. Two environments with equal facts, but for recorded, have one key."""

    device: Annotated[Literal["cpu", "cuda"], about("Kind of device the ranks compute on.")]
    device_model: Annotated[str, about("Name of the GPU; on cpu the same as cpu_model.")]
    device_count: Annotated[Natural, about("GPUs of a node; 0 on cpu.")]
    cpu_model: Annotated[str, about("Name of the processor.")]
    cores: Annotated[Positive, about("Cores that the run may use.")]
    threads: Annotated[Positive, about("Threads per rank.")]
    nodes: Annotated[Positive, about("Machines that take part.")]
    backend: Annotated[str, about("Backend of torch.distributed: gloo or nccl.")]
    world_size: Annotated[Positive, about("Number of ranks.")]
    torch: Annotated[str, about("Version of torch, major.minor.")]
    cuda: Annotated[str | None, about("Version, major.minor, of the CUDA that torch was built for; null for none.")]
    recorded: Annotated[
        dict[str, str], about("More facts, which do not decide what is comparable: host, kernel, full versions.")
    ]


class CpuData(TypedDict):
    """The processor, from the start of a launch to its end; null for what the system does not tell."""

    others: Annotated[float | None, about("Share of the usable cores' time that other processes used.")]
    steal: Annotated[float | None, about("Share of the usable cores' time that a hypervisor gave to others.")]
    throttled: Annotated[float | None, about("Seconds for which a CPU quota held processes back, added up over cores.")]
    overheated: Annotated[int | None, about("How many times a core slowed down because it was too hot.")]
    swapped: Annotated[int | None, about("Bytes that the machine moved between memory and swap.")]
    governor: Annotated[str | None, about("What sets the cores' frequency.")]
    frequency: Annotated[float | None, about("Mean frequency of the cores at the end of the launch, in Hz.")]


class GpuProcessData(TypedDict):
    """Another process on a GPU."""

    pid: Annotated[int, about("Process id; in a container it may be the host's.")]
    memory: Annotated[int | None, about("Bytes of the GPU's memory.")]


class GpuData(TypedDict):
    """A GPU that the ranks computed on; null for what the driver does not tell."""

    device: Annotated[str, about("NVIDIA's id: GPU- and a uuid.")]
    readings: Annotated[Natural, about("In which the GPU was busy; all of them where it never was.")]
    utilisation: Annotated[float | None, about("Mean share of the time in which something ran on it.")]
    sm_clock: Annotated[float | None, about("Median clock of the multiprocessors, in Hz.")]
    sm_clock_limit: Annotated[float | None, about("The highest that the GPU can have, in Hz.")]
    memory_clock: Annotated[float | None, about("Median clock of the memory, in Hz.")]
    memory_clock_limit: Annotated[float | None, about("The highest that the GPU can have, in Hz.")]
    temperature: Annotated[float | None, about("The highest, in degrees Celsius.")]
    power: Annotated[float | None, about("Mean, in W.")]
    throttled: Annotated[dict[str, float], about("Share of the readings by what held the clocks back.")]
    others: Annotated[
        list[GpuProcessData],
        about("Processes that used the GPU before the launch began and still did when it had ended."),
    ]


class HealthData(TypedDict):
    """What else went on in the machine during a launch."""

    cpu: Annotated[
        CpuData,
        about("The processor, from the start of the launch to its end; null for what the system does not tell."),
    ]
    gpus: Annotated[
        list[GpuData], about("The GPUs that the ranks computed on; null for what the driver does not tell.")
    ]


LaunchesHealth = Annotated[
    list[HealthData | None], about("What else went on in the machine, for each launch; null where nobody looked.")
]
