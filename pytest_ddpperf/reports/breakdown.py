"""Makes tables of times: a step's phases, the user's sections, communication, and the purposes of a test's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from statistics import median
from typing import TypeAlias

from pytest_ddpperf.metrics.communication import EXPOSED
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.phases import PHASES, CommunicationProfile, SectionSummary
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.lines import whom, with_names
from pytest_ddpperf.reports.phrases import find
from pytest_ddpperf.reports.remarks import told_once
from pytest_ddpperf.reports.table import Column, Quantity, Table, table_of, with_meanings
from pytest_ddpperf.units import format_count, format_number, format_percent, significant

_Named: TypeAlias = "tuple[str, Result]"
_SHORT = 10.0  # seconds: times of calls below this are shown with tenths
_SIZES = ((100e6, "100 M or more"), (10e6, "10 M to 100 M"), (0.0, "less than 10 M"))
_MEMORY = {"heap": "heap", "allocated": "CUDA memory"}
_MEANINGS = {
    "exposed": "time of whole steps minus time of steps without averaging of gradients, in alternating blocks",
    "busy": "time of collectives, by the profiler",
    "of its step": "the share of the profiled step that collectives take",
    "overlap": "the share of the time of collectives during which the rank computes",
    "profiled exposed": "time of collectives during which the rank computes nothing",
    "gaps": "the part of the profiled exposed time that lies between operators",
    "transfer": "time of a step's collectives after all ranks have joined, by the profiler",
    "wait": "time of a step's collectives until the last rank joins, by the profiler",
    "last": "the rank that came last most often, and in how many of the collectives",
    "window": "time from the start of DDP's first all-reduce to the end of its last",
    "late": "time from the end of backward to the end of DDP's last all-reduce",
}


def phase_table(results: Sequence[Result]) -> Table:
    """Returns a table of each phase's percentage of the step, with a row for each benchmark with measured phases."""
    taken_apart: list[tuple[str, Mapping[str, float]]] = []
    for name, result in with_names(results):
        seconds = {phase: found.series.value for phase in PHASES if (found := find(result, f"phase_{phase}"))}
        if whole := sum(seconds.values()):
            taken_apart.append((name, {phase: part / whole for phase, part in seconds.items()}))
    columns: dict[str, Column[tuple[str, Mapping[str, float]]]] = {
        "benchmark": lambda each: each[0],
        **{phase.replace("_", " "): Quantity(value=partial(_part, phase), unit="%") for phase in PHASES},
    }
    title = "share of each phase in a step, mean over the ranks; phases are timed in separate steps"
    return table_of(taken_apart, columns, title=title, right=0)


def _part(part: str, row: tuple[str, Mapping[str, float]]) -> float | None:
    return row[1].get(part) or None


def section_table(results: Sequence[Result]) -> Table:
    """Returns a table of time and memory of sections (``ctx.phase(name)``), with a row for each section."""
    named = [(name, section) for name, result in with_names(results) for section in result.step.sections]
    kinds = dict.fromkeys(_MEMORY[section.memory.kind] for _, section in named if section.memory is not None)
    columns: dict[str, Column[tuple[str, SectionSummary]]] = {
        "benchmark": lambda each: each[0],
        "section": lambda each: each[1].path,
        "entries\na step": lambda each: format_number(each[1].count),
        "each": Quantity(value=lambda each: each[1].mean, unit="s"),
        "own": Quantity(value=lambda each: each[1].own_seconds, unit="s"),
        "of the step": Quantity(value=lambda each: each[1].share, unit="%"),
    }
    if kinds:
        columns[f"{' or '.join(kinds)}\nMiB"] = lambda each: _growth(each[1])
    return table_of(named, columns, left=2, right=0)


def _growth(section: SectionSummary) -> str:
    change = "" if section.memory is None else significant(section.memory.change / 2**20)
    return change if change.startswith("-") or not change else f"+{change}"


def communication_table(results: Sequence[Result]) -> Table:
    """Returns a table of exposed and profiled communication, with a row for each benchmark that has these figures."""
    named = [(name, one) for name, one in with_names(results) if find(one, EXPOSED) or one.measurement.profile]
    sizes = {_parameters(result) for _, result in named} - {None}

    def of_profile(figure: str, unit: str) -> Quantity[_Named]:
        return Quantity(value=lambda each: getattr(each[1].measurement.profile, figure, None), unit=unit)

    columns: dict[str, Column[_Named]] = {
        "benchmark": lambda each: each[0],
        "parameters\nM": lambda each: (
            f"{size / 1e6:.3g}" if len(sizes) > 1 and (size := _parameters(each[1])) is not None else ""
        ),
        "step": Quantity(value=lambda each: each[1].step.synchronised_step, unit="s"),
        "exposed": Quantity(
            value=lambda each: getattr(_exposed(each[1]), "value", None),
            unit="s",
            interval=lambda each: getattr(_exposed(each[1]), "interval", None),
        ),
        "of it": Quantity(value=lambda each: _exposed_share(each[1]), unit="%"),
        "busy": of_profile("busy", "s"),
        "of its step": of_profile("busy_share", "%"),
        "overlap": of_profile("overlap", "%"),
        "profiled exposed": of_profile("exposed", "s"),
        "gaps": of_profile("gaps", "s"),
    }
    left_out = told_once(((name, text) for name, one in named for text in _left_out(one)), len(named))
    notes = (*_notes_by_size(named), *left_out)
    return with_meanings(table_of(named, columns, every=False, notes=notes, right=0), _MEANINGS)


def _exposed(result: Result) -> Series | None:
    found = find(result, EXPOSED)
    return None if found is None or result.step.synchronised_step is None else found.series


def _exposed_share(result: Result) -> float | None:
    """Returns the exposed communication as a share of the step; None if it is negative or unknown."""
    step, exposed = result.step.synchronised_step, _exposed(result)
    return None if step is None or exposed is None or exposed.value < 0 else exposed.value / step


def _parameters(result: Result) -> float | None:
    """Returns the number of trained parameters of the whole model; None if they were not counted."""
    counts = result.measurement.counts
    return None if counts is None else counts.totals.get("parameters")


def _notes_by_size(named: Sequence[tuple[str, Result]]) -> Iterator[str]:
    """Yields sentences on the median exposed communication of small, medium and large models, if sizes differ."""
    classes: dict[str, list[tuple[str, float]]] = {}
    for name, result in named:
        size, step, exposed = _parameters(result), result.step.synchronised_step, find(result, EXPOSED)
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
    """Returns a table of transfer, wait and bandwidth of collectives, with a row for each profiled benchmark."""
    named = [
        (name, profile)
        for name, result in with_names(results)
        if (profile := result.measurement.profile) is not None
        if profile.transfer is not None or profile.window is not None or profile.bandwidths
    ]
    kinds = dict.fromkeys(bandwidth.kind for _, profile in named for bandwidth in profile.bandwidths)

    def seconds(value: Callable[[CommunicationProfile], float | None]) -> Quantity[tuple[str, CommunicationProfile]]:
        return Quantity(value=lambda each: value(each[1]), unit="s")

    columns: dict[str, Column[tuple[str, CommunicationProfile]]] = {
        "benchmark": lambda each: each[0],
        "transfer": seconds(attrgetter("transfer")),
        "wait": seconds(attrgetter("wait")),
        "last\nrank": lambda each: (
            f"{each[1].slowest[0]} ({format_percent(each[1].slowest[1])})" if each[1].slowest else ""
        ),
        **{f"{kind}\nGB/s (bus)": partial(_bandwidth, kind) for kind in kinds},
        "window": seconds(lambda profile: None if profile.window is None else profile.window.communication),
        "late": seconds(lambda profile: None if profile.window is None else profile.window.exposed),
    }
    return with_meanings(table_of(named, columns, every=False, right=0), _MEANINGS)


def _bandwidth(kind: str, named: tuple[str, CommunicationProfile]) -> str:
    found = (each for each in named[1].bandwidths if each.kind == kind)
    return next((f"{significant(each.algorithm / 1e9)} ({significant(each.bus / 1e9)})" for each in found), "")


def _left_out(result: Result) -> list[str]:
    sent, profile = result.step.still_sent, result.measurement.profile
    notes = [f"exposed communication does not include {sent}"] if sent else []
    if profile is not None and profile.unplaced:
        notes.append(
            "transfer, wait and bandwidths are unknown: some process groups have fewer ranks, and the profile does "
            "not show which ranks joined a collective"
        )
    return notes


def time_text(spent: TimeSpent) -> str:
    """Returns the total time and the time by purpose: ``58 s: starting 12, verifying 5, counting 4, measuring 37``."""
    decimals = int(spent.total < _SHORT)
    # Rounded parts add up to the rounded whole.
    sums = [round(seconds, decimals) for seconds in accumulate(spent.parts.values(), initial=0.0)]
    parts = {name: after - before for name, (before, after) in zip(spent.parts, pairwise(sums), strict=True)}
    told = ", ".join(f"{name} {seconds:.{decimals}f}" for name, seconds in parts.items() if seconds)
    return ": ".join(filter(None, (f"{sums[-1]:.{decimals}f} s", told)))


def time_table(results: Sequence[Result]) -> Table:
    """Returns a table of the seconds that calls such as ``check`` spent on each purpose, the slowest call first.

    A row has the name of the benchmark, or of the test if one call measured several benchmarks.
    """
    calls: dict[tuple[str, TimeSpent], list[str]] = {}
    for name, result in with_names(results):
        if result.spent is not None:
            calls.setdefault((result.test, result.spent), []).append(name)
    rows = [
        (names[0] if len(names) == 1 else test.partition("::")[2], spent.parts)
        for (test, spent), names in sorted(calls.items(), key=lambda call: -call[0][1].total)
    ]
    number = sum(map(len, calls.values()))
    within = "" if number == len(calls) else f" in {len(calls)} calls"  # compare and scaling measure several
    columns: dict[str, Column[tuple[str, Mapping[str, float]]]] = {
        "benchmark": lambda row: row[0],
        "all": Quantity(value=lambda row: sum(row[1].values()), unit="s"),
        **{part: Quantity(value=partial(_part, part), unit="s") for part in (rows[0][1] if rows else ())},
    }
    whole = sum(spent.total for _, spent in calls)
    title = f"time of {format_count(number, 'benchmark')}{within}, {whole:.0f} s in all"
    return table_of(rows, columns, every=False, title=title, right=0)
