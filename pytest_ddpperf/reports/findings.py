"""Findings as sentences: each code has a template or a function that makes the sentence from the facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from string import Formatter
from typing import Any

from pytest_ddpperf.records.finding import APART, Finding
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.count_words import reference_text
from pytest_ddpperf.reports.lines import words_of
from pytest_ddpperf.reports.run_words import WORDS_OF_RUNS
from pytest_ddpperf.reports.verdict_words import WORDS_OF_VERDICTS
from pytest_ddpperf.units import format_change, format_count, format_percent, format_value

WORDS: Mapping[str, str | Callable[..., str]] = {**WORDS_OF_RUNS, **WORDS_OF_VERDICTS}
"""The sentence of each code, with places for its facts, or a function that makes it from them."""
MACHINE = frozenset(
    {"cores_used_by_others", "cores_stolen", "cpu_quota", "hot_cores", "swapping", "measured_beside"}
    | {"gpu_clocks_held_back", "gpu_used_by_others", "gpu_clock_fell", "traced_steps", "oversubscribed"}
)
"""The codes of findings about the machine, which may explain times."""
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
    "and": words_of,
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
