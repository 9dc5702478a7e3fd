"""All that a run ends with on the terminal: one screen, and behind ``-v`` what is known besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.breakdown import (
    collective_table,
    communication_table,
    phase_table,
    section_table,
    time_part,
)
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.diagnosis import diagnosis_lines
from pytest_ddpperf.reports.findings import MACHINE, finding_text, words_of_note
from pytest_ddpperf.reports.lines import clipped, columns, names_of, whom, wrapped
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.phrases import (
    counts_words,
    decisive,
    environment_text,
    every_finding,
    first_of,
    names_by_remark,
)
from pytest_ddpperf.reports.remarks import (
    common_text,
    every_remark,
    headline,
    overall_lines,
    told_once,
    undecided_lines,
)
from pytest_ddpperf.reports.stored import stored_lines
from pytest_ddpperf.reports.summary import brief_table, summary_table
from pytest_ddpperf.reports.table import Paint, Table, render, uncoloured
from pytest_ddpperf.units import span

_TOLD, _HIDDEN = 5, ": -v"  # lines of one kind: warnings, and what is undecided; what shows the others
_WARNINGS = frozenset(
    {
        *MACHINE,
        # What was trained, and how.
        *("ranks_send_nothing", "equal_batches", "evaluating", "other_batch_size", "memory_growth", "full_gpu_memory"),
        *("faster_than_network", "unseen_work", "negative_scaling", "calls_unseen", "no_time_to_measure"),
        "without_gpu",
        # What it is compared with.
        *("slower_than_stored", "lost_metric", "lost_counts", "alike_baselines", "thin_baseline"),
        *("cannot_run", "other_environment", "same_code", "tests_differ", "no_name_to_look_up", "tool_measured"),
        *("target_open", "never_met", "acceptance", "unsure_counts"),
    }
)
"""The findings that put a result into question, whatever its verdict."""
_DO = "what to do: each failure above says the cause, and what to do if it is intended"
_MORE = "phases, communication, diagnosis, times, notes: -v, --ddpperf-report=html:FILE"


def last_lines(made: Outputs) -> list[str]:
    """Returns what is told even if there is no terminal."""
    return [*made.complaints, *([f"ddpperf: {headline(made.results, _accepted(made))}"] if made.results else [])]


def summary_parts(
    made: Outputs, width: int | None = None, paint: Paint = uncoloured, *, verbosity: int = 0
) -> list[tuple[str, str]]:
    """Title and text of each part that has anything to say. ``verbosity`` is pytest's: 1 for -v, -1 for -q.

    The first one is the verdict on the whole and all that follows from it.
    """
    results = made.results

    def rendered(table: Table) -> str:
        return render(table if verbosity > 0 else replace(table, legend={}), width, paint) if table.rows else ""

    title = "ddpperf"
    lines = _screen(made, width, paint, verbosity)
    if results:
        verdict = f"{title}: {headline(results, _accepted(made))}"
        if width is None or columns(verdict) + 4 <= width:  # with a sign and a space at both ends
            title = verdict
        else:
            lines = [*wrapped([verdict], width), *lines]
    parts = {title: "\n".join(lines)}
    calls = (made.searches, made.convergences, made.predictions, made.advice, made.calibrated)
    if any(calls):
        parts |= {f"ddpperf {part}": "\n\n".join(map(rendered, some)) for part, some in call_tables(*calls).items()}
    if verbosity > 0:
        parts |= {
            "ddpperf phases": rendered(phase_table(results)),
            "ddpperf sections": rendered(section_table(results)),
            "ddpperf diagnosis": "\n".join(wrapped(diagnosis_lines(results), width)),
            "ddpperf communication": rendered(communication_table(results)),
            "ddpperf collectives": rendered(collective_table(results)),
            "ddpperf time": time_part(results, width),
        }
    told = [(each, text) for each, text in parts.items() if text or (results and each == title)]
    return [*told, *made.added]


def colour_of(made: Outputs) -> str:
    """The colour of the first line: red if a test failed, yellow if anything is open, or the session has a fault."""
    if any(one.red for one in made.results) and not made.accepting:
        return "red"
    is_open = any(one.verdict.severity >= Verdict.DOES_NOT_FIT.severity for one in made.results)
    return "yellow" if made.complaints or is_open else "green"


def _slower(made: Outputs) -> bool:
    """Returns whether all tests together are slower, which is a warning."""
    return made.common_change is not None and made.common_change.slower


def _accepted(made: Outputs) -> set[str]:
    """The tests whose results became the baseline."""
    return {one.test for one in made.results} - made.stored.left_out if made.accepting else set()


def _screen(made: Outputs, width: int | None, paint: Paint, verbosity: int) -> list[str]:
    """Returns what follows the first line: warnings, the benchmarks, what is open, and what was measured how."""
    results, more = made.results, verbosity > 0
    red = [one for one in results if one.red]
    told = [*made.complaints, *([] if verbosity < 0 else _warnings(made, every=more))]
    lines = [paint(line, "yellow") for line in wrapped([f"WARNING {text}" for text in told], width)]
    if verbosity < 0:
        return [*lines, *(render(brief_table(red, _accepted(made)), width, paint).splitlines() if red else [])]
    if results:
        lines += [*([""] if lines else []), *_benchmarks(made, width, paint, every=more), ""]
    closing = [
        *([_DO] if red and not made.accepting else []),
        *([] if made.accepting else _not_compared(results)),
        *overall_lines(results),
        *(common_text(made.common_change) if more and not _slower(made) else []),
        *filter(None, [made.recorded, _machine(results), f"measured: {made.here}" if more and made.here else ""]),
    ]
    traces = [line for _, line in made.traces]
    stored = [] if made.stored == Stored() else stored_lines(made.stored, width)
    last = [] if more or not results else [_MORE]
    return [*lines, *stored, *wrapped([*traces, *closing, *last], width)]


def _benchmarks(made: Outputs, width: int | None, paint: Paint, *, every: bool) -> list[str]:
    """The table of benchmarks, and below it what is undecided; with ``every`` all metrics and remarks."""
    results, accepted, accepting = made.results, _accepted(made), made.accepting
    table = summary_table(results, accepted) if every else brief_table(results, accepted)
    named = list(zip(names_of(results), results, strict=True))
    notes = [] if accepting else undecided_lines(named)
    if every:
        untold = [(name, one) for name, one in named if accepting or not one.red]  # the failure has those of red ones
        remarks = ((name, remark) for name, one in untold for remark in every_remark(one, accepting=accepting))
        notes += told_once(remarks, len(results))
    lines = [line for note in (notes if every else first_of(notes, _TOLD, _HIDDEN)) for line in clipped(note, width)]
    return [*render(table, width, paint).splitlines(), *lines]


def _warnings(made: Outputs, *, every: bool) -> list[str]:
    """What puts the results into question, each once: on all tests, on their reference, on the machine, on training.

    The failure of a red benchmark has what is to be said of that one.
    """
    results = made.results
    reasons = dict.fromkeys(finding_text(each) for one in results for each in one.findings if each.code == "unpaired")
    remarks = (
        (name, finding)
        for name, result in zip(names_of(results), results, strict=True)
        for finding in every_finding(result)
        if finding.code in _WARNINGS and (made.accepting or not result.red)
    )
    told = [] if every else told_once(remarks, len(results))
    return [*(common_text(made.common_change) if _slower(made) else []), *first_of([*reasons, *told], _TOLD, _HIDDEN)]


def _not_compared(results: Sequence[Result]) -> list[str]:
    """Which benchmarks are compared with nothing, or but for their counts, why, and how to change that, in one line."""
    named = zip(names_of(results), results, strict=True)
    found = [(name, one) for name, one in named if one.verdict in {Verdict.NEW, Verdict.INCOMPATIBLE}]
    reasons = names_by_remark(
        (name, ("times of " * bool(counts_words(one)), _why_not_compared(one))) for name, one in found
    )
    told = (f"{what}{whom(names, len(results))}{why and f' ({why})'}" for (what, why), names in reasons.items())
    stored = any(one.paired is None for _, one in found)
    cure = ": --ddpperf-save stores what later runs are compared with" if stored else ""
    return [f"not compared: {'; '.join(told)}{cure}"] if reasons else []


def _why_not_compared(result: Result) -> str:
    """The facts that differ from the baseline's, or why the other revision has none; empty if it is new."""
    lacking = "" if result.paired is None else result.paired.lacking.partition("\n")[0]
    return (
        lacking
        or ", ".join(result.reference.differs)
        or ", ".join(words_of_note(each.note) for each in decisive(result, {Verdict.INCOMPATIBLE})[:1] if each.note)
    )


def _machine(results: Sequence[Result]) -> str:
    """The machine and the software of all benchmarks in a line, and what times are compared with."""
    if not results:
        return ""
    texts = dict.fromkeys(environment_text(one.measurement.environment) for one in results)
    facts = zip_longest(*(text.split(", ") for text in texts))
    ranks = span(str, (one.measurement.world_size for one in results))
    beside = ", times side by side" if any(one.pair and one.measurement.launches for one in results) else ""
    told = (" or ".join(filter(None, dict.fromkeys(values))) for values in facts)
    return f"{', '.join(told)}, {ranks} {'rank' if ranks == '1' else 'ranks'}{beside}"
