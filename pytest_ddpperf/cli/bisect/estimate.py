"""How long a search may measure, in words. Pure."""

from __future__ import annotations

from pytest_ddpperf.cli.bisect.attempts import ATTEMPTS, MORE_TIME, longest
from pytest_ddpperf.cli.bisect.endpoints import Ends
from pytest_ddpperf.cli.bisect.search import expected_probes
from pytest_ddpperf.units import format_count, format_number

_SPANS = ((3600.0, "h"), (60.0, "min"))


def search_lines(ends: Ends) -> list[str]:
    """How many commits there are to search, and how long the probes may take; nothing of that for counts: seconds."""
    commits = f"{format_count(len(ends.between.search.suspects), 'commit')} to search"
    most = longest(ends.effort)
    if most is None:
        return [commits]
    least, number = most / MORE_TIME, expected_probes(ends.between.search)
    each = f"measuring for {span(least)} to {span(most)}"
    probes = f"1 probe to confirm it, {each}"
    if number:
        total = f"{span((number + 1) * least)} to {span((number + 1) * most)} in all"
        probes = f"about {format_count(number, 'probe')} and one to confirm, each {each}: {total}"
    # An attempt may take all of its time, and the next one has that so many times over.
    worst = sum(most * MORE_TIME**attempt for attempt in range(ATTEMPTS))
    again = f"up to {ATTEMPTS - 1} times more, up to {MORE_TIME} times as long each time"
    return [
        f"{commits}, {probes}",
        f"what does not decide is measured {again}: at most {span(worst)} for a probe",
        "these times come from those of the ends: --ddpperf-max-time does not limit them",
    ]


def again_line(seconds: float) -> str:
    """What is told before the ends are measured again, for so long at most."""
    return f"the ends are measured again, for up to {span(seconds)} a benchmark; --ddpperf-max-time does not limit that"


def span(seconds: float) -> str:
    """A time for people to wait, in two digits: ``40 s``, ``2.7 min``, ``1.5 h``."""
    size, unit = next(((size, unit) for size, unit in _SPANS if seconds >= size), (1.0, "s"))
    return f"{format_number(float(f'{seconds / size:.2g}'))} {unit}"
