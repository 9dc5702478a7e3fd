"""How much of a step is communication, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytest_ddpperf.metrics.communication import EXPOSED, still_sent, synchronised_step
from pytest_ddpperf.records.communication import CommunicationProfile
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.phrases import find
from pytest_ddpperf.reports.table import NOTHING, Table, headed, intervals_explained, labels_of, variant_text
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
    steps = [seconds for seconds in (synchronised_step(result.measurement) for result in shown) if seconds is not None]
    seconds = [one.series.value for one in times if one is not None] + [profile.busy for profile in profiles]
    common = scale([*steps, *seconds], "s")
    columns = _PROFILED if profiles else ()
    return Table(
        title="; ".join((_TITLE, *intervals_explained([one for one in times if one is not None]))),
        headers=(
            *("benchmark", "variant", f"step\n{common.unit}", f"exposed\n{common.unit}", "of it\n%"),
            *(header.format(unit=common.unit) for header, _ in columns),
        ),
        rows=tuple(
            (
                *(labels[result.test], variant_text(result), *_measured(result, common)),
                *(_profiled(result, cell, common) for _, cell in columns),
            )
            for result in shown
        ),
        notes=tuple(headed({f"{labels[result.test]} {variant_text(result)}": _notes(result) for result in shown})),
        left=2,
        right=0,
    )


def _measured(result: Result, common: Scale) -> tuple[str, str, str]:
    """A whole step, what of it is exposed, and the one divided by the other; of less than nothing there is no share."""
    step, exposed = synchronised_step(result.measurement), find(result, EXPOSED)
    if step is None or exposed is None:
        return NOTHING, NOTHING, NOTHING
    interval = exposed.series.interval
    value = common.number(exposed.series.value)
    ends = "" if interval is None else f" [{common.number(interval.low)}, {common.number(interval.high)}]"
    share = exposed.series.value / step
    return common.number(step), f"{value}{ends}", significant(100 * share) if share >= 0 else NOTHING


def _with_gaps(profile: CommunicationProfile, common: Scale) -> str:
    return f"{common.number(profile.exposed)} ({common.number(profile.gaps)})"


_TITLE = "exposed: whole steps less steps that average no gradients, in blocks that alternate"
_Cell: TypeAlias = "Callable[[CommunicationProfile, Scale], str]"

_PROFILED: tuple[tuple[str, _Cell], ...] = (
    ("profiler: busy\n{unit}", lambda profile, common: common.number(profile.busy)),
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
    notes += [
        f"{one.kind} {significant(one.algorithm / 1e9)} GB/s, {significant(one.bus / 1e9)} GB/s on the bus"
        for one in profile.bandwidths
    ]
    if profile.window is not None:
        whole, exposed = format_values((profile.window.communication, profile.window.exposed), "s")
        notes.append(f"DDP's own window, from the first all-reduce to the last: {whole}, {exposed} after backward")
    return notes
