"""The words of findings: one table from a finding's code to the sentence that its facts make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.launch import SlowImport
from pytest_ddpperf.records.long_steps import LongSteps
from pytest_ddpperf.records.phases import DATA_WAIT, OTHER
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports import count_changes, ranks_apart
from pytest_ddpperf.reports.lines import words_of
from pytest_ddpperf.reports.upgrades import cannot_run, other_environment, tests_differ, told_counts
from pytest_ddpperf.units import (
    format_change,
    format_count,
    format_percent,
    format_value,
    format_values,
    ordinal,
    power_of_two,
    span,
)

MACHINE = frozenset(
    {"cores_used_by_others", "cores_stolen", "cpu_quota", "hot_cores", "swapping", "measured_beside"}
    | {"gpu_clocks_held_back", "gpu_used_by_others", "gpu_clock_fell", "traced_steps", "oversubscribed"}
)
"""The codes of findings on the machine, which may explain times."""


def finding_text(finding: Finding) -> str:
    """A finding as a sentence; one with a code that is not in the table by its code and its facts."""
    words = WORDS.get(finding.code)
    if words is not None:
        return words(**finding.facts)
    return ": ".join(filter(None, [finding.code, ", ".join(f"{name}={fact}" for name, fact in finding.facts.items())]))


def words_of_note(note: Finding | None) -> str:
    """A note as a sentence; empty if there is none."""
    return "" if note is None else finding_text(note)


def broken_reason(result: Result) -> str:
    """Returns why a benchmark could not be measured."""
    codes = {"broken", "does_not_fit", *APART}
    return next((finding_text(each) for each in result.findings if each.code in codes), "it could not be measured")


def _oversubscribed(ranks: int, threads: int, shared: int, resource: str) -> str:
    joined = "share" if threads == 1 else f"with {threads} threads each are on"
    sharing = f"{format_count(ranks, 'rank')} {joined} {format_count(shared, resource)}"
    return f"oversubscribed: {sharing}; step times say little about real hardware"


def _outlying_launches(outlying: Sequence[tuple[int, float]], launches: int) -> str:
    """Launches by their numbers, from 1, each with its change from the median."""
    noun, verb = ("launch", "is") if len(outlying) == 1 else ("launches", "are")
    named = ", ".join(f"{number} ({format_change(change)})" for number, change in outlying)
    return f"{noun} {named} of {launches} {verb} far from the median step time"


def _memory_growth(  # noqa: PLR0917 - called by name
    device: str, least: float, most: float, ranks: Sequence[int], world_size: int, steps: int, launches: int
) -> str:
    """Growth of a step on the ranks that grow."""
    kind = "CUDA memory" if device == "cuda" else "memory"
    growth = " to ".join(dict.fromkeys(format_values((least, most), "B")))
    seen = f"seen in {format_count(steps, 'step')} of each of {format_count(launches, 'launch')}"
    named = f"rank{'s' * (len(ranks) > 1)} {words_of(list(map(str, ranks)))}"
    where = "every rank" if len(ranks) == world_size > 1 else named
    return f"{kind} grows by {growth} a step on {where}, {seen}: something is kept from step to step"


def _uneven_memory(metric: str, least: float, least_rank: int, most: float, most_rank: int) -> str:
    low, high = format_values((least, most), "B")
    return f"{metric} is {low} on rank {least_rank} and {high} on rank {most_rank}"


def _no_memory_headroom(launches: int, needed: int, free: int) -> str:
    copies, room = format_values((needed, free), "B")
    return (
        f"exposed communication was not measured in {format_count(launches, 'launch')}: copies of what a machine's "
        f"ranks train, to put it back, take {copies} of its memory, and {room} are free for them"
    )


def _not_profiled(what: str) -> str:
    """Returns what the profiler could not see on a GPU, and how to let it."""
    return (
        f"{what}: torch's profiler saw no work of the GPU. Where steps run kernels, CUPTI is not available (a virtual "
        "GPU, another profiler, a restricted container): end other profilers, or allow profiling on this machine"
    )


def _acceptance(worse: Comparison, reason: str, needed: bool, covered: bool) -> str:  # noqa: FBT001 - called by name
    """Returns what became of a worsening that is meant."""
    before, after, unit = worse.baseline or 0.0, worse.series.value, worse.series.unit
    values = (f"{before:g}", f"{after:g}") if unit == "1" else format_values((before, after), unit)
    words = "accepted" if covered else "worse than what is accepted"
    words = words if needed else "not needed here, remove it if no other benchmark needs it"
    return f"{words}: {worse.series.metric} {' -> '.join(values)} ({reason})"


def _seen(seen: int, launches: int, node: str = "") -> str:
    """``2 of 3 launches on node 1 (host)``."""
    return f"{seen} of {format_count(launches, 'launch')}{node and f' on {node}'}"


def _turns(paired: bool) -> str:  # noqa: FBT001 - a fact
    """Who takes turns where not all variants do."""
    return "only both sides of a benchmark take turns" if paired else "launched one after the other, without turns"


def _launches_needed(launches: int, max_time: int | None, known: int | None) -> str:
    """Returns how many launches would decide; ``known`` is the number it rests on where that is small."""
    setting = "" if max_time is None else f" (--ddpperf-max-time={max_time})"
    few = "" if known is None else f", as far as {known} can tell"
    return f"about {format_count(launches, 'launch')}{setting} would decide it{few}"


def _no_launches_decide(any_number: bool, paired: bool) -> str:  # noqa: FBT001 - called by name
    """No number of launches, or none that somebody waits for, would decide."""
    fact = "more launches would not decide it" if any_number else "no practicable number of launches would decide it"
    cures = ["a wider tolerance", "a quieter machine", *([] if paired else ["--ddpperf-against"])]
    return f"{fact}; {', '.join(cures[:-1])} or {cures[-1]} might"


def _busy(now: float | None, then: float | None) -> str:
    """A machine that did other things, so that stored times say nothing."""
    told = [] if now is None else [_taken(now)]
    if then is not None:
        told.append(f"{format_percent(then) if now and then else _taken(then)} when the baseline was saved")
    return f"stored times decide nothing: {words_of(told)}"


def _taken(share: float) -> str:
    """Returns what others took of a machine; 0 for a GPU, and if nothing tells it."""
    return f"others took {format_percent(share)} of the cores" if share else "the machine may have been busy"


def _long_steps(now: LongSteps, before: LongSteps | None) -> str:
    """The number of long steps, their length, their share of the time, how often they come, and where the time goes."""
    are, take = ("is", "takes") if now.number == 1 else ("are", "take")
    reference = "" if before is None else f" (reference: {format_percent(before.share)})"
    often = "" if now.period is None else f"; every {ordinal(now.period)} step"
    where = {DATA_WAIT: "they wait for data", OTHER: "the time is outside of forward, backward and optimizer"}
    phase = "" if now.phase is None else f"; {where.get(now.phase, f'the time is in {now.phase}')}"
    return (
        f"{now.number} of {format_count(now.steps, 'step')} {are} on average {now.factor:.3g} times as long as the "
        f"median step and {take} {format_percent(now.share)} of the time{reference}{often}{phase}"
    )


def _timed_otherwise(then_in_turns: bool) -> str:  # noqa: FBT001 - called by name
    ways = ("with nothing beside them", "in turns with those of other launches")[:: -1 if then_in_turns else 1]
    return f"the baseline's steps were timed {ways[0]}, these {ways[1]}: save it anew, or see --ddpperf-interleave"


def _lenient_verification(precision: str | None, exact_steps: int) -> str:
    """Why a strategy was held to less than others; ``precision`` is its own, None if it is held to convergence."""
    if precision is not None:
        return f"against a single process: tolerance of {precision}: gradients are sent or computed in {precision}"
    return "against a single process: held to convergence only" + (", but for its first steps" if exact_steps else "")


def _left_by_steps(processes: int, threads: int) -> str:
    number, kind = max((processes, "processes"), (threads, "threads"))
    return (
        f"steps leave {kind} behind, {number} after the few steps of one launch: start them once in build(ctx) and end "
        "them in close(), or join them in the step"
    )


def _slow_starts(starting: float, working: float, launches: int, slowest: SlowImport | None, setting: str) -> str:
    """Launches that hardly measure, with the import that takes longest, and the cure."""
    begun, worked = format_values((starting, working), "s")
    told = f"{format_count(launches, 'launch')} spent {begun} on starting and {worked} on steps"
    cures = [f"raise {setting}"]
    if slowest is not None:
        told += f", each {format_value(slowest.seconds, 's')} on the import of {slowest.module}"
        told += f", which is not preloaded because it {slowest.reason}" if slowest.reason else ""
        cures[:0] = ["set preload=auto"] if slowest.reason is None else []
    return f"{told}: {' or '.join(cures)}"


def _predicted(seconds: float, error: float) -> str:
    return (
        f"the network that is stored would take {format_value(seconds, 's')} for the collectives of a step "
        f"(median error {format_percent(error)})"
    )


def _not_on_network(
    reason: str, collective: str, nbytes: float, most: int | None, ranks: int, *, profiled: bool
) -> str:
    """Returns why the stored network does not tell what the collectives of a step take, and what does."""
    why, cure = f"{collective} was not measured", f"; ddpperf network --world-size={ranks} measures it"
    if reason == "too_large" and most is not None:
        size, largest = format_values((nbytes, most), "B")
        why = f"the mean {collective} has {size}, and up to {largest} were measured"
        cure = cure.replace(" measures", f" --max-size={power_of_two(nbytes, above=True)} measures")
    elif reason != "not_swept":
        cure = "" if profiled else "; --ddpperf-profile shows how long they are under way"
        why = f"ddpperf network measures no {collective}"
        if reason == "smaller_groups":
            why = f"it was measured between all {format_count(ranks, 'rank')}, and fewer take part in some of them"
    return f"the network that is stored does not tell what the collectives of a step take: {why}{cure}"


def _on_network(predicted: float, error: float, measured: float | None, how: str, exposed: float | None = None) -> str:
    """What the stored network would have the collectives of a step take, beside what they took or what is exposed."""
    told = _predicted(predicted, error)
    if measured is not None:
        return f"{told}; {how} {format_value(measured, 's')}"
    if not exposed:
        return f"{told}; computing hides them"
    seen = format_value(exposed, "s")
    if exposed <= predicted:
        return f"{told}; computing hides all but {seen} of them"
    return f"{told}; {seen} are exposed, which is more: ranks wait for each other, or share cores or links"


WORDS: Mapping[str, Callable[..., str]] = {
    "broken": lambda reason: reason,
    "read_again": lambda text: text,  # of a file that has the words alone
    "does_not_fit": lambda reason, fitted: (
        f"it does not fit into memory: {reason}{'; the reference fitted' if fitted else ''}"
    ),
    # What the test asks for.
    "target_met": lambda text: f"target met: {text}",
    "target_missed": lambda text: f"target missed: {text}",
    "target_open": lambda text: f"target inconclusive: {text}",
    "never_met": lambda series, value, stored, seen: (
        f"{'the stored value' if stored else 'the target'} of {series.metric}, {format_value(value, series.unit)}, was "
        f"never met: {seen[0]} runs in the history have {' to '.join(format_values(seen[1:], series.unit))}"
    ),
    "settings_of_a_workload": lambda settings: (
        f"{', '.join(f'{name}={value}' for name, value in settings)} is for a Workload: this step sees to that itself"
    ),
    "loader_without_effect": lambda loader: (
        f"loader={loader} has no meaning here: this workload has one batch for all steps"
    ),
    "effective_batch_size": lambda size, micro_batches, ranks: (
        f"effective batch size {size:g}: {micro_batches} micro-batches on each of {format_count(ranks, 'rank')}"
    ),
    "picked_loader": lambda reason: reason,
    "other_batch_size": count_changes.other_batch_size,
    "evaluating": lambda model: (
        f"the model of {model} is in eval mode, without dropout and with fixed statistics of BatchNorm: call train()"
    ),
    "left_by_steps": _left_by_steps,
    "mesh_without_data": lambda mesh, names: (
        f"{mesh}: all ranks count as working on the same samples, for no dimension is one of data, whose name begins "
        f"with {', '.join(names[:-1])} or {names[-1]}"
    ),
    # How it was verified, launched and timed.
    "simulated_with_values": lambda reason: f"simulated on real tensors, which take memory: {reason}",
    "ranks_send_nothing": lambda ranks: (
        f"{ranks} ranks send each other nothing, so each trains alone: let the script join the process group that the "
        "environment of torchrun describes, and wrap its model (DistributedDataParallel, FSDP); or give world_size=1"
    ),
    "unverified": lambda reason: f"not compared with a single process: {reason}",
    "lenient_verification": _lenient_verification,
    "oversubscribed": _oversubscribed,
    "on_network": _on_network,
    "not_on_network": _not_on_network,
    "only_on_network": lambda predicted, error, profiled: (
        f"{_predicted(predicted, error)}; "
        + (
            "the profile does not tell what they took: ranks differ in them, or fewer than all take part in some"
            if profiled
            else "what they took was not measured: --ddpperf-profile measures it"
        )
    ),
    "faster_than_network": lambda predicted, error, measured, how: (
        f"{_on_network(predicted, error, measured, how)}: much less than the network takes. Is something not sent, "
        "or not waited for? Where the network has changed, measure it again with ddpperf network"
    ),
    "small_shared_memory": lambda size: (
        f"shared memory (/dev/shm) holds {format_value(size, 'B')}, which NCCL and data workers may fill: start the "
        "container with --shm-size=1g or more"
    ),
    "background_work": lambda paired, benchmarks: (
        f"{_turns(paired)}: ranks of {', '.join(benchmarks)} work on between steps, as workers of a DataLoader do"
    ),
    "short_of_memory": lambda paired: (
        f"{_turns(paired)}: all benchmarks together would take more than three quarters of the available "
        "memory; fewer in one call take less"
    ),
    "short_of_gpu_memory": lambda paired: (
        f"{_turns(paired)}: all benchmarks together would take more than nine tenths of a GPU's memory, or "
        "what one takes is not known"
    ),
    "suspected": lambda metrics, launches: (
        f"{words_of(metrics)} looked worse in the first {format_count(launches, 'launch')}; those after them had "
        "to confirm it"
    ),
    "not_diagnosed": lambda reason: f"not diagnosed: {reason}",
    "no_time_to_diagnose": lambda setting: (
        f"not diagnosed, for want of time: raise {'--ddpperf-' * (setting == 'budget')}{setting}"
    ),
    "no_time_to_measure": lambda: "only counted, for want of time: raise --ddpperf-budget",
    "few_launches": lambda made, wanted: (
        f"time for {made} of {format_count(wanted, 'launch')} only, so the scatter is hardly known: raise max_time"
    ),
    "slow_starts": _slow_starts,
    "traced_steps": lambda tracers: (
        f"{words_of(tracers)} traced the Python code of timed steps, which slows them: measure without, as with "
        "--no-cov, or compare counts alone with --ddpperf-counts=only"
    ),
    # What is strange about steps and launches.
    "skipped_steps": lambda steps, launches: (
        f"fp16 gradients overflowed in {format_count(steps, 'timed step')} of {format_count(launches, 'launch')}, "
        "which updated nothing and are left out of the times; a longer warm-up lets the scale settle"
    ),
    "unsettled_warmup": lambda slow, launches, slower, warmup: (
        f"warm-up had not settled: in {slow} of {format_count(launches, 'launch')} the first quarter of the timed "
        f"steps was more than {format_percent(slower)} slower than the rest; raise the warm-up "
        f"(now {format_count(warmup, 'step')})"
    ),
    "tf32_override": lambda value, precision: (
        f"NVIDIA_TF32_OVERRIDE={value} is set: NVIDIA's libraries go by it, and not by precision={precision}"
    ),
    "unseen_work": lambda share, seen, launches: (
        f"CUDA events and wall time of a block differ by up to {format_percent(share)} in {_seen(seen, launches)}, so "
        "that wall time counts there: does the step compute on a stream that the current one does not wait for?"
    ),
    "outlying_launches": _outlying_launches,
    "negative_scaling": lambda world_size, base_size, speedup: (
        f"negative scaling: {world_size} ranks do less work per second than {base_size} (x{speedup:.2f})"
    ),
    "grown_work": lambda work, base_size: (
        f"a rank has {work:.2f} times the FLOPs that it has with {format_count(base_size, 'rank')}; "
        "efficiency counts them"
    ),
    "idle_gpus": lambda share, busy: (
        f"GPUs were busy for {format_percent(share)} of the time, less than {format_percent(busy)}: a larger batch, "
        "more workers of the loader or pin_memory=true may keep them busier; the diagnosis tells what they wait for"
    ),
    "strided_gradients": lambda shape: (
        f"DDP copies gradients of shape {shape} into buckets of other strides, which takes time: give their parameters "
        "the memory format that they are used in, by contiguous() or channels_last, before they are wrapped"
    ),
    # Memory.
    "memory_growth": _memory_growth,
    "uneven_memory": _uneven_memory,
    "full_gpu_memory": lambda retries, failures: (
        f"GPU memory was full: the caching allocator gave back what it held {format_count(retries, 'time')} and "
        f"failed {format_count(failures, 'time')}, which costs step time; make the batch smaller"
    ),
    "no_memory_headroom": _no_memory_headroom,
    "synchronisation_kept": lambda reason: (
        f"exposed communication was not measured: {reason}: it must leave out what averages gradients, and a step must "
        "be a whole optimizer step"
    ),
    # What else the machine did.
    "cores_used_by_others": lambda least, most, seen, launches, node="": (
        f"other processes used {span(format_percent, (least, most))} of the cores in {_seen(seen, launches, node)}"
    ),
    "cores_stolen": lambda least, most, seen, launches, node="": (
        f"the hypervisor gave {span(format_percent, (least, most))} of the cores away in {_seen(seen, launches, node)}"
    ),
    "cpu_quota": lambda least, most, seen, launches, node="": (
        f"a CPU quota held processes back for {span(format_percent, (least, most))} of the time "
        f"in {_seen(seen, launches, node)}"
    ),
    "hot_cores": lambda least, most, seen, launches, node="": (
        f"cores were too hot and slowed down {span(lambda number: format_count(int(number), 'time'), (least, most))} "
        f"in {_seen(seen, launches, node)}"
    ),
    "swapping": lambda least, most, seen, launches, node="": (
        f"the machine swapped {span(lambda size: format_value(size, 'B'), (least, most))} "
        f"in {_seen(seen, launches, node)}"
    ),
    "gpu_clocks_held_back": lambda reason, seen, launches: (
        f"GPU clocks were held back ({reason}) in {_seen(seen, launches)}"
    ),
    "gpu_used_by_others": lambda pid, nbytes, seen, launches: (
        f"process {pid} used {'' if nbytes is None else format_value(nbytes, 'B') + ' of '}a GPU of the ranks "
        f"in {_seen(seen, launches)}: outside_allocator is left out"
    ),
    "unread_gpus": lambda reasons, seen, launches: (
        f"clocks and other processes of GPUs are not known in {_seen(seen, launches)}: {'; '.join(reasons)}"
    ),
    "mig_instances": lambda: "the driver tells neither the utilisation of MIG instances nor other processes on them",
    "no_allocator_statistics": lambda: "CUDA's memory allocator keeps no statistics: metrics of memory are left out",
    "gpu_clock_fell": lambda lowest, highest: (
        f"the slowest GPU's clock was {lowest / 1e6:.0f} MHz in one launch and {highest / 1e6:.0f} MHz in another"
    ),
    "last_attempt": lambda attempt: f"attempt {attempt} of its test: what earlier ones measured is left out",
    "measured_beside": lambda pid, folder: (
        f"another run of pytest measured on this machine{f' (process {pid}' * bool(pid)}"
        f"{f' in {folder}' * bool(folder)}{')' * bool(pid)}: times of both are longer for it"
    ),
    # The baseline that the result becomes.
    "thin_baseline": lambda launches, enough: (
        f"the stored baseline rests on {format_count(launches, 'launch')} only, too few to know its scatter: "
        f"comparisons with it will often be inconclusive; raise max_time to {enough:g} s and save again"
    ),
    "busy_baseline": lambda lost: (
        "the machine was busy while the baseline was saved"
        f"{f' (others took {format_percent(lost)} of the cores)' if lost else ''}: its times alone decide nothing; "
        "its commit is the reference"
    ),
    # What a verdict rests on.
    "unconfirmed": lambda: (
        "worse in these launches, but not suspicious in those before them, so nothing confirms it: run it again"
    ),
    "to_confirm": lambda: "worse, but the session ended before fresh launches could confirm it: run it again",
    "no_change_from": lambda baseline: f"no change can be told from a baseline of {baseline:g}",
    "proven_earlier": lambda launches: (
        f"shown by the first {format_count(launches, 'launch')} not to be worse by the margin; it looked better, "
        "and was measured on"
    ),
    "stale_baseline": lambda: "better than the baseline by more than the tolerance: the baseline is stale",
    "looks_better": lambda: "looks better, though not for certain",
    "told_late": lambda launches: f"told by {format_count(launches, 'launch')} after the verdict",
    "single_launch": lambda: "one launch on either side tells nothing about scatter; measure at least two",
    "launches_needed": _launches_needed,
    "no_launches_decide": _no_launches_decide,
    "busy": _busy,
    "other_host": lambda host: f"stored times decide nothing: they are of another machine, {host}",
    "other_clock": lambda then, now: (
        f"stored times decide nothing: the GPU's clock was {then / 1e6:.0f} MHz then and is {now / 1e6:.0f} MHz now"
    ),
    "gross": lambda: "a gross slowdown compared with the stored times, on a machine that was not busy",
    "stored_times": lambda: "compared with stored times, which show gross slowdowns alone",
    "not_gross": lambda gross: (
        f"slower than the stored times, and not shown to be by more than {format_percent(gross)}, which they could show"
    ),
    "not_the_code": lambda change: (
        f"not this repository's code: the commit of the baseline takes as long now, {format_change(change)} compared "
        "with the stored times; packages, data or the machine have changed: --ddpperf-against-python compares packages"
    ),
    "slower_than_stored": lambda change, differ: (
        f"this run and the commit of the baseline both take {format_change(change)} compared with the stored times: "
        f"packages, data or the machine have changed{': ' + ', '.join(differ) if differ else ''}"
    ),
    "unpaired": lambda reason: f"times: only gross slowdowns can fail ({reason})",
    "long_steps": _long_steps,
    "rare_long_steps": lambda whole: (
        f"all steps together take {format_change(whole)}, though most launches do not: long steps come in few of them; "
        "more steps in a launch (steps=...) show whether they come back"
    ),
    "stands_in_for_step_time": lambda: (
        "CPU time stands in for the step time, which remains undecided: "
        "more work takes more CPU time on a busy machine, too"
    ),
    # What is meant to be worse.
    "acceptance": _acceptance,
    # What cannot be compared.
    "incomparable": lambda differs: f"the baseline is not comparable: {', '.join(differs)}",
    "other_kind": lambda then, now: f"the baseline has this metric as {then}, not as {now}",
    "other_step_time": lambda: "saved before step_time was the mean of all steps: save again",
    "other_base": lambda then, now: f"the baseline's speedup is over {then}, this one over {now}",
    "timed_otherwise": _timed_otherwise,
    "partners_do_not_fit": lambda names: (
        "the baseline's steps were timed in turns with those of other launches, these with nothing beside them, for "
        f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not fit into memory: time each alone with "
        "--ddpperf-interleave=false, or save it anew"
    ),
    "loss_of_other_step": lambda then, now: (
        f"the baseline's loss is that after {format_count(then, 'step')}, this one after {now}"
    ),
    "not_in_reference": lambda paired: f"not in {count_changes.reference_text(paired)}",
    "no_counts_in_reference": lambda paired: f"{count_changes.reference_text(paired)} has no counts",
    "lost_metric": lambda metric, paired: (
        f"{count_changes.reference_text(paired)} has {metric}, this run does not: it is gated no more"
        + ("" if paired else "; --ddpperf-save accepts that")
    ),
    "lost_counts": lambda paired: (
        f"{count_changes.reference_text(paired)} has counts, this run has none: none is gated"
    ),
    "alike_baselines": lambda names: (
        f"there {'is a baseline' if len(names) == 1 else 'are baselines'} for "
        f"{', '.join(f'`{name}`' for name in names)}: options are part of a benchmark's identity"
    ),
    "other_facts": lambda differ: f"the environment differs from the baseline's: {', '.join(differ)}",
    # Counts.
    "no_device_counts": lambda counts: _not_profiled(f"not counted: {words_of(counts)}"),
    "calls_unseen": lambda library: f"{library} is imported: its collectives are not counted, torch.distributed's are",
    "empty_profile": lambda: _not_profiled("communication was not profiled"),
    "count_changed": lambda metric, then, now: "; ".join(count_changes.difference_text(metric, then, now)),
    "unsteady_count": lambda reason, doubled: (
        f"its mean has doubled, and steps differ without a rule ({reason}), so times have to tell"
        if doubled
        else f"not the same in every step, so not compared exactly: {reason}"
    ),
    "fewer_counted": count_changes.fewer_counted,
    "ranks_apart": ranks_apart.ranks_apart,
    "same_data": ranks_apart.same_data,
    "parameters_apart": ranks_apart.parameters_apart,
    "not_compared": lambda metrics: (
        f"not compared: {words_of(list(metrics))} (the baseline is older); --ddpperf-save renews it"
    ),
    "equal_batches": lambda ranks: (
        f"ranks {words_of(list(map(str, ranks)))} train on the same batches; a loader that knows the rank gives others"
    ),
    "other_work": count_changes.other_work,
    "ungated_counts": count_changes.ungated_counts,
    "unsure_counts": count_changes.unsure_counts,
    # The other revision.
    "cannot_run": cannot_run,
    "other_environment": other_environment,
    "told_counts": told_counts,
    "tests_differ": tests_differ,
    "no_name_to_look_up": lambda option, names: (
        f"this checkout's on both sides, for want of a name at the top of a module that {option} could look up: "
        f"{', '.join(names)}"
    ),
    "tool_measured": lambda tool: f"{tool} itself is what measures: both sides run this checkout's",
    "same_code": lambda: (
        "neither side imported a module from its checkout: both ran the same code; "
        "a module or namespace package that was installed from elsewhere is not looked for there"
    ),
}
"""Each function takes the facts of one code by name and gives the sentence."""
