"""How much of a step is communication, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytest_ddpperf.communication import CommunicationProfile
from pytest_ddpperf.metrics.communication import EXPOSED, OVERHEAD, still_sent
from pytest_ddpperf.reports.phrases import change_text, find
from pytest_ddpperf.reports.table import NOTHING, Table, labels_of, variant_text
from pytest_ddpperf.results import Result
from pytest_ddpperf.units import Scale, format_percent, format_values, scale, significant


def communication_table(results: Sequence[Result]) -> Table | None:
    """One row for each benchmark whose communication was measured; None if there is none."""
    labels = labels_of(results)
    shown = [
        result for result in results if find(result, EXPOSED) is not None or result.measurement.profile is not None
    ]
    if not shown:
        return None
    times = [find(result, EXPOSED) for result in shown]
    profiles = [result.measurement.profile for result in shown if result.measurement.profile is not None]
    seconds = [one.series.value for one in times if one is not None] + [profile.busy for profile in profiles]
    common = scale(seconds, "s")
    columns = _PROFILED if profiles else ()
    return Table(
        title="communication that nothing hides: steps with averaged gradients less steps without",
        headers=(
            *("benchmark", "variant", f"exposed\n{common.unit}", "of a step\n%"),
            *(header.format(unit=common.unit) for header, _ in columns),
        ),
        rows=tuple(
            (
                *(labels[result.test], variant_text(result), _exposed(result, common), _overhead(result)),
                *(_profiled(result, cell, common) for _, cell in columns),
            )
            for result in shown
        ),
        notes=tuple(
            f"{labels[result.test]} {variant_text(result)}: {note}" for result in shown for note in _notes(result)
        ),
        left=2,
    )


def exposed_change_text(result: Result) -> str:
    """By how much exposed communication changed, where that is more than chance: its interval is all on one side of 0.

    Returns:
        ``exposed communication +5.10 ms [95 % CI +4.00 ms .. +6.20 ms]``; empty where there is nothing to be said.
    """
    exposed = find(result, EXPOSED)
    interval = None if exposed is None else exposed.change_interval
    if exposed is None or interval is None or interval.low <= 0 <= interval.high:
        return ""
    return f"exposed communication {change_text(exposed)}"


def _exposed(result: Result, common: Scale) -> str:
    exposed = find(result, EXPOSED)
    if exposed is None:
        return NOTHING
    interval = exposed.series.interval
    value = common.number(exposed.series.value)
    return value if interval is None else f"{value} [{common.number(interval.low)}, {common.number(interval.high)}]"


def _overhead(result: Result) -> str:
    overhead = find(result, OVERHEAD)
    return NOTHING if overhead is None else significant(100 * overhead.series.value)


def _with_gaps(profile: CommunicationProfile, common: Scale) -> str:
    return f"{common.number(profile.exposed)} ({common.number(profile.gaps)})"


_Cell: TypeAlias = "Callable[[CommunicationProfile, Scale], str]"

_PROFILED: tuple[tuple[str, _Cell], ...] = (
    ("profiler:\nbusy {unit}", lambda profile, common: common.number(profile.busy)),
    ("of its step\n%", lambda profile, _: significant(100 * profile.busy_share)),
    ("overlap\n%", lambda profile, _: NOTHING if profile.overlap is None else significant(100 * profile.overlap)),
    ("exposed (of it gaps)\n{unit}", _with_gaps),
)


def _profiled(result: Result, cell: _Cell, common: Scale) -> str:
    profile = result.measurement.profile
    return NOTHING if profile is None else cell(profile, common)


def _notes(result: Result) -> list[str]:
    sent = still_sent(result.measurement)
    notes = [f"exposed communication is without {sent}"] if sent else []
    profile = result.measurement.profile
    return notes if profile is None else [*notes, *_profile_notes(profile)]


def _profile_notes(profile: CommunicationProfile) -> list[str]:
    """Transfer against wait, bandwidths, and DDP's window, a line each."""
    notes = []
    if profile.transfer is not None and profile.wait is not None and profile.slowest is not None:
        transfer, wait = format_values((profile.transfer, profile.wait), "s")
        rank, share = profile.slowest
        notes.append(
            f"collectives of a step: {transfer} transfer, {wait} wait for the last rank; rank {rank} came last in "
            f"{format_percent(share)} of them"
        )
    notes += [
        f"{one.kind} {significant(one.algorithm / 1e9)} GB/s, {significant(one.bus / 1e9)} GB/s on the bus"
        for one in profile.bandwidths
    ]
    if profile.window is not None:
        whole, exposed = format_values((profile.window.communication, profile.window.exposed), "s")
        notes.append(f"DDP's own window, from the first all-reduce to the last: {whole}, {exposed} after backward")
    return notes
