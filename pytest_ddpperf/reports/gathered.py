"""Remarks that several benchmarks share, said once for all of them although their figures differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.reports.count_changes import reference_text
from pytest_ddpperf.reports.findings import WORDS, Figures, finding_text
from pytest_ddpperf.reports.phrases import could_be, named_metrics
from pytest_ddpperf.reports.table import RowNote
from pytest_ddpperf.units import format_values

Facts: TypeAlias = "Mapping[str, Any]"
_Merging: TypeAlias = "Mapping[str, Callable[[Sequence[Any]], Any]]"
"""By the name of a fact, what becomes of its values."""

UNSAID = APART | {"broken", "does_not_fit", "target_met", "suspected", "effective_batch_size", "told_late", "unpaired"}
"""Findings that change nothing for a reader of the summary; failures and the JSON file have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """What is said of one benchmark.

    Attributes:
        text: the words, where it is said of this benchmark alone.
        code: what remarks have in common that are said at once; empty for the text itself.
        facts: what the common words are made of.
        metrics: what it is on; the common words name those of all.
        verdict: of these metrics.
        undecided: their comparisons, where more than a verdict is said of them.
    """

    text: str
    code: str = ""
    facts: Facts = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    verdict: str = ""
    undecided: tuple[Comparison, ...] = ()


def remark_of(finding: Finding) -> Remark:
    """A finding as a remark."""
    return Remark(text=finding_text(finding), code=finding.code, facts=finding.facts)


def gathered(remarks: Iterable[tuple[str, Remark]]) -> list[RowNote]:
    """Each remark once, with the names of the benchmarks that it concerns, from pairs of name and remark."""
    alike: dict[tuple[str, str], list[tuple[str, Remark]]] = {}
    for name, remark in remarks:
        common = remark.code if remark.code in {*_TOGETHER, *_OTHERWISE} else remark.text
        alike.setdefault((common, remark.verdict), []).append((name, remark))
    return [note for group in alike.values() for note in _notes(group)]


def _notes(group: Sequence[tuple[str, Remark]]) -> list[RowNote]:
    """One benchmark's remarks as they are, those of several in common words."""
    names = tuple(dict.fromkeys(name for name, _ in group))
    texts = dict.fromkeys(remark.text for _, remark in group)
    if len(names) == 1 or len(texts) == 1:
        return [RowNote(text, names) for text in texts]
    first = group[0][1]
    words = _in_common(first.code, [remark.facts for _, remark in group])
    metrics = dict.fromkeys(metric for _, remark in group for metric in remark.metrics)
    undecided = [comparison for _, remark in group for comparison in remark.undecided]
    of = f"{named_metrics(list(metrics))} {could_be(undecided) if undecided else first.verdict}".rstrip()
    return [RowNote(": ".join(filter(None, (of, words))), names)]


def _in_common(code: str, facts: Sequence[Facts]) -> str:
    """The words for several benchmarks, made of the facts of each."""
    if code in _OTHERWISE:
        return _OTHERWISE[code](facts)
    how = _TOGETHER[code]
    return WORDS[code](**{name: how.get(name, _figures)([each[name] for each in facts]) for name in facts[0]})


def _figures(values: Sequence[Any]) -> Any:
    """All of some values, where they are numbers that differ; else the first."""
    known = [value for value in values if value is not None]
    numbers = len(set(map(str, known))) > 1 and all(isinstance(value, int | float) for value in known)
    return Figures(known) if numbers else next(iter(known), None)


def _known(choose: Callable[[list[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    return lambda values: choose(known) if (known := [value for value in values if value is not None]) else None


def _union(values: Sequence[Iterable[Any]]) -> list[Any]:
    return list(dict.fromkeys(item for value in values for item in value))


_SUMS: _Merging = dict.fromkeys(("seen", "launches", "slow", "steps"), sum)
_FIGURES: _Merging = {}
_MACHINE: _Merging = {"least": min, "most": max, **_SUMS}
_TOGETHER: Mapping[str, _Merging] = {
    # What differs in figures alone.
    **dict.fromkeys(("few_launches", "idle_gpus", "negative_scaling", "no_launches_decide"), _FIGURES),
    **dict.fromkeys(("busy", "busy_baseline", "looks_better", "not_gross", "synchronisation_kept"), _FIGURES),
    **dict.fromkeys(("no_time_to_diagnose", "no_time_to_measure", "oversubscribed"), _FIGURES),
    **dict.fromkeys(("gpu_clocks_held_back", "skipped_steps", "unsettled_warmup"), _SUMS),
    # What the machine did.
    **dict.fromkeys(("cores_used_by_others", "cores_stolen", "cpu_quota", "hot_cores", "swapping"), _MACHINE),
    "gpu_used_by_others": {**_SUMS, "pid": itemgetter(0), "nbytes": _known(max)},
    "unread_gpus": {**_SUMS, "reasons": _union},
    "gpu_clock_fell": {"lowest": min, "highest": max},
    "background_work": {"benchmarks": _union},
    "slow_starts": {
        **dict.fromkeys(("starting", "working", "launches"), sum),
        "slowest": _known(partial(max, key=attrgetter("seconds"))),
    },
    # What is strange about steps, launches and memory.
    "traced_steps": {"tracers": _union},
    "unseen_work": {"share": max, **_SUMS},
    "memory_growth": {"least": min, "most": max, "ranks": lambda ranks: sorted(_union(ranks)), "world_size": max},
    "no_memory_headroom": {**_SUMS, "needed": max, "free": min},
    # What a verdict rests on.
    "launches_needed": {"known": lambda _: None},
    "proven_earlier": {},
    # Baselines.
    "thin_baseline": {"enough": max},
}
"""How the facts of several benchmarks become those of a code's own words, where not by ``_figures``."""


def _outlying_launches(facts: Sequence[Facts]) -> str:
    outlying = sum(len(each["outlying"]) for each in facts)
    launches = sum(each["launches"] for each in facts)
    return f"{outlying} of {launches} launches are far from the median step time"


def _uneven_memory(facts: Sequence[Facts]) -> str:
    widest = max(facts, key=lambda each: each["most"] - each["least"])
    low, high = format_values((widest["least"], widest["most"]), "B")
    return f"{_metrics(facts)} differs between ranks, by {low} to {high} at most"


def _metrics(facts: Sequence[Facts]) -> str:
    return named_metrics(list(dict.fromkeys(each["metric"] for each in facts)))


def _ungated_counts(facts: Sequence[Facts]) -> str:
    metrics = list(dict.fromkeys(metric for each in facts for metric, *_ in each["counts"]))
    return f"{named_metrics(metrics)} not gated, for not all steps do the same"


_OTHERWISE: Mapping[str, Callable[[Sequence[Facts]], str]] = {
    "outlying_launches": _outlying_launches,
    "uneven_memory": _uneven_memory,
    "stale": lambda _: "better than the baseline, which is stale: --ddpperf-save renews it",
    "improved": lambda _: "",
    "fewer_counted": lambda facts: f"{_metrics(facts)}: less per step than in {reference_text(facts[0]['paired'])}",
    "ungated_counts": _ungated_counts,
}
"""By code, the words for several benchmarks that are not those for one."""
