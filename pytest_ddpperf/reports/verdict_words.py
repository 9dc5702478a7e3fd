"""The sentences for findings (notes on a result) about verdicts, references, times and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_ddpperf.records.counts import Counts, quantity_texts
from pytest_ddpperf.records.launch import LongSteps
from pytest_ddpperf.records.phases import DATA_WAIT, OTHER
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.reports.count_changes import difference_text, whole_text
from pytest_ddpperf.reports.count_words import place_text, reference_text
from pytest_ddpperf.reports.lines import some_of, words_of
from pytest_ddpperf.units import format_change, format_count, format_percent, format_values, ordinal

_PACKAGES = 8  # packages that are named, at most
_MOST_STEPS = 1000  # that somebody may be asked to count


def _cure_of_steps(needed: int) -> str:
    if not 0 < needed <= _MOST_STEPS:
        return "these counts vary between steps, so only step times can show a slowdown"
    return f"at least {needed} steps of both sides would decide (--ddpperf-counts=only --ddpperf-steps={needed})"


def _not_profiled(fact: str) -> str:
    """Returns a fact, such as ``not counted: kernel_launches``, with its cause (an empty profile) and a cure."""
    return (
        f"{fact}: torch's profiler saw no work of the GPU. If steps run kernels, CUPTI is not available (a virtual "
        "GPU, another profiler, a restricted container): end other profilers, or allow profiling on this machine"
    )


def _acceptance(worse: Comparison, reason: str, needed: bool, covered: bool) -> str:  # noqa: FBT001 - called by name
    before, after, unit = worse.baseline or 0.0, worse.series.value, worse.series.unit
    values = (f"{before:g}", f"{after:g}") if unit == "1" else format_values((before, after), unit)
    words = "accepted" if covered else "worse than the accepted limit"
    words = words if needed else "the setting accept is not needed here; remove it if no other benchmark needs it"
    return f"{words}: {worse.series.metric} {' -> '.join(values)} ({reason})"


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


def _same_data(
    *, ranks: Sequence[int], drawn: bool, paired: bool | None, alone: bool, sites: Sequence[CallSite]
) -> str:
    """Returns advice on ranks that train on the same batches or, if ``drawn``, draw the same samples of a dataset."""
    what = "draw the same samples from the dataset" if drawn else "train on the same batches"
    beside = "" if paired is None else f", but the ranks of {reference_text(paired)} do not"
    by = [f"the {site.part} at {place_text(site)}" for site in sites]
    cure = "give each rank its own part of the samples, for example by a DistributedSampler, or a separate seed"
    if by:
        cure = f"pass the rank to {words_of(by)} or to the dataset"
    if alone:
        what += " and send each other nothing"
        cure = "let them join a process group and wrap the model (DistributedDataParallel, FSDP), or give world_size=1"
    return f"ranks {words_of(ranks)} {what}{beside}: {cure}"


def _ranks_apart(*, ranks: int, metric: str, pair: tuple[float, float], paired: bool) -> str:
    before, after = (quantity_texts(metric, [each])[0] for each in pair)
    what, words = f"only {after} per step and no gradients", "the bytes"
    if metric == "collective_calls":
        what, words = "nothing", "collective calls per step"
    return (
        f"{ranks} ranks send each other {what}, so each trains alone: {words} were {before} in {reference_text(paired)}"
    )


def _parameters_apart(*, ranks: Sequence[int], parameter: str, sites: Sequence[CallSite], paired: bool | None) -> str:
    if paired is not None:
        before = f"had equal parameters after training in {reference_text(paired)}"
        return f"ranks {words_of(ranks)} {before} and have different ones now"
    cause = ""
    for site in sites:
        cause = f": the last micro-batch of a step does not synchronise, because of {site.part} at {place_text(site)}"
    return f"parameters of ranks {words_of(ranks)} differ after a few steps, first {parameter}{cause}"


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


def _other_work(  # called by name
    metric: str,
    before: float,
    now: float,
    paired: bool,  # noqa: FBT001
    shapes: Sequence[Sequence[str]],
) -> str:
    there, rows = reference_text(paired), metric == "batch_rows"
    counted = f"{format_count(round(now), 'row' if rows else 'backward pass')}, {before:g} in {there}"
    told = f"{some_of(shapes[1])}, {some_of(shapes[0])} in {there}" if shapes else f"{'batches of ' * rows}{counted}"
    what = "nothing else" if rows or now < before else "only collective calls and waits that grew by a larger factor"
    return f"a step has {told}: batches differ, so the plugin compares {what}"


def _ungated_counts(
    counts: Sequence[tuple[str, str, bool, tuple[float, ...]]],
    paired: bool,  # noqa: FBT001 - a fact
    renew: bool,  # noqa: FBT001 - a fact
) -> str:
    """Returns a sentence on the counts that cannot fail a test because steps differ, with the reasons."""
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


WORDS_OF_VERDICTS: Mapping[str, str | Callable[..., str]] = {
    # The baseline that the result becomes.
    "thin_baseline": "the stored baseline has only {launches:launch}, so comparisons of memory and losses may be "
    "inconclusive (if its commit cannot be measured, also of times): save again with a larger max_time",
    "busy_baseline": lambda lost: (
        "the machine was busy while the baseline was saved"
        f"{f' (other processes took {format_percent(lost)} of the cores)' if lost else ''}: the stored times cannot "
        "decide; later runs measure the commit again"
    ),
    # What a verdict rests on.
    "unconfirmed": "worse in the last launches, but not in the first ones, so not confirmed: run the test again",
    "to_confirm": "worse, but the session ended before fresh launches could confirm it: run the test again",
    "no_change_from": "no change can be computed from a baseline of {baseline:g}",
    "proven_earlier": "the first {launches:launch} showed that the metric is not worse; more launches could "
    "not confirm an apparent improvement",
    "stale_baseline": "better than the baseline by more than the tolerance: the baseline is stale, save again",
    "looks_better": "probably better, but not significantly",
    "told_late": "measured only after the verdict, in {launches:launch}",
    "single_launch": "with a single launch, the run-to-run variation is unknown; measure at least two",
    "launches_needed": lambda launches, max_time, known: (
        f"about {format_count(launches, 'launch')}"
        f"{'' if max_time is None else f' (max_time={max_time})'} would decide it"
        f"{'' if known is None else f', estimated from only {known}'}"
    ),
    "no_launches_decide": _no_launches_decide,
    "busy": _busy,
    "other_host": "stored times cannot decide: they were measured on another machine, {host}",
    "other_clock": "stored times cannot decide: the GPU's clock was {then:MHz} then and is {now:MHz} now",
    "gross": "a gross slowdown compared with the stored times, on a machine that was not busy",
    "stored_times": "compared with stored times, which can show only gross slowdowns",
    "not_gross": "slower than the stored times, but perhaps by less than {gross:%}, which stored times cannot show",
    "not_the_code": "not caused by this repository's code: the commit of the baseline takes as long now ({change:+%} "
    "from the stored times); packages, data or the machine have changed: --ddpperf-against-python compares packages",
    "slower_than_stored": lambda change, differ: (
        f"this run and the commit of the baseline both differ from the stored times by {format_change(change)}: not "
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
    "other_kind": "unit, direction or scale of the metric was ({then}) in the baseline and is ({now}) now: save again",
    "other_step_time": "the baseline was saved before step_time was the mean of all steps: save again",
    "other_base": "the baseline's speedup is relative to {then}, this run's to {now}: save again",
    "timed_otherwise": lambda then_in_turns: (
        "the baseline's steps were timed {}, this run's {}: save again, or change --ddpperf-interleave".format(
            *("alone", "interleaved with other launches")[:: -1 if then_in_turns else 1]
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
        f"the count's mean has doubled, but steps vary irregularly ({reason}), so only step times can show a slowdown"
        if doubled
        else f"the count differs from step to step, so it is not compared exactly: {reason}"
    ),
    "fewer_counted": _fewer_counted,
    "ranks_apart": _ranks_apart,
    "same_data": _same_data,
    "parameters_apart": _parameters_apart,
    "not_compared": "the baseline is older and has no {metrics:and}; --ddpperf-save renews it",
    "equal_batches": "ranks {ranks:and} train on the same batches; let the loader give each rank its own share",
    "other_work": _other_work,
    "ungated_counts": _ungated_counts,
    "unsure_counts": lambda steps, then, now: (
        f"may have changed: {'; '.join(whole_text(metric, then, now) for metric in steps)}; "
        + _cure_of_steps(max(steps.values()))
    ),
    # The other revision.
    "cannot_run": lambda revision, reason, submodules: (
        f"{revision} cannot run this benchmark: {reason}"
        + "; its submodules are not checked out: give --ddpperf-against-setup='git submodule update --init'"
        * (submodules and any(words in reason for words in ("ModuleNotFound", "ImportError", "No such file")))
    ),
    "other_environment": _other_environment,
    "told_counts": _told_counts,
    "tests_differ": "{files:list} differs in the reference, but both revisions ran this checkout's version, so "
    "the difference is not measured; with --ddpperf-against-tests, each runs its own functions of the file",
    "no_name_to_look_up": "both revisions ran this checkout's {names:list}, because {option} finds only names at the "
    "top level of a module",
    "tool_measured": "both revisions ran this checkout's {tool}, because {tool} measures both",
    "same_code": "neither revision imported a module from its checkout, so both ran the same code; modules that are "
    "installed elsewhere are not compared",
}
