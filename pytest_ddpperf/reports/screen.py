"""The end of a run on the terminal: one screen; with ``-v``, all details."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import breakdown, phrases, remarks
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.diagnosis import diagnosis_lines
from pytest_ddpperf.reports.findings import MACHINE, finding_text
from pytest_ddpperf.reports.lines import columns, with_names, wrapped
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.stored import stored_lines
from pytest_ddpperf.reports.summary import brief_table, summary_table
from pytest_ddpperf.reports.table import Paint, Table, render
from pytest_ddpperf.units import format_count

_TOLD = 5  # lines of one kind: warnings, and undecided metrics; -v shows all
_WARNINGS = frozenset(
    {
        *(MACHINE - {"measured_beside"}),  # the session's own warning has that
        # What was trained, and how.
        *("ranks_send_nothing", "equal_batches", "evaluating", "other_batch_size", "memory_growth", "full_gpu_memory"),
        *("faster_than_network", "unseen_work", "negative_scaling", "calls_unseen", "no_time_to_measure"),
        "without_gpu",
        # What it is compared with.
        *("slower_than_stored", "lost_metric", "lost_counts", "alike_baselines", "thin_baseline"),
        *("unpaired", "cannot_run", "other_environment", "same_code", "tests_differ", "no_name_to_look_up"),
        "tool_measured",
        *("target_open", "never_met", "acceptance", "unsure_counts"),
    }
)
"""Codes of findings that make a result doubtful whatever its verdict, and so are shown as warnings."""
_NOT_COMPARED = frozenset({Verdict.NEW, Verdict.INCOMPATIBLE})
_DO = "what to do: each failure above says the cause, and what to do if it is intended"
_MORE = "phases, communication, diagnosis, times, notes: -v, --ddpperf-report=html:FILE"


def last_lines(made: Outputs) -> list[str]:
    """Returns complaints and the verdict on the run, which are printed if pytest has no terminal reporter."""
    verdict = f"ddpperf: {remarks.headline(made.results, _accepted(made), made.unmeasured)}"
    return [*made.complaints, *([verdict] if made.results else [])]


def summary_parts(
    made: Outputs, width: int | None = None, paint: Paint = lambda text, _: text, *, verbosity: int = 0
) -> list[tuple[str, str]]:
    """Returns (title, text) pairs of the summary's parts, the verdict first.

    ``paint``: a function that colours a text. ``verbosity``: 1 for ``-v``, -1 for ``-q``.
    """
    results, title, lines = made.results, "ddpperf", _screen(made, width, paint, verbosity)
    if results:
        verdict = last_lines(made)[-1]
        if width is None or columns(verdict) + 4 <= width:  # with a sign and a space at both ends
            title = verdict
        else:
            lines[:0] = wrapped([verdict], width)
    parts = {title: "\n".join(lines)}
    calls = (made.searches, made.convergences, made.predictions, made.advice, made.calibrated)
    tables = call_tables(*calls) if any(calls) else {}
    if verbosity > 0:
        tables |= {
            "phases": [breakdown.phase_table(results)],
            "sections": [breakdown.section_table(results)],
            "diagnosis": [Table((), (), tuple(diagnosis_lines(results)))],
            "communication": [breakdown.communication_table(results)],
            "collectives": [breakdown.collective_table(results)],
            "time": [breakdown.time_table(results)],
        }
    for part, several in tables.items():
        shown = [each if verbosity > 0 else replace(each, legend={}) for each in several if each.rows or each.notes]
        parts[f"ddpperf {part}"] = "\n\n".join(render(each, width, paint) for each in shown)
    told = [(each, text) for each, text in parts.items() if text or (results and each == title)]
    return [*told, *made.added]


def _accepted(made: Outputs) -> set[str]:
    not_stored = {*made.stored.failed, *(one.test for one in made.stored.unfit)}
    return {one.test for one in made.results} - not_stored if made.accepting else set()


def colour_of(made: Outputs) -> str:
    """Returns the colour of the first line: red for failures, yellow for open verdicts or complaints, else green."""
    if made.unmeasured or any(one.failure for one in made.results):
        return "red"
    is_open = any(one.verdict.severity >= Verdict.DOES_NOT_FIT.severity for one in made.results)
    return "yellow" if made.complaints or is_open else "green"


def _screen(made: Outputs, width: int | None, paint: Paint, verbosity: int) -> list[str]:
    results, more, common = made.results, verbosity > 0, remarks.common_text(made.common_change)
    slower = made.common_change is not None and made.common_change.slower
    warnings = [*made.complaints, *(common * (slower and verbosity >= 0)), *(_warnings(made) if verbosity == 0 else [])]
    lines = [paint(line, "yellow") for line in wrapped([f"WARNING {text}" for text in warnings], width)]
    if verbosity < 0:
        red = [one for one in results if one.red]
        return [*lines, *(render(brief_table(red, _accepted(made)), width, paint).splitlines() if red else [])]
    if results:
        table = summary_table(results, _accepted(made)) if more else brief_table(results, _accepted(made))
        notes = _notes(made, every=more)
        lines += [*([""] if lines else []), *render(table, width, paint).splitlines()]
        lines += [*wrapped(notes, width, clipped=True), ""]
    meanings = remarks.green_meanings(results)
    closing = [
        *([_DO] if any(one.failure for one in results) else []),
        *([] if made.accepting else _not_compared(results)),
        *remarks.overall_lines(results),
        *(["; ".join(f"{word}: {text}" for word, text in meanings.items())] if len(meanings) > 1 and not more else []),
        *(common * (more and not slower)),
        *filter(None, [made.recorded, f"measured: {made.here}" if more and made.here else ""]),
        *([phrases.machines_text(results)] if results and not more else []),
        *([] if more or not results else [_MORE]),
    ]
    stored = [] if made.stored == Stored() else stored_lines(made.stored, width)
    return [*lines, *stored, *wrapped([*(line for _, line in made.traces), *closing], width)]


def _notes(made: Outputs, *, every: bool) -> list[str]:
    """Returns lines on undecided metrics; with ``every``, all remarks on benchmarks."""
    named = with_names(made.results)
    notes = [] if made.accepting else remarks.undecided_lines(named, every=every)
    if not every:
        return phrases.first_of(notes, _TOLD)
    untold = [(name, one) for name, one in named if made.accepting or not one.red]  # failure messages have the others
    told = ((name, remark) for name, one in untold for remark in remarks.every_remark(one, accepting=made.accepting))
    return [*notes, *remarks.told_once(told, len(named))]


def _warnings(made: Outputs) -> list[str]:
    """Returns doubts about the results, without repetitions: about their reference, the machine, or the training.

    Doubts about a failed benchmark are part of its failure message.
    """
    results = made.results
    doubts = [
        (name, finding)
        for name, result in with_names(results)
        for finding in phrases.every_finding(result)
        if finding.code in _WARNINGS and (made.accepting or not result.red or finding.code == "unpaired")
    ]
    doubts.sort(key=lambda remark: remark[1].code != "unpaired")
    return phrases.first_of(remarks.told_once(doubts, len(results)), _TOLD)


def _not_compared(results: Sequence[Result]) -> list[str]:
    """Returns a line with the number of benchmarks that lack a reference or its step times, reasons and a cure."""
    reasons: list[str] = []
    found = [one for one in results if one.verdict in _NOT_COMPARED]
    for one in found:
        lacking = "" if one.paired is None else one.paired.lacking.partition("\n")[0]
        notes = (each.note for each in phrases.decisive(one, {Verdict.INCOMPATIBLE}) if each.note)
        reasons.append(lacking or ", ".join(one.reference.differs) or finding_text(next(notes, None)))
    why = "; ".join(filter(None, dict.fromkeys(reasons)))
    stored = any(one.paired is None for one in found)
    cure = ": --ddpperf-save stores what later runs are compared with" if stored else ""
    number = f"{len(found)} of {format_count(len(results), 'benchmark')}{why and f' ({why})'}"
    return [f"not compared: {number}{cure}"] if found else []
