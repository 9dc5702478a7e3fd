"""Outcomes of made-up probes."""

from __future__ import annotations

import math
from typing import Any

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.results import Comparison, PairedRevision, Provenance, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session.probe import Outcome
from pytest_ddpperf.stats.intervals import t_quantile
from tests.factories import make_environment, make_interval, make_measurement, make_result, make_series

CPU = make_environment(cpu_model="AMD EPYC", cores=2)
LAUNCHES = 8


def timed(change: float, *, error: float = 0.002, tolerance: float = 0.03) -> Comparison:
    """A step time that changed by so many parts of one, known with that standard error."""
    half = t_quantile(0.975, LAUNCHES - 1) * error
    shift = math.log1p(change)
    worse = change > tolerance and shift > half
    verdict = Verdict.REGRESSED if worse else Verdict.UNCHANGED if half < tolerance else Verdict.INCONCLUSIVE
    interval = make_interval(math.expm1(shift - half), math.expm1(shift + half))
    series = make_series("step_time", 0.04 * (1 + change))
    known: dict[str, Any] = {"baseline": 0.04, "change": change, "change_interval": interval, "tolerance": tolerance}
    return Comparison(series=series, standard_error=error, verdict=verdict, gated=True, df=7, **known)


def counted(before: float, now: float) -> Comparison:
    """So many calls then, and so many now."""
    series = make_series("collective_calls", now, unit="1", family="counted", scale="exact", samples=(now,))
    verdict = Verdict.REGRESSED if now > before else Verdict.IMPROVED if now < before else Verdict.UNCHANGED
    note = Finding(f"all_reduce {before:.0f} -> {now:.0f} calls per step") if now != before else None
    known: dict[str, Any] = {"baseline": before, "change": now - before, "tolerance": 0.0, "mde": 0.0}
    return Comparison(series=series, verdict=verdict, gated=True, note=note, **known)


def outcome(
    *comparisons: Comparison, lacking: str = "", broken: str = "", number: int = LAUNCHES, seconds: float = 10.0
) -> Outcome:
    """What came of a probe of one benchmark with a number of launches."""
    launches = tuple(Launch(round=i, ranks=(), seconds=1.0) for i in range(number))
    measured = make_measurement(environment=CPU, launches=() if lacking or broken else launches)
    record = None if lacking else record_of(measured, Provenance(date="", commit=None))
    result = make_result(
        test="t.py::test_a",
        measurement=measured,
        comparisons=comparisons,
        verdict=Verdict.BROKEN if broken else max((c.verdict for c in comparisons), key=lambda v: v.severity),
        findings=(Finding("broken", {"reason": broken}),) if broken else (),
        reference=PairedRevision(revision="1234567", commit=None, record=record, launches=number, lacking=lacking),
        seconds=seconds,
    )
    return Outcome((result,), {})
