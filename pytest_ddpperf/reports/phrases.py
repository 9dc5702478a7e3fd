"""The words that all reports use for a judged metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from pytest_ddpperf import units
from pytest_ddpperf.records.counts import count_row, quantity_texts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.results import BaselineRecord, Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.stats.intervals import WIDEST

SHORT_COMMIT = 7  # characters
_LISTED = 10  # lines of a list, at most
NOISY = "noisy"  # in place of a useless interval; more launches or a quieter machine help
MARK = "*"  # after a change that differs visibly from the quotient of both values
_APART = 0.005  # of this quotient: a change that differs more is marked
_ANYTHING = 10  # 1000 %: a larger bound is shown as >+1000 %
_WORSE = {("s", "lower"): "slower", ("B", "lower"): "larger", ("1", "lower"): "higher"}  # by unit and better direction

_COMPARED = (Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.REGRESSED)


def find(result: Result, metric: str) -> Comparison | None:
    """Returns the comparison of a metric; None if the benchmark has no such metric."""
    return next((c for c in result.comparisons if c.series.metric == metric), None)


def by_stored_times(result: Result) -> bool:
    """Returns whether a benchmark is ok only because stored step times show no gross slowdown."""
    step = find(result, "step_time")
    alone = step is not None and not step.paired and step.bound is None and step.verdict is Verdict.OK
    return alone and result.verdict is Verdict.OK


def without_derived(comparisons: Collection[Comparison]) -> tuple[Comparison, ...]:
    """Returns the comparisons without metrics that only repeat the verdict on the step time, such as throughput.

    A metric stays if its change does not follow from the step time, for example because a step has more samples.
    """
    steps = {c.verdict: c for c in comparisons if c.series.metric == "step_time"}
    kept = []
    for each in comparisons:
        step = steps.get(each.verdict) if each.series.rules.repeats_step_time else None
        follows = step is not None
        if step is not None and each.change is not None and step.change is not None:
            faster = -1 if each.series.unit == "s" else 1
            follows = abs((1 + each.change) ** faster * (1 + step.change) - 1) <= step.tolerance
        if not follows:
            kept.append(each)
    return tuple(kept)


def decisive(result: Result, verdicts: Collection[Verdict]) -> tuple[Comparison, ...]:
    """Returns the comparisons that can fail a test and have one of these verdicts, likely causes first.

    Counts are first, then memory growth, then times. Metrics that repeat the step time's verdict are omitted.
    """

    def place(comparison: Comparison) -> tuple[bool, bool, bool, bool]:
        series = comparison.series
        grows = series.rules.diagnosed and not series.drifts
        row = count_row(series.metric)
        return series.scale != "exact", not grows, row.symptom or row.floor_alone, series.rules.after_steps

    told = without_derived([c for c in result.comparisons if c.gated and c.verdict in verdicts])
    return tuple(sorted(told, key=place))


def every_finding(result: Result, *, without: Collection[str] = ()) -> tuple[Finding, ...]:
    """Returns all findings on a result in order, without repetitions and without the codes in ``without``."""
    every: list[Finding] = []
    for finding in (*result.findings, *result.measurement.findings):
        if finding.code not in without and finding not in every:
            every.append(finding)
    return tuple(every)


def findings(result: Result) -> tuple[str, ...]:
    """Returns the texts of all findings on a result, without repetitions."""
    return tuple(map(finding_text, every_finding(result)))


def first_of(lines: Sequence[str], most: int = _LISTED) -> list[str]:
    """Returns the first ``most`` lines, and if there are more, a line such as ``and 3 more``."""
    return [*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])]


def confidence_text(confidence: float) -> str:
    """Returns a confidence level as text: ``95 % CI`` for 0.95."""
    return f"{units.format_percent(confidence)} CI"


def value_texts(comparison: Comparison) -> tuple[str, ...]:
    """Returns the values of reference (if there is one) and candidate as texts in the same unit."""
    series = comparison.series
    known = [value for value in (comparison.baseline, series.value) if value is not None]
    return quantity_texts(series.metric, known) if series.scale == "exact" else units.format_values(known, series.unit)


def values_text(comparison: Comparison) -> str:
    """Returns the old and the new value in one unit: ``41.8 ms -> 47.3 ms``; without an old value, only the new."""
    return " -> ".join(value_texts(comparison))


def change_text(comparison: Comparison) -> str:
    """Returns the change with its interval: ``+13.2 % [95 % CI +11.9 .. +14.6]``; empty without a meaningful change."""
    text, interval, ends = signed(comparison.change, comparison), comparison.change_interval, interval_text(comparison)
    if not text or interval is None:
        return text
    return f"{text} ({NOISY})" if ends == NOISY else f"{text} [{confidence_text(interval.confidence)} {ends}]"


def interval_text(comparison: Comparison) -> str:
    """Returns the interval of the change: ``+11.9 .. +14.6``; ``noisy`` if it is too wide; empty if it is unknown."""
    ratio, interval = comparison.series.scale == "ratio", comparison.change_interval
    if interval is None:
        return ""
    if ratio and 1 + interval.high > WIDEST * (1 + interval.low):
        return NOISY
    ends = (interval.low, interval.high)
    return " .. ".join(units.signed_percent(end) if ratio else signed(end, comparison) for end in ends)


def mean_change(comparison: Comparison) -> str:
    """Returns the kind of average as text if a change visibly differs from the quotient of both values; else empty."""
    series, base, change = comparison.series, comparison.baseline, comparison.change
    known = series.scale == "ratio" and comparison.verdict is not Verdict.INCOMPATIBLE
    if not known or not base or change is None or change <= -1:
        return ""
    apart = abs(series.value / base / (1 + change) - 1) > _APART
    return f"mean change of the {'rounds' if comparison.paired else 'usual launches'}" * apart


def meaning_of_mark(comparisons: Iterable[Comparison]) -> list[str]:
    """Returns notes that explain the asterisk (``MARK``) after changes, one for each kind of average among these."""
    kinds = dict.fromkeys(map(mean_change, comparisons))
    return [f"{MARK} {kind}; both values are means of all launches" for kind in kinds if kind]


def signed(change: float | None, comparison: Comparison) -> str:
    """Returns the change of a metric with its sign and unit; empty if the metric has no comparable change."""
    series = comparison.series
    if change is None or comparison.verdict is Verdict.INCOMPATIBLE:
        return ""
    if series.scale == "ratio":
        return units.format_change(change)
    return units.format_difference(change, series.unit, (series.value, comparison.baseline or 0.0))


def short_text(comparison: Comparison) -> str:
    """Returns the change of a metric in a few words: ``peak_resident 412 MiB -> 463 MiB (+12.4 %)``."""
    text, change = f"{comparison.series.metric} {values_text(comparison)}", signed(comparison.change, comparison)
    if comparison.series.scale == "exact" and comparison.series.value == comparison.baseline and comparison.note:
        # The total is the same, but its parts or ranks changed.
        return f"{comparison.series.metric} {finding_text(comparison.note)}"
    return text if comparison.series.scale == "exact" or not change else f"{text} ({change})"


def size_text(size: float, comparison: Comparison) -> str:
    """Returns ``size``, such as a tolerance, as text: ``3 %``, or ``0.030`` for metrics compared by difference."""
    if comparison.series.scale == "ratio":
        return units.format_percent(size)
    return units.format_value(size, comparison.series.unit)


def bound_text(comparison: Comparison, bound: float | None = None) -> str:
    """Returns the upper bound of the worsening as text, such as ``+4.9 %``; empty if the scatter is unknown."""
    bound = comparison.bound if bound is None else bound
    if bound is None:
        return ""
    return ">+1000 %" if comparison.series.scale == "ratio" and bound > _ANYTHING else signed(bound, comparison)


def could_be(undecided: Sequence[Comparison]) -> str:
    """Returns ``could be +35.2 % slower`` for undecided metrics; the first metric's verdict if a bound is unknown."""
    first, worst = undecided[0], []
    for each in undecided:
        if each.bound is None:
            return first.verdict.value
        ends = each.change_interval  # a worsening is below 0 if more is better
        end = each.bound if ends is None else ends.high if each.series.better == "lower" else -ends.low
        worst.append(max(each.bound, end))
    how = _WORSE.get((first.series.unit, first.series.better), "worse")
    return f"could be {units.span(partial(bound_text, first), worst)} {how}"


def open_text(*comparisons: Comparison, values: bool = False) -> str:
    """Returns the slowdown that undecided metrics may hide, and the number of launches that would decide them all.

    ``values``: whether to show the metric's values, too, if there is only one metric and it is not the step time.
    """
    first, metric = comparisons[0], comparisons[0].series.metric
    notes = [each.note for each in comparisons if each.note]
    note = max(notes, key=lambda each: int(each.facts.get("launches", 0)), default=None)
    shown = short_text(first) if values and metric != "step_time" and len(comparisons) == 1 else metric
    known = could_be(comparisons) if first.verdict is Verdict.INCONCLUSIVE else first.verdict.value
    return f"{shown} {known}: {finding_text(note)}".removesuffix(": ")


def seen_in(comparison: Comparison) -> str:
    """Returns how often a regressed metric was worse: ``slower than the reference in 18 of 20 rounds``."""
    series = comparison.series
    if comparison.verdict is not Verdict.REGRESSED or comparison.worse_in is None:
        return ""
    how = _WORSE.get((series.unit, series.better), "worse")
    in_rounds = comparison.paired and len(comparison.base_samples) == len(series.samples)
    of = units.format_count(len(series.samples), "round" if in_rounds else "launch")
    whose = "the reference's" if comparison.paired else "the baseline's"
    return f"{how} than {'the reference' if in_rounds else f'{whose} median'} in {comparison.worse_in} of {of}"


def change_line(comparison: Comparison) -> str:
    """Returns the change of a judged metric in one line, with its note."""
    note = finding_text(comparison.note)
    if comparison.series.scale == "exact":
        return f"{comparison.series.metric}: {count_text(comparison)}"
    told = [values_text(comparison), change_text(comparison), mean_change(comparison), seen_in(comparison)]
    if comparison.bound is not None and comparison.verdict is Verdict.INCONCLUSIVE:
        told.append(could_be([comparison]))
    elif comparison.bound is not None and comparison.verdict in {Verdict.UNCHANGED, Verdict.OK}:
        told.append(f"at most {bound_text(comparison)}")
    return "; ".join(filter(None, (f"{comparison.series.metric}: {', '.join(filter(None, told))}", note)))


def count_text(comparison: Comparison) -> str:
    """Returns how a count changed, with the responsible parts and lines of code."""
    told = "; ".join(filter(None, map(finding_text, (comparison.note, comparison.difference))))
    return told or f"{values_text(comparison)} per step"


def incomparable_changes(result: Result) -> tuple[str, ...]:
    """Returns texts on changed counts without a verdict, because the baseline is of another environment."""
    return tuple(
        f"{comparison.series.metric}: {finding_text(comparison.difference)}"
        for comparison in decisive(result, {Verdict.INCOMPATIBLE})
        if comparison.difference
    )


def counts_text(result: Result, *, brief: bool = False) -> str:
    """Returns a summary of the counts: ``14 same over 20 steps``, ``2 changed``, ``11 same, 3 vary over 20 steps``.

    Returns an empty text if no counts are compared. The number of steps is the minimum of reference and candidate.
    ``brief``: only ``changed`` or ``same``, and how many vary: ``same, 3 vary``.
    """
    accepted = [finding.facts["worse"].series.metric for finding in result.findings if finding.code == "acceptance"]
    gated = [c for c in result.comparisons if c.gated or c.series.metric in accepted]
    verdicts = [c.verdict for c in gated if c.series.scale == "exact" and c.verdict in _COMPARED]
    changed = sum(verdict is not Verdict.UNCHANGED for verdict in verdicts)
    counts = result.measurement.counts
    sides = [] if counts is None or result.reference.counted is None else [counts, result.reference.counted.counts]
    steps = min((side.steps for side in sides if side is not None), default=0)
    unstable = [] if counts is None or not sides else [m for m in counts.unstable if counts.varying.get(m) != {"": ()}]
    vary = sum(count_row(metric).gated for metric in unstable) if verdicts or not brief else 0
    number, word = (changed, "changed") if changed else (len(verdicts), "same")
    told = f"{'' if brief else f'{number} '}{word}" if verdicts else ""
    text = ", ".join(filter(None, (told, f"{vary} vary" if vary else "")))
    return f"{text} over {steps} steps" if text and steps and not (changed or brief) else text


def commit_text(commit: str, *, dirty: bool) -> str:
    """Returns a commit as text: ``3f2a1c0``, or ``3f2a1c0+changes`` if tracked files differed from the commit."""
    return commit[:SHORT_COMMIT] + "+changes" * dirty


def counts_origin(record: BaselineRecord) -> str:
    """Returns the origin of a baseline's counts if its times are of another run: ``counts of 2026-01-12, 3f2a1c0``."""
    if record.counted is None:
        return ""
    commit = record.counted.commit
    told = [record.counted.date, *([commit_text(commit, dirty=record.counted.dirty)] if commit else [])]
    return f"counts of {', '.join(told)}"


def environment_text(environment: Environment) -> str:
    """Returns the machine and the software in a line, without the number of ranks."""
    if environment.simulated:
        return f"simulated, torch {environment.torch}"
    device = environment.cpu_model
    if environment.device != "cpu":
        device = f"{environment.device_count} x {environment.device_model}, {device}"
    of_amd = "rocm" in environment.recorded.get("torch", "") or environment.device_model.startswith("AMD Instinct")
    toolkit = "ROCm" if of_amd else "CUDA"
    parts = [
        f"{environment.device} {device}",
        units.format_count(environment.cores, "core"),
        f"{units.format_count(environment.threads, 'thread')} per rank",
        *([units.format_count(environment.nodes, "node")] if environment.nodes > 1 else []),
        environment.backend,
        f"torch {environment.torch}",
        *([f"{toolkit} {environment.cuda}"] if environment.cuda is not None else []),
        *filter(None, [environment.gpu_setup]),
    ]
    return ", ".join(parts)


def machines_text(results: Sequence[Result]) -> str:
    """Returns machines, software and ranks of all benchmarks in one line, and whether another revision was timed."""
    machines = dict.fromkeys(environment_text(one.measurement.environment) for one in results)
    ranks = units.span(str, (one.measurement.world_size for one in results))
    beside = ", times side by side" if any(one.pair and one.measurement.launches for one in results) else ""
    return f"{'; '.join(machines)}, {ranks} {'rank' if ranks == '1' else 'ranks'}{beside}"
