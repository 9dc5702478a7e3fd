"""Where the time of steps goes: phases, the user's sections and communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from pytest_ddpperf.metrics.communication import EXPOSED, still_sent, synchronised_step
from pytest_ddpperf.metrics.phases import SectionSummary, sections_of
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.lines import whom
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import find, interval_header, with_interval
from pytest_ddpperf.reports.remarks import told_once
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import Scale, format_percent, scale, significant

_SIZES = ((100e6, "100 M or more"), (10e6, "10 M to 100 M"), (0.0, "less than 10 M"))
_MEMORY = {"heap": "heap", "allocated": "CUDA memory"}
_PROFILE_COLUMNS: dict[str, Callable[[CommunicationProfile, Scale], str]] = {
    "busy\n{unit}": lambda profile, common: common.number(profile.busy),
    "of its step\n%": lambda profile, _: significant(100 * profile.busy_share),
    "overlap\n%": lambda profile, _: NOTHING if profile.overlap is None else significant(100 * profile.overlap),
    "profiled exposed\n{unit}": lambda profile, common: common.number(profile.exposed),
    "gaps\n{unit}": lambda profile, common: common.number(profile.gaps),
}
_WINDOW_MEANINGS = {
    "window": "DDP's own, from its first all-reduce to the last",
    "late": "the part of the window after backward",
}
_PROFILE_MEANINGS = {
    "busy": "time of collectives, by the profiler",
    "of its step": "the share of the profiled step that collectives take",
    "overlap": "the share of collectives beside which the rank computes",
    "profiled exposed": "time of collectives beside which the rank computes nothing",
    "gaps": "the part of profiled exposed between operators",
}


def phase_table(results: Sequence[Result]) -> Table:
    """One row for each benchmark whose steps were taken apart."""
    rows = []
    for name, result in zip(names_of(results), results, strict=True):
        phases = [find(result, f"phase_{phase}") for phase in PHASES]
        seconds = [0.0 if phase is None else phase.series.value for phase in phases]
        if sum(seconds):
            rows.append((name, *(_share(part / sum(seconds)) for part in seconds)))
    return Table(
        title="shares of a step in %, of the average rank, in steps of their own",
        headers=("benchmark", *(phase.replace("_", " ", 1).replace(" ", "\n") for phase in PHASES)),
        rows=tuple(rows),
        right=0,
    )


def _share(share: float) -> str:
    percent = f"{100 * share:.0f}"
    return NOTHING if not share else "<1" if percent == "0" else percent


def section_table(results: Sequence[Result]) -> Table:
    """One row for each section that users marked in their steps."""
    named = [
        (name, section)
        for name, result in zip(names_of(results), results, strict=True)
        for section in sections_of(result.measurement)
    ]
    times = scale([section.mean for _, section in named], "s")
    kinds = dict.fromkeys(_MEMORY[section.memory.kind] for _, section in named if section.memory is not None)
    memory = (f"{' or '.join(kinds)}\nMiB",) if kinds else ()
    return Table(
        headers=("benchmark", "section", "entries\na step", f"each\n{times.unit}", "of the step\n%", *memory),
        rows=tuple(
            (
                name,
                section.path,
                significant(section.count) if section.count != round(section.count) else f"{section.count:.0f}",
                times.number(section.mean),
                significant(100 * section.share),
                *((_growth(section),) if kinds else ()),
            )
            for name, section in named
        ),
        left=2,
        right=0,
    )


def _growth(section: SectionSummary) -> str:
    """By how much memory grew in the section, in MiB with its sign."""
    if section.memory is None:
        return NOTHING
    change = significant(section.memory.change / 2**20)
    return change if change.startswith("-") else f"+{change}"


def communication_table(results: Sequence[Result]) -> Table:
    """One row for each benchmark whose communication was measured."""
    named = [
        (name, result)
        for name, result in zip(names_of(results), results, strict=True)
        if find(result, EXPOSED) or result.measurement.profile
    ]
    shown = [result for _, result in named]
    exposed = [comparison for result in shown if (comparison := find(result, EXPOSED)) is not None]
    profiles = [result.measurement.profile for result in shown if result.measurement.profile is not None]
    steps = [seconds for result in shown if (seconds := synchronised_step(result.measurement)) is not None]
    shared = [comparison.series.value for comparison in exposed] + [profile.busy for profile in profiles]
    common = scale([*steps, *shared], "s")
    columns = _PROFILE_COLUMNS if profiles else {}
    sizes = [_parameters(result) for result in shown]
    differ = len(set(sizes) - {None}) > 1  # what small models send weighs more
    millions = [NOTHING if size is None else f"{size / 1e6:.3g}" for size in sizes]

    def profiled(result: Result) -> Iterator[str]:
        profile = result.measurement.profile
        return (NOTHING if profile is None else cell(profile, common) for cell in columns.values())

    return Table(
        headers=(
            "benchmark",
            *(["parameters\nM"] if differ else []),
            f"step\n{common.unit}",
            interval_header(f"exposed\n{common.unit}", (comparison.series.interval for comparison in exposed)),
            "of it\n%",
            *(header.format(unit=common.unit) for header in columns),
        ),
        rows=tuple(
            (name, *([size] if differ else []), *_exposed_cells(result, common), *profiled(result))
            for (name, result), size in zip(named, millions, strict=True)
        ),
        notes=(
            *_notes_by_size(named),
            *told_once(((name, text) for name, one in named for text in _left_out(one)), len(named)),
        ),
        legend={
            "exposed": "whole steps less steps that average no gradients, in blocks that alternate",
            **(_PROFILE_MEANINGS if profiles else {}),
        },
        right=0,
    )


def _parameters(result: Result) -> float | None:
    """The trained parameters of the whole model, where they were counted."""
    counts = result.measurement.counts
    return None if counts is None else counts.totals.get("parameters")


def _notes_by_size(named: Sequence[tuple[str, Result]]) -> Iterator[str]:
    """What models of each size send, where there are models of several: the median share of their steps."""
    classes: dict[str, list[tuple[str, float]]] = {}
    for name, result in named:
        size, step, exposed = _parameters(result), synchronised_step(result.measurement), find(result, EXPOSED)
        if size is not None and step is not None and exposed is not None:
            kind = next(words for least, words in _SIZES if size >= least)
            classes.setdefault(kind, []).append((name, exposed.series.value / step))
    for _, kind in reversed(_SIZES if len(classes) > 1 else ()):
        if kind in classes:
            names, shares = zip(*classes[kind], strict=True)
            share = format_percent(max(0.0, median(shares)))
            told = f"models of {kind} parameters expose communication for {share} of a step (median)"
            yield f"{whom(names, len(named))}: {told}"


def collective_table(results: Sequence[Result]) -> Table:
    """One row for each benchmark whose collectives were profiled on all ranks."""
    named = [
        (name, profile)
        for name, result in zip(names_of(results), results, strict=True)
        if (profile := result.measurement.profile) is not None
        if profile.transfer is not None or profile.window is not None or profile.bandwidths
    ]
    times = [time for _, profile in named for time in (profile.transfer, profile.wait) if time is not None]
    windows = [profile.window for _, profile in named if profile.window is not None]
    common = scale([*times, *(window.communication for window in windows)], "s")

    def time(seconds: float | None) -> str:
        return NOTHING if seconds is None else common.number(seconds)

    kinds = dict.fromkeys(bandwidth.kind for _, profile in named for bandwidth in profile.bandwidths)
    columns: dict[str, Callable[[CommunicationProfile], str]] = {
        f"transfer\n{common.unit}": lambda profile: time(profile.transfer),
        f"wait\n{common.unit}": lambda profile: time(profile.wait),
        "last\nrank": _last_rank,
        **{f"{kind}\nGB/s (bus)": partial(_bandwidth, kind) for kind in kinds},
    }
    if windows:
        columns[f"window\n{common.unit}"] = lambda profile: time(
            profile.window.communication if profile.window else None
        )
        columns[f"late\n{common.unit}"] = lambda profile: time(profile.window.exposed if profile.window else None)
    return Table(
        headers=("benchmark", *columns),
        rows=tuple((name, *(cell(profile) for cell in columns.values())) for name, profile in named),
        legend={
            "transfer": "of a step's collectives, by the profiler, once all ranks are there",
            "wait": "for the last rank",
            "last": "the rank that came last most often, and in how many of the collectives",
            **(_WINDOW_MEANINGS if windows else {}),
        },
        right=0,
    )


def _last_rank(profile: CommunicationProfile) -> str:
    if profile.slowest is None:
        return NOTHING
    rank, share = profile.slowest
    return f"{rank} ({format_percent(share)})"


def _bandwidth(kind: str, profile: CommunicationProfile) -> str:
    """Its algorithm and bus bandwidth."""
    found = [each for each in profile.bandwidths if each.kind == kind]
    return f"{significant(found[0].algorithm / 1e9)} ({significant(found[0].bus / 1e9)})" if found else NOTHING


def _exposed_cells(result: Result, common: Scale) -> tuple[str, str, str]:
    """A whole step, its exposed communication, and that as a share."""
    step, exposed = synchronised_step(result.measurement), find(result, EXPOSED)
    if step is None or exposed is None:
        return NOTHING, NOTHING, NOTHING
    share = exposed.series.value / step
    text = with_interval(common.number, exposed.series.value, exposed.series.interval)
    return common.number(step), text, significant(100 * share) if share >= 0 else NOTHING  # of nothing


def _left_out(result: Result) -> list[str]:
    """Returns what is not among the measured communication."""
    sent, profile = still_sent(result.measurement), result.measurement.profile
    notes = [f"exposed communication is without {sent}"] if sent else []
    if profile is not None and profile.unplaced:
        notes.append(
            "no transfer, wait and bandwidths: there are process groups of fewer ranks, and the profile does not tell "
            "which ranks met in a collective"
        )
    return notes
