"""Where the time of steps goes: phases, the user's sections and communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytest_ddpperf.metrics.communication import EXPOSED, still_sent, synchronised_step
from pytest_ddpperf.metrics.phases import SectionSummary, sections_of
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.phrases import find, headed, intervals_explained, labels_of, variant_text, with_interval
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import Scale, format_count, format_percent, format_value, format_values, scale, significant

_MEMORY = {"heap": "heap", "allocated": "CUDA memory"}
_EXPOSED_MEANING = "exposed: whole steps less steps that average no gradients, in blocks that alternate"
_ProfileCell: TypeAlias = "Callable[[CommunicationProfile, Scale], str]"
_PROFILE_COLUMNS: dict[str, _ProfileCell] = {
    "profiler: busy\n{unit}": lambda profile, common: common.number(profile.busy),
    "of its step\n%": lambda profile, _: significant(100 * profile.busy_share),
    "overlap\n%": lambda profile, _: NOTHING if profile.overlap is None else significant(100 * profile.overlap),
    "exposed (of it gaps)\n{unit}": lambda profile, common: (
        f"{common.number(profile.exposed)} ({common.number(profile.gaps)})"
    ),
}


def phase_table(results: Sequence[Result]) -> Table | None:
    """One row for each benchmark whose steps were taken apart; None if there is none."""
    labels = labels_of(results)
    rows, notes = [], []
    for result in results:
        phases = [find(result, f"phase_{phase}") for phase in PHASES]
        seconds = [0.0 if phase is None else phase.series.value for phase in phases]
        if not sum(seconds):
            continue
        name = (labels[result.test], variant_text(result))
        rows.append((*name, *(f"{100 * part / sum(seconds):.0f}" if part else NOTHING for part in seconds)))
        notes += [f"{' '.join(name)}, {_section_text(section)}" for section in sections_of(result.measurement)]
    if not rows:
        return None
    return Table(
        title="shares of a step in %, of the average rank, in steps of their own",
        headers=("benchmark", "variant", *(phase.replace("_", " ") for phase in PHASES)),
        rows=tuple(rows),
        notes=tuple(notes),
        left=2,
        right=0,
    )


def _section_text(section: SectionSummary) -> str:
    """A section in one line: ``encode: 2 entries a step, 1.50 ms each, 30.0 % of the step, +4.00 MiB of heap``."""
    whole = section.count == round(section.count)
    count = format_count(round(section.count), "entry") if whole else f"{significant(section.count)} entries"
    each = format_value(section.mean, "s")
    text = f"{section.path}: {count} a step, {each} each, {100 * section.share:.1f} % of the step"
    memory = section.memory
    return text if memory is None else f"{text}, {memory.change / 2**20:+.2f} MiB of {_MEMORY[memory.kind]}"


def communication_table(results: Sequence[Result]) -> Table | None:
    """One row for each benchmark whose communication was measured; None if there is none."""
    labels = labels_of(results)
    shown = [result for result in results if find(result, EXPOSED) or result.measurement.profile]
    if not shown:
        return None
    exposed = [comparison for result in shown if (comparison := find(result, EXPOSED)) is not None]
    profiles = [result.measurement.profile for result in shown if result.measurement.profile is not None]
    steps = [seconds for result in shown if (seconds := synchronised_step(result.measurement)) is not None]
    shared = [comparison.series.value for comparison in exposed] + [profile.busy for profile in profiles]
    common = scale([*steps, *shared], "s")
    columns = _PROFILE_COLUMNS if profiles else {}
    return Table(
        title="; ".join((_EXPOSED_MEANING, *intervals_explained(exposed))),
        headers=(
            *("benchmark", "variant", f"step\n{common.unit}", f"exposed\n{common.unit}", "of it\n%"),
            *(header.format(unit=common.unit) for header in columns),
        ),
        rows=tuple(
            (
                *(labels[result.test], variant_text(result), *_exposed_cells(result, common)),
                *(_profile_cell(result.measurement.profile, cell, common) for cell in columns.values()),
            )
            for result in shown
        ),
        notes=tuple(
            headed({f"{labels[result.test]} {variant_text(result)}": _communication_notes(result) for result in shown})
        ),
        left=2,
        right=0,
    )


def _exposed_cells(result: Result, common: Scale) -> tuple[str, str, str]:
    """A whole step, its exposed communication, and that as a share; there is no share of less than nothing."""
    step, exposed = synchronised_step(result.measurement), find(result, EXPOSED)
    if step is None or exposed is None:
        return NOTHING, NOTHING, NOTHING
    share = exposed.series.value / step
    text = with_interval(common.number, exposed.series.value, exposed.series.interval)
    return common.number(step), text, significant(100 * share) if share >= 0 else NOTHING


def _profile_cell(profile: CommunicationProfile | None, cell: _ProfileCell, common: Scale) -> str:
    return NOTHING if profile is None else cell(profile, common)


def _communication_notes(result: Result) -> list[str]:
    """What is left out of the exposed communication, transfer and wait, bandwidths, and DDP's window, a line each."""
    sent, profile = still_sent(result.measurement), result.measurement.profile
    notes = [f"exposed communication is without {sent}"] if sent else []
    if profile is None:
        return notes
    if profile.unplaced:
        notes.append(
            "no transfer, wait and bandwidths: there are process groups of fewer ranks, and the profile does not tell "
            "which ranks met in a collective"
        )
    if profile.transfer is not None and profile.wait is not None and profile.slowest is not None:
        transfer, wait = format_values((profile.transfer, profile.wait), "s")
        rank, share = profile.slowest
        notes.append(
            f"collectives of a step: {transfer} transfer, {wait} wait for the last rank; rank {rank} came last in "
            f"{format_percent(share)} of them"
        )
    for bandwidth in profile.bandwidths:
        algorithm, bus = significant(bandwidth.algorithm / 1e9), significant(bandwidth.bus / 1e9)
        notes.append(f"{bandwidth.kind} {algorithm} GB/s, {bus} GB/s on the bus")
    if profile.window is not None:
        whole, exposed = format_values((profile.window.communication, profile.window.exposed), "s")
        notes.append(f"DDP's own window, from the first all-reduce to the last: {whole}, {exposed} after backward")
    return notes
