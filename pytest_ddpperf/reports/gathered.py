"""Remarks that several benchmarks share, said once for all of them although their figures differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.reports.count_changes import reference_text
from pytest_ddpperf.reports.findings import WORDS, finding_text
from pytest_ddpperf.reports.phrases import named_metrics, words_of
from pytest_ddpperf.reports.table import RowNote
from pytest_ddpperf.units import format_percent, format_values, span

Facts: TypeAlias = "Mapping[str, Any]"

UNSAID = frozenset({"broken", "suspected", "effective_batch_size", "told_late"})
"""Findings that change nothing for a reader of the summary; failures and the JSON file have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """What is said of one benchmark.

    Attributes:
        text: the words, where it is said of this benchmark alone.
        code: what remarks have in common that are said at once: a row of ``_TOGETHER``; empty for the text itself.
        facts: what the common words are made of.
        metrics: what it is on; the common words name those of all.
        verdict: of these metrics.
    """

    text: str
    code: str = ""
    facts: Facts = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    verdict: str = ""


def remark_of(finding: Finding) -> Remark:
    """A finding as a remark."""
    return Remark(text=finding_text(finding), code=finding.code, facts=finding.facts)


def gathered(remarks: Iterable[tuple[str, Remark]]) -> list[RowNote]:
    """Each remark once, with the names of the benchmarks that it concerns, from pairs of name and remark."""
    alike: dict[tuple[str, str], list[tuple[str, Remark]]] = {}
    for name, remark in remarks:
        common = remark.code if remark.code in _TOGETHER else remark.text
        alike.setdefault((common, remark.verdict), []).append((name, remark))
    return [note for group in alike.values() for note in _notes(group)]


def _notes(group: Sequence[tuple[str, Remark]]) -> list[RowNote]:
    """One benchmark's remarks as they are, those of several in common words."""
    names = tuple(dict.fromkeys(name for name, _ in group))
    texts = dict.fromkeys(remark.text for _, remark in group)
    if len(names) == 1 or len(texts) == 1:
        return [RowNote(text, names) for text in texts]
    first = group[0][1]
    words = _TOGETHER[first.code]([remark.facts for _, remark in group])
    metrics = dict.fromkeys(metric for _, remark in group for metric in remark.metrics)
    of = f"{named_metrics(list(metrics))} {first.verdict}".rstrip()
    return [RowNote(": ".join(filter(None, (of, words))), names)]


def _all(facts: Iterable[Facts], name: str) -> list[Any]:
    """A fact of each benchmark that has it."""
    return [each[name] for each in facts if each[name] is not None]


def _numbers(facts: Iterable[Facts], name: str) -> str:
    return span(lambda number: f"{number:g}", _all(facts, name))


def _merged(code: str) -> Callable[[Sequence[Facts]], str]:
    """The code's own words, of the least and the most figure, and of all launches."""
    how: Mapping[str, Callable[[list[Any]], Any]] = {
        "least": min,
        "lowest": min,
        "most": max,
        "highest": max,
        "nbytes": max,
        "seen": sum,
        "launches": sum,
    }

    def words(facts: Sequence[Facts]) -> str:
        merged = {name: how[name](_all(facts, name) or [0]) if name in how else facts[0][name] for name in facts[0]}
        return WORDS[code](**merged)

    return words


def _launches_needed(facts: Sequence[Facts]) -> str:
    times = _all(facts, "max_time")
    setting = f" (max_time {span('{:g}'.format, times)} s)" if times else ""
    return f"about {_numbers(facts, 'launches')} launches{setting} would decide it"


def _disturbed(facts: Sequence[Facts]) -> str:
    lost = span(format_percent, _all(facts, "lost"))
    return (
        f"disturbed: other processes or the hypervisor took {lost} of the cores, which may explain it; run it again on "
        "a quiet machine, or see --ddpperf-against"
    )


def _memory_growth(facts: Sequence[Facts]) -> str:
    ends = [*_all(facts, "least"), *_all(facts, "most")]
    growth = " to ".join(dict.fromkeys(format_values((min(ends), max(ends)), "B")))
    return f"memory grows by {growth} a step: something is kept from step to step"


def _uneven_memory(facts: Sequence[Facts]) -> str:
    widest = max(facts, key=lambda each: each["most"] - each["least"])
    low, high = format_values((widest["least"], widest["most"]), "B")
    return f"{named_metrics(_all(facts, 'metric'))} differs between ranks, by {low} to {high} at most"


def _ungated_counts(facts: Sequence[Facts]) -> str:
    metrics = list(dict.fromkeys(metric for each in facts for metric, *_ in each["counts"]))
    return f"{named_metrics(metrics)} not gated, for not all steps do the same"


def _raised_tolerance(facts: Sequence[Facts]) -> str:
    floors = span(format_percent, _all(facts, "floor"))
    days = dict.fromkeys(filter(None, _all(facts, "calibrated")))
    calibrated = f" calibrated on {words_of(list(days))}" if days else ""
    return f"tolerance raised to {floors}: the noise floor{calibrated}"


_TOGETHER: Mapping[str, Callable[[Sequence[Facts]], str]] = {
    # What the machine did.
    **{
        code: _merged(code)
        for code in (
            *("cores_used_by_others", "cores_stolen", "cpu_quota", "hot_cores", "swapping"),
            *("gpu_clocks_held_back", "gpu_used_by_others", "gpu_clock_fell"),
        )
    },
    "oversubscribed": lambda facts: (
        f"oversubscribed: {_numbers(facts, 'ranks')} ranks share {_numbers(facts, 'shared')} {facts[0]['resource']}s; "
        "step times say little about real hardware"
    ),
    "background_work": lambda facts: (
        "launched one after the other, without turns: ranks of "
        f"{named_metrics(list(dict.fromkeys(name for each in facts for name in each['benchmarks'])))} "
        "work on in the background"
    ),
    "few_launches": lambda facts: (
        f"time for {_numbers(facts, 'made')} of {_numbers(facts, 'wanted')} launches only: raise max_time, which is "
        f"{_numbers(facts, 'max_time')} s"
    ),
    # What is strange about steps, launches and memory.
    "skipped_steps": lambda facts: (
        f"fp16 gradients overflowed in {sum(_all(facts, 'steps'))} timed steps, which are left out of the times; "
        "a longer warm-up lets the scale settle"
    ),
    "unsettled_warmup": lambda facts: (
        f"warm-up had not settled in {sum(_all(facts, 'slow'))} of {sum(_all(facts, 'launches'))} launches; "
        f"raise the warm-up (now {_numbers(facts, 'warmup')} steps)"
    ),
    "outlying_launches": lambda facts: (
        f"{sum(map(len, _all(facts, 'outlying')))} of {sum(_all(facts, 'launches'))} launches are far from the median "
        "step time; outlying launches hardly count"
    ),
    "negative_scaling": lambda facts: (
        f"negative scaling: more ranks do less work per second (x{span('{:.2f}'.format, _all(facts, 'speedup'))})"
    ),
    "memory_growth": _memory_growth,
    "uneven_memory": _uneven_memory,
    "no_memory_headroom": lambda facts: (
        f"exposed communication was not measured in {sum(_all(facts, 'launches'))} launches: copies of what ranks "
        "train, to put it back, do not fit into the free memory"
    ),
    # What a verdict rests on.
    "launches_needed": _launches_needed,
    "no_launches_decide": lambda facts: WORDS["no_launches_decide"](**facts[0]),
    "disturbed": _disturbed,
    "looks_better": lambda facts: WORDS["looks_better"](**facts[0]),
    "proven_earlier": lambda _: "shown not to be worse by the margin; it looked better, and was measured on",
    "raised_tolerance": _raised_tolerance,
    "stale": lambda _: "better than the baseline, which is stale: --ddpperf-save renews it",
    "improved": lambda _: "",
    "blunt": lambda facts: (
        f"no slowdown below {span(format_percent, _all(facts, 'floor'))} fails them from now on: calibrate again where "
        "less disturbs them or with more launches, or hold them against a revision side by side with --ddpperf-against"
    ),
    # Counts.
    "fewer_counted": lambda facts: (
        f"{named_metrics(list(dict.fromkeys(_all(facts, 'metric'))))}: less per step than in "
        f"{reference_text(facts[0]['paired'])}"
    ),
    "ungated_counts": _ungated_counts,
    # Baselines.
    "thin_baseline": lambda facts: (
        f"the stored baseline rests on {_numbers(facts, 'launches')} launches only: comparisons with it will often be "
        "inconclusive; raise max_time and save again"
    ),
    "disturbed_baseline": lambda facts: (
        f"the stored baseline was made while others took {span(format_percent, _all(facts, 'lost'))} of the cores: "
        "comparisons of times with it will often be inconclusive; save again on a quiet machine, or use "
        "--ddpperf-against"
    ),
}
"""By code, the words for several benchmarks, made of the facts of each."""
