"""A probe, made again and for longer while it does not decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from pytest_ddpperf.cli.bisect.processes import Started
from pytest_ddpperf.run.probe import Outcome, Probe

ATTEMPTS = 4  # at what stays undecided, each with twice the launches of the one before
MORE_LAUNCHES, MORE_TIME = 2, 4
# A verdict fails no test, so that all of its benchmarks are measured; what is wrong is not what is slow.
FORCED: Mapping[str, object] = {"fail_on": "none", "verify": False}

RunProbe = Callable[[Probe, Started], Outcome]


def attempts(run: RunProbe, probe: Probe, started: Started, number: int = ATTEMPTS) -> Iterator[Outcome]:
    """A probe, then the same again with more launches; not again where nothing was timed."""
    for _ in range(number):
        outcome = run(probe, started)
        yield outcome
        more = effort(outcome, MORE_LAUNCHES)
        if not more:
            return
        probe = replace(probe, settings={**probe.settings, **more})


def longest(settings: Mapping[str, object]) -> float | None:
    """The seconds that an attempt may measure for; None where its settings do not say, as of a first one."""
    seconds = settings.get("max_time")
    return seconds if isinstance(seconds, float) else None


def effort(outcome: Outcome, times: int = 1) -> Mapping[str, object]:
    """The settings for so many times the launches that an outcome rests on; none where nothing was timed.

    A first look may take half of ``max_time``, so there is room for twice what was spent.
    """
    launches = max((len(result.measurement.launches) for result in outcome.results), default=0)
    if not launches:
        return {}
    seconds = max(result.seconds for result in outcome.results)
    return {"launches": times * launches, "max_time": MORE_TIME * seconds}
