"""The jobs of ranks in a launch, and the number of steps that each job takes. Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.training.subject import Script, Subject

if TYPE_CHECKING:
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.records.finding import Finding
    from pytest_ddpperf.records.launch import RankLaunch
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.strategy import Strategy
    from pytest_ddpperf.training.script_run import ScriptRun
    from pytest_ddpperf.training.subject import Workload
    from pytest_ddpperf.training.verification import StepsTrace, Verification

DIAGNOSED_STEPS = 5
MAX_PERIOD = 40  # steps; what comes more seldom is not taken apart
MIN_GROWTH_STEPS, MAX_GROWTH_STEPS = 7, 20  # 20: a leak in every fifth step comes four times
MIN_WARMUP = 2  # before counting: DDP rebuilds its buckets after the first step
TRACED_STEPS = 3  # of an optimizer, in each of which ranks are compared with a single process
CUDA_WARMUP, CUDA_WARMUP_SECONDS = 12, 0.5  # at least, and after the first step: DDP measures itself in its first ten
COUNTED_STEPS = 6  # of a step without a period, at most: two to learn, two counted, and on CUDA two profiled

# Blocks of an interleaved launch, of some 10 to 20 ms each. A disturbance of a shared machine lasts for some tenths of
# a second, and then another one follows. It hits both sides alike only if they alternate faster.
BLOCKS = 45

# Of the steps with and without synchronisation of gradients.
_SHARE = 0.5  # of the timed steps
_MIN_PAIRS, _MAX_PAIRS = 4, 8  # enough to know their scatter; parameters are restored after each
_BLOCK_STEPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodicPlan(Plan):
    """The plan of launches in which every ``period``-th step takes longer than the others."""

    period: int


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """The job of every rank of a launch that measures: the step to build, and the numbers of steps to run."""

    subject: Subject | ScriptRun
    strategy: Strategy | None  # None for a user's function, which synchronises itself
    settings: Settings
    plan: Plan
    samples_per_step: float | None = None  # the count that the test gave; None to ask the subject
    tokens_per_step: float | None = None  # the same
    _: KW_ONLY
    seed: int = 0  # of the order of synchronised and unsynchronised blocks; the same on all ranks
    growth: bool = True  # whether further steps show if memory grows
    diagnosed: bool = True  # whether further steps show where the time goes
    times_matter: bool = True  # if not, the steps only have to be of full size in memory
    turns: bool = False  # whether the launch is interleaved, and asks for its turns
    blocks: int = BLOCKS  # the most blocks that the timed steps are divided into, where there are turns
    roots: tuple[str, ...] = ()  # of the project and its tests as these ranks have them; files are named relative to it
    stands_for: int | None = None  # the timed steps of the launches that a diagnosis describes; None for this launch

    @property
    def counts(self) -> bool:
        """Returns whether the step times of this launch are part of the result."""
        return self.times_matter and self.stands_for is None

    @property
    def steps_needed(self) -> int:
        """Returns how many optimizer steps a script has to make for this launch, including its first step."""
        after = growth_steps(self.diagnosed_steps) * self.growth
        after += (self.steps_to_diagnose() + 1) * self.diagnosed
        return 1 + self.plan.warmup + self.plan.steps + after

    def steps_to_diagnose(self, steps: int = 1) -> int:
        """Returns how many steps to diagnose: 5, or a longer period of a ``PeriodicPlan``, ``period * steps`` steps."""
        period = self.plan.period * steps if isinstance(self.plan, PeriodicPlan) else 0
        return min(self.diagnosed_steps, max(DIAGNOSED_STEPS, period if period <= MAX_PERIOD else 0))

    @property
    def diagnosed_steps(self) -> int:
        """Returns the number of timed steps in the launch that a diagnosis describes, this launch or an earlier one."""
        return self.plan.steps if self.stands_for is None else self.stands_for


@dataclass(frozen=True, slots=True)
class TraceJob:
    """The folder and the names of the files to which the ranks of a profiled launch write traces."""

    folder: str  # an absolute path
    name: str  # the beginning of each file's name, without a folder


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """The job of every rank of a verification."""

    workload: Workload  # its batches are cut down to a few samples
    strategy: Strategy
    settings: Settings


def settled_steps(plan: Plan) -> int:
    """Returns how many steps precede the counted step in a launch that times none: enough to count Python objects."""
    return max(MIN_WARMUP + 2, plan.warmup + plan.steps)


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """The tasks of every rank in the launch that precedes the timed launches: timing, counting and verifying a step."""

    training: LaunchJob  # without ``timed``, the steps of its plan extend the warm-up
    _: KW_ONLY
    timed: bool = False  # whether the steps of its plan are timed, to know how long steps and launches take
    counted: bool = False  # whether one step is counted
    verified: VerifyJob | None = None
    traced: bool = False  # whether the first steps are traced, and nothing else
    copied: bool = True  # whether copies of the model on several ranks are compared
    reference: Subject | None = None  # whose trace is compared, for the controller

    @property
    def steps_needed(self) -> int:
        """Returns how many optimizer steps a script has to make for this launch, including its first step."""
        plan = self.training.plan
        if self.traced:
            return TRACED_STEPS
        return 1 + settled_steps(plan) + COUNTED_STEPS * self.counted

    @property
    def parts(self) -> int:
        """Returns the number of tasks of this launch, such as timing, counting and verification."""
        return self.timed + self.counted + (self.verified is not None) + self.traced


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergeJob:
    """The job of every rank of a launch that trains by several strategies, to compare their losses and metrics."""

    subject: Workload
    strategies: tuple[Strategy, ...]
    settings: Settings
    steps: int  # of the optimizer
    every: int  # steps to the next point of a curve
    launch: int = 0  # each has weights and batches of its own
    metric: str | None = None  # the name of a number that is evaluated without one


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraining:
    """The loss and metrics of one training on one rank at several steps, up to the first value that is not finite."""

    steps: tuple[int, ...]  # before each point of the curve
    values: Mapping[str, tuple[float, ...]]  # by quantity, of each point
    exact: bool  # whether gradients are averaged as exactly as the precision of training allows
    batches: tuple[int, ...] = ()  # of each step, a checksum of what it was trained on
    buffers: int = 0  # a checksum of the module's floating-point buffers at the end
    weights: int = 0  # the same of all that the model had when it was built
    lost: str = ""  # what this rank found not to be finite


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrepared:
    """The results of a rank for a ``PrepareJob``; fields are None for results that were not requested."""

    timed: RankLaunch | None = None  # without memory peaks and diagnosis
    counts: Counts | None = None
    verification: Verification | None = None
    counting: float = 0.0  # seconds that counting took, without the timed steps
    verifying: float = 0.0  # seconds that verification took
    trace: StepsTrace | None = None
    remarks: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class RankFunction:
    """A function that ranks run, given by name, because the controller does not import the code of ranks."""

    module: str
    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Imports and calls the function; for a script, in another thread, because the script needs the main thread."""
        __tracebackhide__ = True
        function = getattr(import_module(self.module), self.name)
        ctx, job, *others = arguments
        training = job.training if isinstance(job, PrepareJob) else job
        if not isinstance(training.subject, Script):
            return function(*arguments)
        from pytest_ddpperf.training.script_run import ScriptRun

        run = ScriptRun(ctx, training.subject, job.steps_needed, training.roots)
        own = replace(training, subject=run)
        job = replace(job, training=own) if isinstance(job, PrepareJob) else own
        return run.beside(lambda: function(ctx, job, *others))


RUN_LAUNCH = RankFunction("pytest_ddpperf.training.loop", "run_launch")
PREPARE_LAUNCH = RankFunction("pytest_ddpperf.training.preparing", "prepare_launch")
PROBE_LAUNCH = RankFunction("pytest_ddpperf.training.loop", "probe_launch")
CONVERGE_LAUNCH = RankFunction("pytest_ddpperf.training.convergence", "converge_launch")
SIMULATE_LAUNCH = RankFunction("pytest_ddpperf.planner.simulate.launch", "simulate_launch")
TIMELINE_LAUNCH = RankFunction("pytest_ddpperf.planner.simulate.launch", "timeline_launch")
PROFILE_LAUNCH = RankFunction("pytest_ddpperf.training.preparing", "profile_launch")


def rank_file(name: str, rank: int) -> str:
    """Returns the name of the file with a rank's trace."""
    return f"{name}_rank_{rank}_trace.json"


def growth_steps(steps: int) -> int:
    """Returns how many steps are needed to show that memory grows, in a launch that times ``steps``."""
    return max(MIN_GROWTH_STEPS, min(steps, MAX_GROWTH_STEPS))


def blocks_for(steps: int, period: int = 1) -> tuple[int, int]:
    """Returns the number of pairs of blocks to time, with and without synchronisation, and the steps of a block."""
    periods = int(steps * _SHARE) // (2 * period)  # of blocks with, and of blocks without synchronisation
    pairs = min(_MAX_PAIRS, max(_MIN_PAIRS, periods * period // (_BLOCK_STEPS + period)))
    return pairs, max(1, periods // pairs - 1) * period
