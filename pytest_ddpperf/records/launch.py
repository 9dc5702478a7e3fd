"""Launches: the reports of ranks, the state of the machine during a launch, and how a call spent its time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pytest_ddpperf.records.phases import BlockTimes, MemoryHeadroom, PhaseTimes

BUSY = 0.10  # share of the cores, or of a GPU's time, above which others' use makes a machine busy


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuHealth:
    """The use of the processor during a launch; a field is None if the system does not report it."""

    others: float | None = None  # share of the usable cores' time that other processes used
    steal: float | None = None  # share of that time in which a hypervisor kept cores from this machine's work
    throttled: float | None = None  # seconds of waiting because of the control groups' CPU quota, over all cores
    overheated: int | None = None  # how many times a usable core slowed down because it was too hot
    swapped: int | None = None  # bytes that the machine moved between memory and swap
    governor: str | None = None  # sets the cores' frequency, e.g. performance; several are joined by commas
    frequency: float | None = None  # mean of the usable cores when the launch had ended, in Hz
    power: float | None = None  # mean of all processor packages in timed steps, in W, including other processes' work


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A GPU during timed steps, read several times a second; a field is None if the driver does not report it."""

    device: str  # its PCI id, such as 0000:1b:00.0
    readings: int  # number of readings
    utilisation: float | None = None  # mean share of the time in which something ran on it
    sm_clock: float | None = None  # median of the multiprocessors' clock, in Hz
    sm_clock_limit: float | None = None  # the GPU's highest such clock, in Hz
    memory_clock: float | None = None  # median, in Hz
    memory_clock_limit: float | None = None  # the GPU's highest such clock, in Hz
    temperature: float | None = None  # highest, in degrees Celsius
    power: float | None = None  # mean, in W
    throttled: Mapping[str, float] = field(default_factory=dict)  # share of the time, by reason for reduced clocks
    # Bytes of the GPU's memory by pid, for processes that used it both before the launch began and after it ended;
    # None if the number of bytes is unknown.
    others: Mapping[int, int | None] = field(default_factory=dict)
    mig: bool = False  # divided into instances: the figures cover all of them, and other processes are unknown

    @property
    def disturbed(self) -> bool:
        """Returns True if other processes used the GPU, if its clocks were reduced, or if MIG hides other processes."""
        return self.mig or bool(self.others) or any(share > BUSY for share in self.throttled.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of processors and GPUs during a launch."""

    cpu: CpuHealth  # from the start of the launch to its end
    nodes: Mapping[str, CpuHealth] = field(default_factory=dict)  # the same for other nodes, by name
    gpus: tuple[GpuHealth, ...] = ()  # the GPUs that ranks compute on
    unread_gpus: tuple[str, ...] = ()  # why other GPUs of the ranks were not read, as text


Window = tuple[float, float]
"""Begin and end in seconds, by the monotonic clock that all processes of a machine share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """A GPU's memory in bytes, read by one of its ranks after the timed steps."""

    device: str | None  # PCI id of the GPU, which its instances (MIG) share; None if torch does not identify it
    uuid: str  # CUDA's id of the rank's device: ranks that share its memory have the same id
    used: int  # by all processes together, as the driver reports
    total: int
    reserved: int | None  # by this rank's allocator; None if it has no statistics, or if launches are interleaved


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineRates:
    """Speeds of a rank's device in three micro-benchmarks, which all ranks run at the same time."""

    products: float  # FLOP/s of a product of large matrices
    copies: float  # bytes of tensors larger than the caches, read and written per second
    operator: float  # seconds of an operator on a few numbers, in forward and backward


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowImport:
    """The slowest import of a rank before its first timed step."""

    module: str
    seconds: float  # including the module's own imports
    reason: str | None  # why it is not preloaded, after "its import"; empty if unknown, None if nothing prevents it


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLaunch:
    """The report of one rank on one launch; a block is a group of consecutive timed steps that are timed together.

    Attributes:
        rank: number of the rank.
        step_times: seconds of each timed step on this rank, in order, without steps that updated no parameters. If a
            strategy does some work only in every n-th step, each value is the mean of n steps.
        skipped_steps: numbers of the timed steps, from 0, that updated no parameters because fp16 gradients overflowed.
        picked: DataLoader settings that ``loader=auto`` chose, and a sentence about them; None without ``loader=auto``.
        memory: bytes by kind: ``peak_resident`` on the CPU (peak resident memory above the level before the model was
            built), ``peak_allocated`` and others of the caching allocator on CUDA. See ``instruments.memory.LABELS``.
        device_memory: memory in use on this rank's GPU; None on the CPU.
        loss: the last timed step's loss on this rank; None if steps return no loss.
        mean_loss: mean loss of the timed steps that updated parameters; None if steps return no loss, and on GPUs,
            because the host would have to wait for each loss.
        learning_rate: of a Workload's first parameter group, after the timed steps; None for a step or a script.
        phases: times of phases (forward, backward ...) in separate steps after the timed ones; None if not measured.
        communication: times of separate steps with and without synchronisation of gradients; None if not measured.
        no_headroom: needed and free memory, if ``communication`` was not measured because copies of the training state
            did not fit; else None. It is equal on all ranks.
        kept: why the user's step cannot skip the synchronisation of gradients; empty if the step can skip it.
        rates: speeds of this rank's device in micro-benchmarks; None if phases were not measured or memory was short.
        held: bytes of memory that this process used before and after each of a few separate steps; empty if unknown.
        samples_per_step: this rank's samples in one step; None if unknown.
        tokens_per_step: this rank's tokens in one step; None if unknown.
        epoch_steps: steps of one pass over the data of this rank's loader; None if the loader has no length.
        background: whether the rank had other processes or threads, which continue while steps wait.
        taken: peak bytes of this process, including imports; None if launches are interleaved, or if unknown.
        cpu_time: mean CPU seconds of a timed step, summed over the threads of this process, without child processes;
            None if a GPU does the work, if fp16 gradients overflowed in a step, or if the system does not report it.
        blocks: number of steps in each block, if launches were interleaved or GPU events timed the steps; else empty.
        cpu_blocks: mean CPU seconds of a step, for each block; empty if ``blocks`` is empty, or if they are unknown.
        worked: seconds from the start of this rank's first step to its last result.
        first_step: seconds from building the training to the end of the first step.
        compiling: seconds that torch.compile spent compiling, in first step and warm-up; None without torch.compile.
        tracers: names of the tools that traced Python during the timed steps, such as ``coverage``.
        imported: the slowest import of rank 0; None on other ranks, and if no import was slow.
        unseen: share of wall time that GPU events did not cover, in the worst block; None if the host timed the steps.
        window: begin and end of this rank's timed steps, by ``time.monotonic``; None without timed steps.
    """

    rank: int
    step_times: tuple[float, ...]
    memory: Mapping[str, float]
    loss: float | None
    samples_per_step: float | None
    tokens_per_step: float | None
    skipped_steps: tuple[int, ...] = ()
    mean_loss: float | None = None
    learning_rate: float | None = None
    picked: tuple[str, str] | None = None
    phases: PhaseTimes | None = None
    communication: BlockTimes | None = None
    no_headroom: MemoryHeadroom | None = None
    kept: str = ""
    rates: MachineRates | None = None
    held: tuple[int, ...] = ()
    device_memory: DeviceMemory | None = None
    epoch_steps: float | None = None
    background: bool = False
    taken: int | None = None
    cpu_time: float | None = None
    blocks: tuple[int, ...] = ()
    cpu_blocks: tuple[float, ...] = ()
    worked: float = 0.0
    first_step: float | None = None
    compiling: float | None = None
    tracers: tuple[str, ...] = ()
    imported: SlowImport | None = None
    unseen: float | None = None
    window: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One fresh process group, from start to end: the unit of statistics.

    Attributes:
        round: number of the round in the run; launches of several variants in one round are compared.
        ranks: the report of each rank, by rank.
        seconds: duration of the whole launch, including the start of its processes.
        health: state of the machine during the launch; None if it was not read.
        step_times: seconds of each timed step; a step lasts as long as on its slowest rank.
        figures: a cache of values that were computed from the launch, by name; ``dataclasses.replace`` empties it.
    """

    round: int
    ranks: tuple[RankLaunch, ...]
    seconds: float
    health: Health | None = None
    figures: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def processors(self) -> dict[str, CpuHealth]:
        """The health of the CPUs by node, the controller's node first; the name of a single node is empty."""
        health = self.health
        return {} if health is None else {"node 0" * bool(health.nodes): health.cpu, **health.nodes}

    @property
    def step_times(self) -> tuple[float, ...]:
        """Seconds of each timed step of the group."""
        if "step_times" not in self.figures:
            self.figures["step_times"] = tuple(map(max, zip(*(rank.step_times for rank in self.ranks), strict=True)))
        found: tuple[float, ...] = self.figures["step_times"]
        return found


def timed_window(launches: Sequence[Launch]) -> Window | None:
    """Returns begin and end of the timed steps of simultaneous launches, by ``time.monotonic``; None if unknown.

    The timed steps of a launch begin when its last rank begins, and end when its first rank ends.
    """
    ranks = [[rank.window for rank in launch.ranks if rank.window is not None] for launch in launches]
    known = [(max(begin for begin, _ in each), min(end for _, end in each)) for each in ranks if each]
    return (min(begin for begin, _ in known), max(end for _, end in known)) if known else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpent:
    """Seconds of one call such as ``ddpperf.check(...)`` by purpose; their sum is the call's wall time."""

    starting: float = 0.0  # all time before the first and after the last step of launches, with the start of launchers
    verifying: float = 0.0  # comparing the training with a single process
    counting: float = 0.0  # counting the work of one step
    measuring: float = 0.0  # timed steps, and their warm-up
    diagnosing: float = 0.0  # additional steps for phases, communication and growth of memory, and the profiler
    other: float = 0.0  # judging, launches that failed, and time between launches

    @property
    def parts(self) -> Mapping[str, float]:
        """The seconds by purpose."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def __add__(self, later: TimeSpent) -> TimeSpent:
        return TimeSpent(**{name: seconds + later.parts[name] for name, seconds in self.parts.items()})

    @property
    def total(self) -> float:
        """The wall time of the call."""
        return math.fsum(self.parts.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class LongSteps:
    """The steps, in some launches, that took more than twice the median step time of their launch."""

    number: int  # number of long steps
    steps: int  # number of all steps
    factor: float  # how many times the median step a long one takes, on average; 0 if there is none
    share: float  # the part of the time of all steps that the long ones take
    # Steps from one long step to the next; None if these distances differ, or if there are fewer than two.
    period: int | None
    # The phase with most of the extra time of long steps over the median step; None if no diagnosed step was long, or
    # no phase has half of that time.
    phase: str | None = None
