"""Traces in words."""

from __future__ import annotations

from pytest_ddpperf.analysis.traces.clocks import ClockAlignment
from pytest_ddpperf.reports.traces import alignment_line, straggler_lines
from tests.analysis.traces.made_traces import collective, event, step, trace


def test_shifts_of_many_clocks_are_summarised() -> None:
    ranks = [trace(rank, 10, event("aten::mm", 0, 1)) for rank in range(10)]
    shifts = (0.0, 1e-3, -3e-3, *[0.0] * 7)
    found = ClockAlignment(shifts=shifts, uncertainties=(0.0, 5e-3, *[1e-3] * 8), collectives=1)
    assert alignment_line(ranks, found) == (
        "merged on the clock of rank 0, aligned by the ends of 1 common collective; "
        "moved: 9 ranks by up to 3.00 ms, uncertain by up to 5.00 ms"
    )
    two = ClockAlignment(shifts=shifts[:2], uncertainties=(0.0, 5e-3), collectives=4)
    assert alignment_line(ranks[:2], two).endswith("4 common collectives; moved: rank 1 by -1.00 ms +- 5.00 ms")
    alone = ClockAlignment(shifts=(0.0,), uncertainties=(0.0,), collectives=0)
    assert alignment_line(ranks[:1], alone) == "merged: a single rank"


def test_unknown_stragglers_have_a_reason() -> None:
    silent = [trace(rank, 2, step(0, 10), event("aten::mm", 0, 1)) for rank in (0, 1)]
    assert straggler_lines(silent) == ["stragglers: none, because nothing is sent"]
    assert straggler_lines(silent[:1]) == []
    differing = [silent[0], trace(1, 2, step(0, 10), collective(1, 2))]
    (line,) = straggler_lines(differing)
    assert line.startswith("stragglers: unknown, because ranks ran different collectives")
