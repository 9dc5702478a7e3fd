"""The words of findings: a table that maps each code to a sentence with facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from string import Formatter
from typing import Any

from pytest_ddpperf.records.counts import Counts, quantity_texts
from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.launch import LongSteps, SlowImport
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.phases import DATA_WAIT, OTHER
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.count_changes import difference_text, whole_text
from pytest_ddpperf.reports.count_words import place_text, reference_text
from pytest_ddpperf.reports.lines import some_of, words_of
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

_PACKAGES = 8  # packages that are named, at most
_PREDICTED = "ddpperf network predicts {predicted:s} for the collectives of a step (median error {error:%})"
MACHINE = frozenset(
    {"cores_used_by_others", "cores_stolen", "cpu_quota", "hot_cores", "swapping", "measured_beside"}
    | {"gpu_clocks_held_back", "gpu_used_by_others", "gpu_clock_fell", "traced_steps", "oversubscribed"}
)
"""The codes of findings about the machine, which may explain times."""


class _Sentence(Formatter):
    """Writes facts into a sentence: ``{busy:%}`` becomes ``12 %``, and ``{n:launch}`` becomes ``3 launches``."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec in _FORMS:
            return _FORMS[spec](value)
        noun = len(spec) > 1 and spec.replace(" ", "").isalpha()
        return format_count(round(value), spec) if noun else format(value, spec)


_SENTENCE = _Sentence()
_FORMS: Mapping[str, Callable[[Any], str]] = {
    "%": format_percent,
    "+%": format_change,
    **{unit: partial(format_value, unit=unit) for unit in ("B", "s", "FLOP")},
    "G": lambda rate: f"{rate / 1e9:.3g} G",
    "MHz": lambda clock: f"{clock / 1e6:.0f} MHz",
    "reference": reference_text,
    "turns": lambda paired: (
        "different benchmarks are not interleaved" if paired else "launches run one after the other, not interleaved"
    ),
    "and": lambda items: words_of(list(map(str, items))),
    "list": ", ".join,
    "causes": lambda kinds: ", ".join(f"{CAUSES[kind]} {format_value(lost, 's')}" for kind, lost in kinds.items()),
}


def finding_text(finding: Finding | None) -> str:
    """Returns a finding as a sentence, or "" for None. A finding with an unknown code is returned as code and facts."""
    if finding is None:
        return ""
    words = WORDS.get(finding.code)
    if words is not None:
        return sentence(words, finding.facts)
    return ": ".join(filter(None, [finding.code, ", ".join(f"{name}={fact}" for name, fact in finding.facts.items())]))


def sentence(words: str | Callable[..., str], facts: Mapping[str, Any]) -> str:
    """Returns the sentence that ``words``, a template or a function, makes from ``facts``."""
    return _SENTENCE.format(words, **facts) if isinstance(words, str) else words(**facts)


def broken_reason(result: Result) -> str:
    """Returns the text of the finding that says why a benchmark broke or does not fit into memory."""
    codes = {"broken", "does_not_fit", *APART}
    return next((finding_text(each) for each in result.findings if each.code in codes), "it could not be measured")


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
    named = f"rank{'s' * (len(ranks) > 1)} {words_of(list(map(str, ranks)))}"
    where = "every rank" if len(ranks) == world_size > 1 else named
    return f"{kind} grows by {growth} a step on {where}, {seen}: steps keep memory that they do not free"


def _not_profiled(what: str) -> str:
    """Returns ``what`` with the cause (the profiler saw no work of the GPU) and a cure."""
    return (
        f"{what}: torch's profiler saw no work of the GPU. If steps run kernels, CUPTI is not available (a virtual "
        "GPU, another profiler, a restricted container): end other profilers, or allow profiling on this machine"
    )


def _acceptance(worse: Comparison, reason: str, needed: bool, covered: bool) -> str:  # noqa: FBT001 - called by name
    before, after, unit = worse.baseline or 0.0, worse.series.value, worse.series.unit
    values = (f"{before:g}", f"{after:g}") if unit == "1" else format_values((before, after), unit)
    words = "accepted" if covered else "worse than the accepted limit"
    words = words if needed else "the setting accept is not needed here; remove it if no other benchmark needs it"
    return f"{words}: {worse.series.metric} {' -> '.join(values)} ({reason})"


def _machine(words: str, text: Callable[[Any], str]) -> Callable[..., str]:
    """Returns a function that fills the template ``words`` with a range of values, which ``text`` formats."""

    def sentence(least: float, most: float, seen: int, launches: int, node: str = "") -> str:
        where = f"{seen} of {format_count(launches, 'launch')}{node and f' on {node}'}"
        return f"{words.format(span(text, (least, most)))} in {where}"

    return sentence


def _no_launches_decide(any_number: bool, paired: bool) -> str:  # noqa: FBT001 - called by name
    fact = "more launches would not decide it" if any_number else "no practicable number of launches would decide it"
    cures = ["a wider tolerance", "a quieter machine", *([] if paired else ["--ddpperf-against"])]
    return f"{fact}; {', '.join(cures[:-1])} or {cures[-1]} might"


def _busy(now: float | None, then: float | None) -> str:
    told = [] if now is None else [_taken(now)]
    if then is not None:
        told.append(f"{format_percent(then) if now and then else _taken(then)} when the baseline was saved")
    return f"stored times cannot decide: {words_of(told)}"


def _taken(share: float) -> str:
    """Returns a phrase on the share of the cores that other processes took; without a number if ``share`` is 0."""
    return f"other processes took {format_percent(share)} of the cores" if share else "the machine may have been busy"


def _long_steps(now: LongSteps, before: LongSteps | None) -> str:
    are, take = ("is", "takes") if now.number == 1 else ("are", "take")
    reference = "" if before is None else f" (reference: {format_percent(before.share)})"
    often = "" if now.period is None else f"; every {ordinal(now.period)} step"
    where = {DATA_WAIT: "they wait for data", OTHER: "the time is outside of forward, backward and optimizer"}
    phase = "" if now.phase is None else f"; {where.get(now.phase, f'the time is in {now.phase}')}"
    return (
        f"{now.number} of {format_count(now.steps, 'step')} {are} on average {now.factor:.3g} times as long as the "
        f"median step and {take} {format_percent(now.share)} of the time{reference}{often}{phase}"
    )


def _slow_starts(starting: float, working: float, launches: int, slowest: SlowImport | None, setting: str) -> str:
    begun, worked = format_values((starting, working), "s")
    told = f"{format_count(launches, 'launch')} spent {begun} on their start and {worked} on steps"
    cures = [f"raise {setting}"]
    if slowest is not None:
        told += f", each {format_value(slowest.seconds, 's')} on the import of {slowest.module}"
        told += f", which is not preloaded because it {slowest.reason}" if slowest.reason else ""
        cures[:0] = ["set preload=auto"] if slowest.reason is None else []
    return f"{told}: {' or '.join(cures)}"


def _other_work(metric: str, before: float, now: float, paired: Any, shapes: Sequence[Sequence[str]] = ()) -> str:
    there = reference_text(paired)
    rows = metric == "batch_rows"
    counted = f"{format_count(round(now), 'row' if rows else 'backward pass')}, {before:g} in {there}"
    told = f"{some_of(shapes[1])}, {some_of(shapes[0])} in {there}" if shapes else f"{'batches of ' * rows}{counted}"
    return f"a step has {told}: batches differ, so nothing else is compared"


def _without_gpu(sites: Sequence[CallSite]) -> str:
    lines: dict[str, list[str]] = {}
    for site in sorted(sites, key=lambda one: (one.file, one.line)):
        lines.setdefault(site.part, []).append(f"{site.file}:{site.line}")
    told = ", ".join(f"{call} at {words_of(where)}" for call, where in lines.items())
    return f"ranks have no GPU, so the script's GPU calls were ignored or done on the CPU: {told}"


def _same_data(
    *, ranks: Sequence[int], drawn: bool, paired: bool | None, alone: bool, sites: Sequence[CallSite]
) -> str:
    """Returns advice on ranks that train on the same batches or, if ``drawn``, draw the same samples of a dataset."""
    what = "draw the same samples from the dataset" if drawn else "train on the same batches"
    beside = "" if paired is None else f", but the ranks of {reference_text(paired)} do not"
    by = [f"the {site.part} at {place_text(site)}" for site in sites]
    cure = f"let {words_of(by) if by else 'their sampler (DistributedSampler)'} or their dataset know the rank"
    if alone:
        what += " and send each other nothing"
        cure = "let them join a process group and wrap the model (DistributedDataParallel, FSDP), or give world_size=1"
    return f"ranks {words_of(list(map(str, ranks)))} {what}{beside}: {cure}"


def _parameters_apart(ranks: Sequence[int], parameter: str, sites: Sequence[CallSite]) -> str:
    cause = "not all gradients are averaged before each optimizer step; does a step's last micro-batch synchronise?"
    for site in sites:
        cause = f"the last micro-batch of a step does not synchronise, because of {site.part} at {place_text(site)}"
    return f"parameters of ranks {words_of(list(map(str, ranks)))} differ after a few steps, first {parameter}: {cause}"


def _other_environment(
    python: str, differ: Sequence[str], packages: Mapping[str, tuple[str | None, str | None]]
) -> str:
    both_first = sorted(packages.items(), key=lambda package: None in package[1])
    told = [f"{name} {there or 'none'} -> {here or 'none'}" for name, (there, here) in both_first]
    more = [f"{len(told) - _PACKAGES} more"] if len(told) > _PACKAGES else []
    words = ", ".join([*told[:_PACKAGES], *more])
    facts = ", ".join(differ) or "no fact of the environment differs"
    return f"{python} -> this environment: {facts}; packages: {words or 'all are the same'}"


def _told_counts(differs: Sequence[str], changed: Sequence[tuple[str, float, float]], number: int) -> str:
    why = f"counts cannot fail a test, because another torch may work differently ({', '.join(differs)})"
    texts = [f"{metric} {' -> '.join(quantity_texts(metric, [then, now]))}" for metric, then, now in changed]
    return f"{why}: {', '.join(texts) or f'all {number} are the same'}"


def _fewer_counted(metric: str, then: Counts, now: Counts, paired: bool) -> str:  # noqa: FBT001 - a fact
    before, after = quantity_texts(metric, [then.totals[metric], now.totals[metric]])
    whole = "" if before == after else f" is {after} per step, {before} in {reference_text(paired)}"
    return f"{metric}{whole}: {'; '.join(difference_text(metric, then, now))}"


def _ungated_counts(
    counts: Sequence[tuple[str, str, bool, tuple[float, ...]]],
    paired: bool,  # noqa: FBT001 - a fact
    renew: bool,  # noqa: FBT001 - a fact
) -> str:
    """Returns a sentence that says which counts are not gated because steps differ, and why steps differ."""
    reference, told = reference_text(paired), []
    for metric, reason, now, values in counts:
        text = reason if now or not reason else f"in {reference} {reason}"
        if values:
            before, after = quantity_texts(metric, values)
            text += f"; at most {after} now, {before} in {reference}"
        told.append(f"{metric} ({text})")
    cure = "; --ddpperf-save renews the baseline" if renew else ""
    varied = {metric for metric, *_ in counts}
    if "flops" in varied and not varied & {"operators", "collective_calls"}:  # the same operators on other shapes
        cure += "; if batches are padded to their longest sequence, pad them to one length, or pack them"
    return f"not compared exactly, because steps differ: {', '.join(told)}{cure}"


def _not_on_network(
    reason: str, collective: str, nbytes: float, most: int | None, ranks: int, *, profiled: bool
) -> str:
    why, cure = f"{collective} was not measured", f"; ddpperf network --world-size={ranks} measures it"
    if reason == "too_large" and most is not None:
        size, largest = format_values((nbytes, most), "B")
        why = f"the mean {collective} has {size}, but only sizes up to {largest} were measured"
        cure = cure.replace(" measures", f" --max-size={power_of_two(nbytes, above=True)} measures")
    elif reason != "not_swept":
        cure = "" if profiled else "; --ddpperf-profile measures it"
        why = f"it measures no {collective}"
        if reason == "smaller_groups":
            why = f"it measured all {format_count(ranks, 'rank')}, but some collectives are of fewer ranks"
    return f"ddpperf network cannot predict the time of a step's collectives: {why}{cure}"


def _on_network(predicted: float, error: float, measured: float | None, how: str, exposed: float | None = None) -> str:
    told = sentence(_PREDICTED, {"predicted": predicted, "error": error})
    if measured is not None:
        return f"{told}; {how} {format_value(measured, 's')}"
    if not exposed:
        return f"{told}; they are hidden behind computation"
    seen = format_value(exposed, "s")
    if exposed <= predicted:
        return f"{told}; all but {seen} are hidden behind computation"
    return f"{told}; {seen} are exposed, more than predicted: ranks wait for each other, or share cores or links"


CAUSES: Mapping[str, str] = {
    "compute": "matrix products",
    "computing": "slower computing",
    "communication": "exposed communication",
    "memory_bandwidth": "moving memory",
    "data": "waiting for data",
    "overhead": "calling operators",
    "straggler": "waiting for a slow rank",
    "oversubscribed": "sharing cores",
    "cores": "shared cores",
    "disturbed": "other processes",
    "unclear": "an unknown cause",
}
"""The name of each cause of a step's time, and of a scaling loss."""


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
    out = f"; the fit omits {' and '.join(map(str, sharing))} ranks, which share cores or GPUs" if sharing else ""
    return f"{told} ranks; serial fraction {share}{end}{out}"


WORDS: Mapping[str, str | Callable[..., str]] = {
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
        f"begins with {', '.join(names[:-1])} or {names[-1]}"
    ),
    # How it was verified, launched and timed.
    "simulated_with_values": "simulated with real tensors, not with tensors without memory: {reason}",
    "ranks_send_nothing": "{ranks} ranks send each other nothing, so each trains alone: let the script call "
    "init_process_group, as under torchrun, and wrap its model (DistributedDataParallel, FSDP); or give world_size=1",
    "unverified": "gradients were not compared with a single process: {reason}",
    "lenient_verification": lambda precision, exact_steps: (
        f"compared with a single process only by how far the loss falls{', after exact steps' * bool(exact_steps)}"
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
    "only_on_network": lambda predicted, error, profiled: (
        f"{sentence(_PREDICTED, {'predicted': predicted, 'error': error})}; the real time was not measured: "
        + (
            "ranks ran different collectives, or not all ranks joined each one"
            if profiled
            else "--ddpperf-profile measures it"
        )
    ),
    "faster_than_network": f"{_PREDICTED}; {{how}} {{measured:s}}, much less: maybe some data are not sent, or the "
    "step does not wait for collectives. If the network has changed, run ddpperf network again",
    "small_shared_memory": "shared memory (/dev/shm) holds {size:B}, which NCCL and data workers may fill: start the "
    "container with --shm-size=1g or more",
    "background_work": "{paired:turns}: ranks of {benchmarks:list} also compute between steps, for example in "
    "workers of a DataLoader",
    "short_of_memory": "{paired:turns}: all benchmarks together would take more than three quarters of the available "
    "memory; measure fewer in one call",
    "short_of_gpu_memory": "{paired:turns}: all benchmarks together would take more than nine tenths of a GPU's "
    "memory, or the memory that one needs is unknown",
    "suspected": "{metrics:and} looked worse in the first {launches:launch}; later launches had to confirm it",
    "not_diagnosed": "the step was not diagnosed: {reason}",
    "no_time_to_diagnose": "the step was not diagnosed, because {setting} left no time for it",
    "no_time_to_measure": "steps were not timed, because no time was left: raise --ddpperf-budget",
    "few_launches": "there was time for only {made} of {wanted:launch}, so the scatter is uncertain: raise max_time",
    "slow_starts": _slow_starts,
    "traced_steps": "{tracers:and} traced the Python code of timed steps, which slows them: switch tracing off, for "
    "example with --no-cov, or compare only counts with --ddpperf-counts=only",
    # What is strange about steps and launches.
    "skipped_steps": "fp16 gradients overflowed in {steps:timed step} of {launches:launch}, so these steps updated "
    "nothing and the times omit them; raise the warm-up, in which the loss scale falls",
    "unsettled_warmup": "warm-up was too short: in {slow} of {launches:launch} the first quarter of the timed steps "
    "was more than {slower:%} slower than the rest; raise the warm-up (now {warmup:step})",
    "tf32_override": "NVIDIA_TF32_OVERRIDE={value} is set, so NVIDIA's libraries ignore precision={precision}",
    "unseen_work": "CUDA events and wall time of a block differ by up to {share:%} in {seen} of {launches:launch}, so "
    "that wall time is used there: does the step compute on a stream that the current one does not wait for?",
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
    "grown_work": "a rank computes {work:.2f} times the FLOPs of one of {base_size:rank}; efficiency allows for that",
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
    # What else the machine did.
    "cores_used_by_others": _machine("other processes used {} of the cores", format_percent),
    "cores_stolen": _machine("the hypervisor gave {} of the cores to other machines", format_percent),
    "cpu_quota": _machine("a CPU quota stopped processes for {} of the time", format_percent),
    "hot_cores": _machine("cores were too hot and slowed down {}", lambda number: format_count(int(number), "time")),
    "swapping": _machine("the machine swapped {}", lambda size: format_value(size, "B")),
    "gpu_clocks_held_back": "the driver slowed GPU clocks down ({reason}) in {seen} of {launches:launch}",
    "gpu_used_by_others": lambda pid, nbytes, seen, launches: (
        f"process {pid} used {'' if nbytes is None else format_value(nbytes, 'B') + ' of '}a GPU of the ranks "
        f"in {seen} of {format_count(launches, 'launch')}: the metric outside_allocator is omitted"
    ),
    "unread_gpus": lambda reasons, seen, launches: (
        f"clocks and other processes of GPUs are not known in {seen} of {format_count(launches, 'launch')}: "
        f"{'; '.join(reasons)}"
    ),
    "mig_instances": "the driver reports neither the utilisation of MIG instances nor other processes on them",
    "no_allocator_statistics": "CUDA's memory allocator keeps no statistics: memory metrics are omitted",
    "gpu_clock_fell": "the slowest GPU's clock was {lowest:MHz} in one launch and {highest:MHz} in another",
    "last_attempt": "attempt {attempt} of the test: measurements of earlier attempts are omitted",
    "measured_beside": lambda pid, folder: (
        f"another run of pytest measured on this machine{f' (process {pid}' * bool(pid)}"
        f"{f' in {folder}' * bool(folder)}{')' * bool(pid)}: the times of both runs are longer"
    ),
    # The baseline that the result becomes.
    "thin_baseline": "the stored baseline has only {launches:launch}: comparisons of memory and losses with it may be "
    "inconclusive, and of times if its commit cannot be measured; save again with a larger max_time",
    "busy_baseline": lambda lost: (
        "the machine was busy while the baseline was saved"
        f"{f' (other processes took {format_percent(lost)} of the cores)' if lost else ''}: the stored times cannot "
        "decide; later runs measure the commit again"
    ),
    # What a verdict rests on.
    "unconfirmed": "worse in the last launches, but not in the first ones, so not confirmed: run the test again",
    "to_confirm": "worse, but the session ended before fresh launches could confirm it: run the test again",
    "no_change_from": "no change can be computed from a baseline of {baseline:g}",
    "proven_earlier": "the first {launches:launch} showed that the metric is not worse by the margin; it looked "
    "better, so more launches followed",
    "stale_baseline": "better than the baseline by more than the tolerance: the baseline is stale, save again",
    "looks_better": "probably better, but not significantly",
    "told_late": "measured only after the verdict, in {launches:launch}",
    "single_launch": "with a single launch, the scatter is unknown; measure at least two",
    "launches_needed": lambda launches, max_time, known: (
        f"about {format_count(launches, 'launch')}"
        f"{'' if max_time is None else f' (--ddpperf-max-time={max_time})'} would decide it"
        f"{'' if known is None else f', estimated from only {known}'}"
    ),
    "no_launches_decide": _no_launches_decide,
    "busy": _busy,
    "other_host": "stored times cannot decide: they are of another machine, {host}",
    "other_clock": "stored times cannot decide: the GPU's clock was {then:MHz} then and is {now:MHz} now",
    "gross": "a gross slowdown compared with the stored times, on a machine that was not busy",
    "stored_times": "compared with stored times, which can show only gross slowdowns",
    "not_gross": "slower than the stored times, but not surely by more than {gross:%}, the least that these can show",
    "not_the_code": "not caused by this repository's code: the commit of the baseline takes as long now ({change:+%} "
    "from the stored times); packages, data or the machine have changed: --ddpperf-against-python compares packages",
    "slower_than_stored": lambda change, differ: (
        f"this run and the commit of the baseline differ alike from the stored times, by {format_change(change)}: not "
        f"the code, but packages, data or the machine have changed{': ' + ', '.join(differ) if differ else ''}"
    ),
    "unpaired": "times: only gross slowdowns can fail the test ({reason})",
    "long_steps": _long_steps,
    "rare_long_steps": "the mean over all steps changed by {whole:+%}, but only in a few launches, which have long "
    "steps; more steps in a launch (steps=...) show whether long steps recur",
    "stands_in_for_step_time": "the step time is undecided, so the CPU time decides",
    # What is meant to be worse.
    "acceptance": _acceptance,
    # What cannot be compared.
    "incomparable": "the baseline is not comparable: {differs:list}",
    "other_kind": "the baseline has this metric as {then}, but this run as {now}: save again",
    "other_step_time": "the baseline was saved before step_time was the mean of all steps: save again",
    "other_base": "the baseline's speedup is relative to {then}, this run's to {now}",
    "timed_otherwise": lambda then_in_turns: (
        "the baseline's steps were timed {}, this run's {}: save again, or change --ddpperf-interleave".format(
            *("alone", "in turns with other launches")[:: -1 if then_in_turns else 1]
        )
    ),
    "loss_of_other_step": "the baseline's loss was taken after {then:step}, this run's after {now}",
    "not_in_reference": "{paired:reference} has no such metric",
    "no_counts_in_reference": "{paired:reference} has no counts",
    "lost_metric": lambda metric, paired: (
        f"{reference_text(paired)} has {metric}, but this run does not: {metric} can no longer fail the test"
        + ("" if paired else "; --ddpperf-save accepts that")
    ),
    "lost_counts": "{paired:reference} has counts, but this run has none: no count can fail the test",
    "alike_baselines": lambda names: (
        f"there {'is a baseline' if len(names) == 1 else 'are baselines'} with other options: "
        f"{', '.join(f'`{name}`' for name in names)}; options are part of a benchmark's name"
    ),
    "other_facts": "the environment differs from the baseline's: {differ:list}",
    # Counts.
    "no_device_counts": lambda counts: _not_profiled(f"not counted: {words_of(counts)}"),
    "calls_unseen": "{library} is imported, but only collectives of torch.distributed are counted",
    "empty_profile": lambda: _not_profiled("communication was not profiled"),
    "count_changed": lambda metric, then, now: "; ".join(difference_text(metric, then, now)),
    "unsteady_count": lambda reason, doubled: (
        f"the mean has doubled, but steps differ irregularly ({reason}), so only times can decide"
        if doubled
        else f"the count differs from step to step, so it is not compared exactly: {reason}"
    ),
    "fewer_counted": _fewer_counted,
    "ranks_apart": "{ranks} ranks send each other nothing, so each trains alone: {paired:reference} has "
    "{calls:collective call} a step",
    "same_data": _same_data,
    "parameters_apart": _parameters_apart,
    "not_compared": "the baseline is older and has no {metrics:and}; --ddpperf-save renews it",
    "equal_batches": "ranks {ranks:and} train on the same batches; let the loader give each rank its own share",
    "other_work": _other_work,
    "ungated_counts": _ungated_counts,
    "unsure_counts": lambda steps, then, now: (
        f"may have changed: {'; '.join(whole_text(metric, then, now) for metric in steps)}; at least "
        f"{max(steps.values())} steps would decide"
    ),
    # The other revision.
    "cannot_run": lambda revision, reason, submodules: (
        f"{revision} cannot run this benchmark: {reason}"
        + "; its submodules are not checked out, which --ddpperf-against-setup='git submodule update --init' does"
        * (submodules and any(words in reason for words in ("ModuleNotFound", "ImportError", "No such file")))
    ),
    "other_environment": _other_environment,
    "told_counts": _told_counts,
    "tests_differ": "{files:list} differs in the reference, but both revisions ran this checkout's version, so "
    "the difference is not measured; --ddpperf-against-tests runs each revision's own version",
    "no_name_to_look_up": "both revisions ran this checkout's {names:list}, because {option} finds only names at the "
    "top level of a module",
    "tool_measured": "both revisions ran this checkout's {tool}, because {tool} measures both",
    "same_code": "neither revision imported a module from its checkout, so both ran the same code; modules that are "
    "installed elsewhere are not compared",
}
"""The sentence of each code, with places for its facts, or a function that makes it from them."""
