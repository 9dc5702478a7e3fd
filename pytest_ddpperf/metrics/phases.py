"""The time of a step by phases (such as backward) and by the user's sections, over all ranks and launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from pytest_ddpperf.metrics.launch_figures import Samples, Within, once, phases_of
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import PHASES, MemoryUse, PhaseTimes, SectionSummary, SectionTimes
from pytest_ddpperf.stats.launches import MIN_BLOCKS, OWN_IN_TURNS, influences


def phase_seconds(phase: str) -> Callable[[Measurement], Samples | None]:
    """Returns a metric: the seconds of a step that ranks spent in one phase, averaged over the ranks.

    The averages of all phases add up to the step. The times of each phase's slowest rank would not: if a rank is slow
    in one phase, the others wait for it in another phase.
    """
    return lambda measurement: (
        tuple(means[phase] for means in map(_means, measurement.every) if means is not None) or None
    )


def of_phase(phase: str) -> Callable[[Measurement], Within]:
    """Returns a function that computes the scatter of a phase's seconds between the steps of a launch."""

    def within(measurement: Measurement) -> Within:
        launches = _diagnosed(measurement)
        moved = [_moved(ranks, phase) for ranks in launches]
        steps = [_mean([rank.step_times for rank in ranks]) for ranks in launches]
        return Within(tuple(filter(None, moved)), OWN_IN_TURNS * fmean(steps) if steps else 0.0)

    return within


def _moved(ranks: Sequence[PhaseTimes], phase: str) -> tuple[float, ...]:
    """Returns the jackknife influence of each step on the mean of a phase, in seconds; empty for a single step."""
    steps = [fmean(of_step) for of_step in zip(*(rank.seconds[phase] for rank in ranks), strict=True)]
    if len(steps) < MIN_BLOCKS:
        return ()
    return influences([fmean([*steps[:left_out], *steps[left_out + 1 :]]) for left_out in range(len(steps))])


def sections_of(measurement: Measurement) -> tuple[SectionSummary, ...]:
    """Returns the user's sections, in the order in which steps enter them, averaged as in ``phase_seconds``.

    A rank that does not enter a section counts with 0 s.
    """
    launches = _diagnosed(measurement)
    # A section that only some ranks have comes last: a dict keeps the order, and rank 0 is first.
    paths = dict.fromkeys(section.path for phases in launches for rank in phases for section in rank.sections)
    return tuple(_summary(path, launches) for path in paths)


def memory_of_phases(measurement: Measurement) -> dict[str, MemoryUse]:
    """Returns the largest change and the largest peak of memory in each phase, over ranks and launches."""
    ranks = [rank for phases in _diagnosed(measurement) for rank in phases]
    uses = {phase: _largest([rank.memory[phase] for rank in ranks if phase in rank.memory]) for phase in PHASES}
    return {phase: use for phase, use in uses.items() if use is not None}


def _summary(path: str, launches: Sequence[Sequence[PhaseTimes]]) -> SectionSummary:
    counts, whole, own, steps = [], [], [], []
    uses: list[MemoryUse] = []
    for phases in launches:
        nothing = (0.0,) * len(phases[0].step_times)
        none = SectionTimes(path=path, count=0.0, seconds=nothing, own_seconds=nothing)
        found = [next((section for section in rank.sections if section.path == path), none) for rank in phases]
        counts.append(fmean(section.count for section in found))
        whole.append(_mean([section.seconds for section in found]))
        own.append(_mean([section.own_seconds for section in found]))
        steps.append(_mean([rank.step_times for rank in phases]))
        uses += [section.memory for section in found if section.memory is not None]
    seconds = fmean(whole)
    return SectionSummary(path, fmean(counts), seconds, fmean(own), seconds / fmean(steps), _largest(uses))


def _largest(uses: Sequence[MemoryUse]) -> MemoryUse | None:
    """Returns the largest change and the largest peak of ``uses`` as one MemoryUse; None if ``uses`` is empty."""
    if not uses:
        return None
    peaks = [use.peak for use in uses if use.peak is not None]
    return MemoryUse(kind=uses[0].kind, change=max(use.change for use in uses), peak=max(peaks, default=None))


@once
def _means(launch: Launch) -> dict[str, float] | None:
    """Returns the seconds of a step in each phase, averaged over the ranks; None if a rank has no phase times."""
    ranks = phases_of(launch)
    if ranks is None:
        return None
    return {phase: _mean([rank.seconds[phase] for rank in ranks]) for phase in PHASES}


def _diagnosed(measurement: Measurement) -> list[tuple[PhaseTimes, ...]]:
    return [phases for phases in map(phases_of, measurement.every) if phases is not None]


def _mean(ranks: Sequence[Sequence[float]]) -> float:
    return fmean(seconds for of_rank in ranks for seconds in of_rank)
