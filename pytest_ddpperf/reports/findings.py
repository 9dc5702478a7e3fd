"""The words of findings: one table from a finding's code to the sentence that its facts make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.units import format_change, format_count, format_percent, format_value, format_values

CONFIRMED = "judged by fresh ones alone"  # launches that follow a suspicion


def finding_text(finding: Finding) -> str:
    """A finding as a sentence; one with a code that is not in the table by its code and its facts."""
    words = WORDS.get(finding.code)
    if words is not None:
        return words(**finding.facts)
    facts = ", ".join(f"{name}={value}" for name, value in finding.facts.items())
    return f"{finding.code}: {facts}" if facts else finding.code


def broken_reason(result: Result) -> str:
    """Why a benchmark could not be measured."""
    reasons = [finding_text(finding) for finding in result.findings if finding.code == "broken"]
    return next(iter(reasons), "it could not be measured")


def _oversubscribed(ranks: int, shared: int, resource: str) -> str:
    """Ranks that share cores or GPUs."""
    sharing = f"{format_count(ranks, 'rank')} share {format_count(shared, resource)}"
    return f"oversubscribed: {sharing}; step times say little about real hardware"


def _skipped_steps(steps: int, launches: int) -> str:
    """Steps that updated nothing."""
    where = f"{format_count(steps, 'timed step')} of {format_count(launches, 'launch')}"
    return (
        f"fp16 gradients overflowed in {where}, which updated nothing and are left out of the times; "
        "a longer warm-up lets the scale settle"
    )


def _unsettled_warmup(slow: int, launches: int, slower: float, warmup: int) -> str:
    """First steps that were slower than the rest."""
    return (
        f"warm-up had not settled: in {slow} of {format_count(launches, 'launch')} the first quarter of the timed "
        f"steps was more than {format_percent(slower)} slower than the rest; raise the warm-up "
        f"(now {format_count(warmup, 'step')})"
    )


def _outlying_launches(outlying: Sequence[tuple[int, float]], launches: int) -> str:
    """Launches by their numbers, from 1, each with its change from the median."""
    noun, verb = ("launch", "is") if len(outlying) == 1 else ("launches", "are")
    named = ", ".join(f"{number} ({format_change(change)})" for number, change in outlying)
    return f"{noun} {named} of {launches} {verb} far from the median step time; outlying launches hardly count"


def _memory_growth(  # noqa: PLR0917 - called by name
    device: str, least: float, most: float, ranks: Sequence[int], world_size: int, steps: int, launches: int
) -> str:
    """Growth of a step on the ranks that grow."""
    kind = "CUDA memory" if device == "cuda" else "memory"
    growth = " to ".join(dict.fromkeys(format_values((least, most), "B")))
    seen = f"seen in {format_count(steps, 'step')} of each of {format_count(launches, 'launch')}"
    where = _ranks_text(ranks, world_size)
    return f"{kind} grows by {growth} a step on {where}, {seen}: something is kept from step to step"


def _ranks_text(ranks: Sequence[int], world_size: int) -> str:
    """``rank 1``, ``ranks 0 and 2``, or ``every rank``."""
    if len(ranks) == world_size > 1:
        return "every rank"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _uneven_memory(metric: str, least: float, least_rank: int, most: float, most_rank: int) -> str:
    """The ranks with the least and the most memory."""
    low, high = format_values((least, most), "B")
    return f"{metric} is {low} on rank {least_rank} and {high} on rank {most_rank}"


def _full_gpu_memory(retries: int, failures: int) -> str:
    """What CUDA's caching allocator did for want of memory."""
    return (
        f"GPU memory was full: the caching allocator gave back what it held {format_count(retries, 'time')} and "
        f"failed {format_count(failures, 'time')}, which costs step time; make the batch smaller"
    )


def _no_memory_headroom(launches: int, needed: int, free: int) -> str:
    """Copies of the training state that did not fit."""
    copies, room = format_values((needed, free), "B")
    return (
        f"exposed communication was not measured in {format_count(launches, 'launch')}: copies of what a machine's "
        f"ranks train, to put it back, take {copies} of its memory, and {room} are free for them"
    )


def _span(text: Callable[[float], str], least: float, most: float) -> str:
    """``12 % to 38 %``; one figure where both ends read the same."""
    return " to ".join(dict.fromkeys((text(least), text(most))))


def _seen(seen: int, launches: int) -> str:
    """``2 of 3 launches``."""
    return f"{seen} of {format_count(launches, 'launch')}"


def _gpu_used_by_others(pid: int, nbytes: int | None, seen: int, launches: int) -> str:
    """A process of somebody else, with its memory where the driver tells it."""
    size = "" if nbytes is None else f" ({format_value(nbytes, 'B')} of its memory)"
    return f"process {pid} used a GPU of the ranks{size} in {_seen(seen, launches)}"


def _turns(paired: bool) -> str:  # noqa: FBT001 - a fact
    """Who takes turns where not all variants do."""
    return "only both sides of a benchmark take turns" if paired else "launched one after the other, without turns"


WORDS: Mapping[str, Callable[..., str]] = {
    "text": lambda text: text,
    "broken": lambda reason: reason,
    # What the test asks for.
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
    # How it was verified, launched and timed.
    "unverified": lambda reason: f"not held against a single process: {reason}",
    "lenient_verification": lambda leniency: f"against a single process: {leniency}",
    "oversubscribed": _oversubscribed,
    "background_work": lambda paired, benchmarks: (
        f"{_turns(paired)}: ranks of {', '.join(benchmarks)} work on in the background"
    ),
    "short_of_memory": lambda paired: (
        f"{_turns(paired)}: all benchmarks together would take more than three quarters of the available "
        "memory; fewer in one call take less"
    ),
    "suspected": lambda metrics, launches: (
        f"{' and '.join(metrics)} looked worse in {format_count(launches, 'launch')}; {CONFIRMED}"
    ),
    "not_diagnosed": lambda reason: f"not diagnosed: {reason}",
    "few_launches": lambda made, wanted, max_time: (
        f"time for {made} of {format_count(wanted, 'launch')} only: raise max_time, which is {max_time:g} s"
    ),
    # What is strange about steps and launches.
    "skipped_steps": _skipped_steps,
    "unsettled_warmup": _unsettled_warmup,
    "outlying_launches": _outlying_launches,
    "negative_scaling": lambda world_size, base_size, speedup: (
        f"negative scaling: {world_size} ranks do less work per second than {base_size} (x{speedup:.2f})"
    ),
    # Memory.
    "memory_growth": _memory_growth,
    "uneven_memory": _uneven_memory,
    "full_gpu_memory": _full_gpu_memory,
    "no_memory_headroom": _no_memory_headroom,
    # What else the machine did.
    "cores_used_by_others": lambda least, most, seen, launches: (
        f"other processes used {_span(format_percent, least, most)} of the cores in {_seen(seen, launches)}"
    ),
    "cores_stolen": lambda least, most, seen, launches: (
        f"the hypervisor gave {_span(format_percent, least, most)} of the cores away in {_seen(seen, launches)}"
    ),
    "cpu_quota": lambda least, most, seen, launches: (
        f"a CPU quota held processes back for {_span(format_percent, least, most)} of the time "
        f"in {_seen(seen, launches)}"
    ),
    "hot_cores": lambda least, most, seen, launches: (
        f"cores were too hot and slowed down {_span(lambda number: format_count(int(number), 'time'), least, most)} "
        f"in {_seen(seen, launches)}"
    ),
    "swapping": lambda least, most, seen, launches: (
        f"the machine swapped {_span(lambda nbytes: format_value(nbytes, 'B'), least, most)} in {_seen(seen, launches)}"
    ),
    "gpu_clocks_held_back": lambda reason, seen, launches: (
        f"GPU clocks were held back ({reason}) in {_seen(seen, launches)}"
    ),
    "gpu_used_by_others": _gpu_used_by_others,
    "gpu_clock_fell": lambda lowest, highest: (
        f"the slowest GPU's clock was {lowest / 1e6:.0f} MHz in one launch and {highest / 1e6:.0f} MHz in another"
    ),
    # The baseline that the result becomes.
    "thin_baseline": lambda launches: (
        f"the stored baseline rests on {format_count(launches, 'launch')} only, too few to know its scatter: "
        "comparisons with it will often be inconclusive; raise max_time and save again"
    ),
    "disturbed_baseline": lambda lost: (
        f"the stored baseline was made while others took {format_percent(lost)} of the cores: comparisons "
        "of times with it will often be inconclusive; save again on a quiet machine, or use --ddpperf-against"
    ),
}
"""Each function takes the facts of one code by name and gives the sentence."""
