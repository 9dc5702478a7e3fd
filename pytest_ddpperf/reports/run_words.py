"""The words of findings on how a benchmark was run, launched, timed and verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from pytest_ddpperf.records.launch import SlowImport
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.lines import words_of
from pytest_ddpperf.units import format_change, format_count, format_percent, format_value, format_values, power_of_two


def _predicted(seconds: str, error: str) -> str:
    return f"ddpperf network predicts {seconds} for the collectives of a step (median error {error})"


def _outlying_launches(outlying: Sequence[tuple[int, float]], launches: int) -> str:
    noun, verb = ("launch", "is") if len(outlying) == 1 else ("launches", "are")
    named = ", ".join(f"{number} ({format_change(change)})" for number, change in outlying)
    return f"{noun} {named} of {launches} {verb} far from the median step time"


def _memory_growth(  # noqa: PLR0917 - called by name
    device: str, least: float, most: float, ranks: Sequence[int], world_size: int, steps: int, launches: int
) -> str:
    kind = "CUDA memory" if device == "cuda" else "memory"
    growth = " to ".join(dict.fromkeys(format_values((least, most), "B")))
    seen = f"seen in {format_count(steps, 'step')} of each of {format_count(launches, 'launch')}"
    named = f"rank{'s' * (len(ranks) > 1)} {words_of(ranks)}"
    where = "every rank" if len(ranks) == world_size > 1 else named
    return f"{kind} grows by {growth} a step on {where}, {seen}: steps keep memory that they do not free"


def _slow_starts(starting: float, working: float, launches: int, slowest: SlowImport | None, setting: str) -> str:
    begun, worked = format_values((starting, working), "s")
    told = f"{format_count(launches, 'launch')} spent {begun} on their start and {worked} on steps"
    cures = [f"raise {setting}"]
    if slowest is not None:
        told += f", each {format_value(slowest.seconds, 's')} on the import of {slowest.module}"
        told += f", which is not preloaded because it {slowest.reason}" if slowest.reason else ""
        cures[:0] = ["set preload=auto"] if slowest.reason is None else []
    return f"{told}: {' or '.join(cures)}"


def _without_gpu(sites: Sequence[CallSite]) -> str:
    lines: dict[str, list[str]] = {}
    for site in sorted(sites, key=lambda one: (one.file, one.line)):
        lines.setdefault(site.part, []).append(f"{site.file}:{site.line}")
    told = ", ".join(f"{call} at {words_of(where)}" for call, where in lines.items())
    return f"ranks have no GPU, so the script's GPU calls were ignored or done on the CPU: {told}"


def _not_on_network(
    reason: str, collective: str, nbytes: float, most: int | None, ranks: int, *, profiled: bool
) -> str:
    why, cure = f"{collective} was not measured", f"; run ddpperf network --world-size={ranks}"
    if reason == "too_large" and most is not None:
        size, largest = format_values((nbytes, most), "B")
        why = f"the mean {collective} has {size}, but only sizes up to {largest} were measured"
        cure += f" --max-size={power_of_two(nbytes, above=True)}"
    elif reason != "not_swept":
        cure = "" if profiled else "; --ddpperf-profile measures it, except for a Script"
        why = f"that command measures no {collective}"
        if reason == "smaller_groups":
            why = f"all {format_count(ranks, 'rank')} were measured together, but some collectives are of fewer ranks"
    return f"ddpperf network cannot predict the time of a step's collectives: {why}{cure}"


def _on_network(predicted: float, error: float, measured: float | None, how: str, exposed: float | None = None) -> str:
    told = _predicted(format_value(predicted, "s"), format_percent(error))
    if measured is not None:
        return f"{told}; {how} {format_value(measured, 's')}"
    if not exposed:
        return f"{told}; they are hidden behind computation"
    seen = format_value(exposed, "s")
    if exposed <= predicted:
        return f"{told}; all but {seen} are hidden behind computation"
    return f"{told}; {seen} are exposed, more than predicted: ranks wait for each other, or share cores or links"


def _scaling_law(  # noqa: PLR0917 - called by name
    points: Sequence[tuple[str, int]],
    law: str,
    serial: float,
    interval: Interval | None,
    pays: int | None,
    sharing: Sequence[int],
) -> str:
    alike = groupby(points, itemgetter(0))
    told = ", ".join(f"{word} with {' and '.join(str(size) for _, size in sizes)}" for word, sizes in alike)
    ends = "" if interval is None else f" [{100 * interval.low:.1f} .. {100 * interval.high:.1f}]"
    share = f"{format_percent(min(max(0.0, serial), 1.0))}{ends} ({law.capitalize()})"
    end = "" if pays is None else f"; from {format_count(pays, 'rank')} on, one more rank adds under half a rank's work"
    out = f"; omitted: runs with {' and '.join(map(str, sharing))} ranks, which share cores or GPUs" if sharing else ""
    return f"{told} ranks; serial fraction {share}{end}{out}"


WORDS_OF_RUNS: Mapping[str, str | Callable[..., str]] = {
    "broken": "{reason}",
    "read_again": "{text}",  # read from a results file, which has only texts
    "does_not_fit": lambda reason, fitted: (
        f"the benchmark does not fit into memory: {reason}{'; the reference fits' if fitted else ''}"
    ),
    # What the test asks for.
    "target_met": "target met: {text}",
    "target_missed": "target missed: {text}",
    "target_open": "target inconclusive: {text}",
    "never_met": lambda series, value, stored, seen: (
        f"{'the stored value' if stored else 'the target'} of {series.metric}, {format_value(value, series.unit)}, was "
        f"never met: {seen[0]} runs in the history have {' to '.join(format_values(seen[1:], series.unit))}"
    ),
    "settings_of_a_workload": lambda settings: (
        f"{', '.join(f'{name}={value}' for name, value in settings)} has no effect on a step, only on a Workload"
    ),
    "loader_without_effect": "loader={loader} has no effect: this Workload has one batch for all steps",
    "effective_batch_size": "effective batch size {size:g}: {micro_batches} micro-batches on each of {ranks:rank}",
    "picked_loader": "{reason}",
    "other_batch_size": lambda size, samples, passes: (
        f"samples_per_step={samples:g}, but {f'a step has {passes} backward passes and ' * (passes > 1)}the tensors of "
        f"a batch begin with a dimension of {size}: rates would be wrong; give samples_per_step={passes * size} if "
        "that is the number of samples"
    ),
    "evaluating": "the model of {model} is in eval mode, which switches dropout off and fixes BatchNorm: call "
    "model.train()",
    "left_by_steps": lambda processes, threads: (
        "steps start {1} and do not end them, {0} in the few steps of one launch: start them once in build(ctx) and "
        "end them in close(), or join them in the step"
    ).format(*max((processes, "processes"), (threads, "threads"))),
    "without_gpu": _without_gpu,
    "mesh_without_data": lambda mesh, names: (
        f"{mesh}: the plugin assumes that all ranks work on the same samples, because no dimension has a name that "
        f"begins with {', '.join(names[:-1])} or {names[-1]}; if their samples differ, rename the dimension"
    ),
    # How it was verified, launched and timed.
    "simulated_with_values": "simulated with real tensors instead of FakeTensors: {reason}",
    "ranks_send_nothing": "{ranks} ranks send each other nothing, so each trains alone: let the script call "
    "init_process_group, as under torchrun, and wrap its model (DistributedDataParallel, FSDP); or give world_size=1",
    "unverified": "gradients were not compared with a single process: {reason}",
    "lenient_verification": lambda precision, exact_steps: (
        f"compared with a single process only by how the loss falls{', once gradients are inexact' * bool(exact_steps)}"
        if precision is None
        else f"compared with a single process by the tolerance of {precision}, the precision of the gradients"
    ),
    "oversubscribed": lambda ranks, threads, shared, resource: (
        f"oversubscribed: {format_count(ranks, 'rank')} "
        f"{'share' if threads == 1 else f'with {threads} threads each are on'} {format_count(shared, resource)}; step "
        "times say little about real hardware"
    ),
    "on_network": _on_network,
    "not_on_network": _not_on_network,
    "only_on_network": lambda predicted, error, profiled: "{}; the real time was not measured: {}".format(
        _predicted(format_value(predicted, "s"), format_percent(error)),
        "ranks ran different collectives, or not all ranks joined each one"
        if profiled
        else "--ddpperf-profile measures it, except for a Script",
    ),
    "faster_than_network": _predicted("{predicted:s}", "{error:%}")
    + "; {how} {measured:s}, much less: maybe some data "
    "are not sent, or the step does not wait for collectives. If the network has changed, run ddpperf network again",
    "small_shared_memory": "shared memory (/dev/shm) holds {size:B}, which NCCL and data workers may fill: start the "
    "container with --shm-size=1g or more",
    "background_work": "{paired:turns}: ranks of {benchmarks:list} also compute between steps, for example in "
    "workers of a DataLoader",
    "short_of_memory": "{paired:turns}: all benchmarks together would take more than three quarters of the available "
    "memory; measure fewer in one call",
    "short_of_gpu_memory": "{paired:turns}: all benchmarks together would take more than nine tenths of a GPU's "
    "memory, or the memory that one of them needs is unknown; measure fewer in one call",
    "suspected": "{metrics:and} looked worse in the first {launches:launch}; only later launches can confirm a failure",
    "not_diagnosed": "the step was not diagnosed: {reason}",
    "no_time_to_diagnose": "the step was not diagnosed, because {setting} left no time for it",
    "no_time_to_measure": "steps were not timed, because no time was left: raise --ddpperf-budget",
    "few_launches": "there was time for only {made} of {wanted:launch}, so the variation is uncertain: raise max_time",
    "slow_starts": _slow_starts,
    "traced_steps": "{tracers:and} traced the Python code of timed steps, which slows them: switch tracing off, for "
    "example with --no-cov, or compare only counts with --ddpperf-counts=only",
    # What is strange about steps and launches.
    "skipped_steps": "fp16 gradients overflowed in {steps:timed step} of {launches:launch}, so these steps updated "
    "nothing and the times omit them; raise the warm-up, in which the loss scale falls",
    "unsettled_warmup": "warm-up was too short: in {slow} of {launches:launch} the first quarter of the timed steps "
    "was more than {slower:%} slower than the rest; raise the warm-up (now {warmup:step})",
    "tf32_override": "NVIDIA_TF32_OVERRIDE={value} is set, so NVIDIA's libraries ignore precision={precision}",
    "unseen_work": "CUDA events and wall time differ by up to {share:%} over blocks of steps in {seen} of "
    "{launches:launch}, so wall time counts; if steps compute on other streams, let the current stream wait for them",
    "outlying_launches": _outlying_launches,
    "negative_scaling": "negative scaling: {world_size} ranks do less work per second than {base_size} "
    "(x{speedup:.2f})",
    "scaling_law": _scaling_law,
    "scaling_loss": "{ranks} ranks lose {lost:s} of a step of {step:s}: {kinds:causes}",
    "best_variants": lambda fastest, leanest, unbeaten: "; ".join(
        f"{words} {' or '.join(names)}"
        for words, names in (
            ("fastest variant:", fastest),
            ("least memory:", leanest),
            ("no variant is faster and needs less memory than", unbeaten),
        )
        if names
    ),
    "grown_work": "a rank computes {work:.2f} times as many FLOPs as with {base_size:rank}; efficiency includes this",
    "idle_gpus": "GPUs were busy for {share:%} of the time, less than {busy:%}: a larger batch, more workers of the "
    "loader or pin_memory=true may keep them busier; the diagnosis shows what they wait for",
    "strided_gradients": "gradients of shape {shape} have other strides than DDP's buckets, so DDP copies them, which "
    "takes time: before DDP wraps the model, convert its parameters to the memory format of the steps "
    "(contiguous() or channels_last)",
    # Memory.
    "memory_growth": _memory_growth,
    "uneven_memory": "{metric} is {least:B} on rank {least_rank} and {most:B} on rank {most_rank}",
    "full_gpu_memory": "GPU memory was full: the caching allocator emptied its cache {retries:time} and failed "
    "{failures:time}, which costs step time; use a smaller batch",
    "no_memory_headroom": "exposed communication was not measured in {launches:launch}: it needs copies of the ranks' "
    "training state, {needed:B} on a machine, but only {free:B} of memory are free",
    "synchronisation_kept": "exposed communication was not measured: {reason}: let unsynchronised() skip the averaging "
    "of gradients, and let a step be a whole optimizer step",
}
