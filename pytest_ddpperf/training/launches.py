"""The launches besides the timed one: preparing, profiled, and probing a limit of memory. Importable without torch."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.instruments.host import kernel_table, kernel_text
from pytest_ddpperf.instruments.memory import most_taken, watch_memory
from pytest_ddpperf.instruments.torch_internals import compiled_graphs, warmed_up
from pytest_ddpperf.launch.rank import seed_as_at_the_start
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob, RankPrepared
from pytest_ddpperf.training.loop import begin_together, checked_run, run_launch, time_steps, works_in_background

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.instruments.counting.counting import Countable
    from pytest_ddpperf.records.communication import RankProfile
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.records.launch import RankLaunch
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.step import Step

MIN_WARMUP = 2  # before counting: DDP rebuilds its buckets after the first step
PROFILED_STEPS = 5

_STATUS = Path("/proc/self/status")
_SLACK = 512 * 2**20  # libraries reserve memory at first use, which differed by 100 MiB from launch to launch
_THREAD_STACK = 8 * 2**20
# What libraries say when the kernel refuses them memory; oneDNN only says that it could not do its work.
_SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "could not create a primitive",
    "could not create a memory object",
    "can't start new thread",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def prepare_launch(ctx: RankView, job: PrepareJob) -> RankPrepared:
    """Does the tasks of the job on this rank; a collective, called on every rank of a launch of its own.

    Timing comes first, so that its memory figure is that of steps alone; counting continues with the same step.
    Verification builds its own models and finds random numbers, memory and compilers as in a fresh process.
    """
    timed, counts, verification, seconds = None, None, None, 0.0
    if job.timed:
        timed, counts, seconds = _timed_and_counted(ctx, job)
    elif job.counted:
        # Counts the step of the training that would be counted if steps had been timed before.
        plan = job.training.plan
        counts = count_launch(ctx, replace(job.training, plan=replace(plan, warmup=plan.warmup + plan.steps)))
    if job.verified is not None:
        from pytest_ddpperf.training.correctness.verifier import verify_launch

        begun = time.monotonic()
        if job.parts > 1:
            _clean_up(ctx)
        verification = verify_launch(ctx, job.verified)
        seconds += time.monotonic() - begun
    return RankPrepared(timed=timed, counts=counts, verification=verification, seconds=seconds)


def count_launch(ctx: RankView, job: LaunchJob) -> Counts:
    """Counts what one step of the job does on this rank after the warm-up; the number of timed steps is ignored."""
    from pytest_ddpperf.instruments.counting.counting import count_warm_step
    from pytest_ddpperf.training.step import build_step

    with closing(build_step(ctx, job)) as step:
        compiled = warmed_up(checked_run(ctx, step), max(MIN_WARMUP, job.plan.warmup))
        return count_warm_step(step.run, _countable(ctx, step), compiled)


def _countable(ctx: RankView, step: Step) -> Countable:
    from pytest_ddpperf.instruments.counting.counting import Countable

    return Countable(device=ctx.device, modules=step.modules, optimizers=step.optimizers, period=step.work_period)


def _timed_and_counted(ctx: RankView, job: PrepareJob) -> tuple[RankLaunch, Counts | None, float]:
    """Returns the timed steps, the counts of a later step, and the seconds that counting took."""
    from pytest_ddpperf.instruments.counting.counting import count_warm_step
    from pytest_ddpperf.training.step import build_step

    plan = job.training.plan
    watch_memory(ctx.device)  # from here on peaks are the step's own
    with closing(build_step(ctx, job.training)) as step:
        compiled = warmed_up(checked_run(ctx, step), plan.warmup)
        timed = time_steps(ctx, job.training, step, warmup=plan.warmup, turns=None)
        taken = most_taken() if ctx.device.type == "cpu" else None
        timed = replace(timed, background=works_in_background(), taken=taken)
        begin_together(None)  # work that follows on one rank must not disturb the last timed step of another
        begun, counts = time.monotonic(), None
        if job.counted:
            for _ in range(MIN_WARMUP - plan.warmup - plan.steps):
                step.run()
            counts = count_warm_step(step.run, _countable(ctx, step), compiled)
        return timed, counts, time.monotonic() - begun


def _clean_up(ctx: RankView) -> None:
    """Restores random numbers, memory and compilers to the state of a fresh process."""
    import torch

    gc.collect()  # a model and its wrapper hold each other
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()
    if compiled_graphs():
        torch.compiler.reset()  # else shapes that differ from earlier ones would be compiled as dynamic
    seed_as_at_the_start()


def profile_launch(ctx: RankView, job: LaunchJob) -> RankProfile:
    """Profiles what a few steps of the job send and compute on this rank, after the warm-up of the job's plan."""
    import torch.distributed as dist

    from pytest_ddpperf.instruments.profile.profiling import profile_steps
    from pytest_ddpperf.training.step import build_step

    with closing(build_step(ctx, job)) as step:
        for _ in range(job.plan.warmup):
            step.run()
        dist.barrier()
        return profile_steps(step.run, PROFILED_STEPS * step.period, ctx.device, step.modules)


def probe_launch(ctx: RankView, job: LaunchJob, memory_limit: int | None) -> RankLaunch:
    """Runs the launch under a limit of this rank's memory in bytes, which raises MemoryError; None for no limit.

    No steps follow the timed ones, because the timed ones show whether they fit. Their times are not to be trusted:
    steps may compile, or overflow in fp16.
    """
    with limited(ctx.device, memory_limit):
        return run_launch(ctx, replace(job, growth=False, diagnosed=False, times_matter=False))


@contextmanager
def limited(device: torch.device, limit: int | None) -> Iterator[None]:
    """Within, this process may use ``limit`` bytes more than now; errors for want of memory become MemoryError.

    On CUDA the caching allocator keeps to the limit exactly. On CPU the kernel limits private writable memory
    (RLIMIT_DATA), reserved or in use, so the kernel's limit lies a quarter and half a GiB higher. It keeps the machine
    safe; the measured peak decides whether the limit was kept. (RLIMIT_AS would also count the 64 MiB and more that
    malloc sets aside for each thread.)
    """
    lift = None if limit is None else _impose(device, limit)
    try:
        yield
    except DdpperfError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or not any(sign in str(error) for sign in _SIGNS):
            raise
        raise MemoryError(str(error).partition("\n")[0]) from error
    finally:
        if lift is not None:
            lift()


def _impose(device: torch.device, limit: int) -> Callable[[], object]:
    """Imposes the limit on this process; returns the function that lifts it."""
    import torch

    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        return lambda: torch.cuda.set_per_process_memory_fraction(1.0, device)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    facts = kernel_table(kernel_text(_STATUS).replace(":", ""))
    if "VmData" not in facts:  # what RLIMIT_DATA counts (proc(5)), in KiB
        raise OSError(f"{_STATUS} does not tell VmData, from which a memory limit on the CPU starts: use device=cuda")
    used = facts["VmData"] * 1024
    allowed = used + limit + limit // 4 + _SLACK + torch.get_num_threads() * _THREAD_STACK
    ceilings = [ceiling for ceiling in (allowed, soft, hard) if ceiling != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(ceilings), hard))
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
