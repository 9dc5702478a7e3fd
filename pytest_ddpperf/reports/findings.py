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
from pytest_ddpperf.units import format_change, format_count, format_percent, format_value, span

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


def _machine(words: str, text: Callable[[Any], str]) -> Callable[..., str]:
    """Returns a function that puts a range of values, formatted by ``text``, into the template ``words``."""

    def sentence(least: float, most: float, seen: int, launches: int, node: str = "") -> str:
        where = f"{seen} of {format_count(launches, 'launch')}{node and f' on {node}'}"
        return f"{words.format(span(text, (least, most)))} in {where}"

    return sentence


WORDS: Mapping[str, str | Callable[..., str]] = {
    **WORDS_OF_RUNS,
    **WORDS_OF_VERDICTS,
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
}
"""The sentence of each code, with places for its facts, or a function that makes it from them."""


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
    return next((finding_text(each) for each in result.findings if each.code in codes), "the measurement failed")
