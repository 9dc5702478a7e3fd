"""Where the time of steps goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.records.launch import Launch, TimeSpent
from pytest_ddpperf.records.phases import PHASES, BlockTimes, MemoryUse, PhaseTimes, SectionTimes
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.breakdown import (
    collective_table,
    communication_table,
    phase_table,
    section_table,
    time_table,
    time_text,
)
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.reports.summary import summary_parts
from pytest_ddpperf.reports.table import render
from tests.factories import PROFILE, make_counts, make_interval, make_launch, make_rank_launch
from tests.reports.made import make_comparison, make_result


@pytest.fixture
def taken_apart() -> Result:
    """Steps of 10 ms: 2.5 ms forward, 5 ms backward, 2.5 ms other; half of forward in a section of the user's."""
    seconds = dict.fromkeys(PHASES, (0.0,)) | {"forward": (0.0025,), "backward": (0.005,), "other": (0.0025,)}
    encode = SectionTimes(
        path="encode",
        count=2,
        seconds=(0.00125,),
        own_seconds=(0.00125,),
        memory=MemoryUse(kind="heap", change=3 * 2**19, peak=None),
    )
    ranks = tuple(
        make_rank_launch(rank, (0.01,), phases=PhaseTimes(seconds=seconds, sections=(encode,))) for rank in range(2)
    )
    comparisons = tuple(make_comparison(f"phase_{phase}", seconds[phase][0], Verdict.NEW) for phase in PHASES)
    return make_result(comparisons=comparisons, measured={"launches": (make_launch(ranks=ranks),)})


def test_shares_of_a_step_add_up(taken_apart: Result) -> None:
    table = phase_table([taken_apart])
    assert table.headers == (
        *("benchmark", "data wait\n%", "forward\n%", "backward\n%", "gradient sync\n%", "optimizer\n%", "other\n%"),
    )
    assert table.rows == (("test_step[bucketed]", "-", "25", "50", "-", "-", "25"),)


def test_the_users_own_sections_have_a_table(taken_apart: Result) -> None:
    table = section_table([taken_apart])
    assert table.headers == (
        *("benchmark", "section", "entries\na step", "each\nus", "own\nus", "of the step\n%", "heap\nMiB"),
    )
    assert table.rows == (("test_step[bucketed]", "encode", "2", "625", "1250", "12.5", "+1.50"),)


def test_without_measured_parts_there_is_no_table() -> None:
    for table in (phase_table, section_table, communication_table, collective_table):
        assert not table([make_result()]).rows
        assert not table([]).rows


EXPOSED = make_comparison(  # from 1.2 to 6.3 ms
    "exposed_communication",
    0.0063,
    Verdict.UNCHANGED,
    baseline=0.0012,
    change=0.0051,
    change_interval=make_interval(0.004, 0.0062),
    interval=make_interval(0.006, 0.0066),
    gated=False,
)
EXPOSED = replace(EXPOSED, series=replace(EXPOSED.series, unit="s", scale="difference"))


def blocks(*steps: float, **more: Any) -> tuple[Launch, ...]:
    """Launches of a rank whose synchronised steps take so long."""
    times = (BlockTimes(synchronised=(step,), unsynchronised=(step / 2,), **more) for step in steps)
    ranks = (make_rank_launch(0, (0.02,), communication=each) for each in times)
    return tuple(make_launch(round=i, ranks=(rank,)) for i, rank in enumerate(ranks))


def test_a_row_shows_exposed_communication_and_its_share() -> None:
    """6.3 of 50 ms are 12.6 %. Launches of 40 and 60 ms make the 50, and shares of their own, which are not shown."""
    overhead = make_comparison("communication_overhead", 0.375, Verdict.NEW)
    table = communication_table(
        [make_result(comparisons=(EXPOSED, overhead), measured={"launches": blocks(0.04, 0.06)})]
    )
    assert table.headers == ("benchmark", "step\nms", "exposed\nms [95 % CI]", "of it\n%")
    assert table.rows == (("test_step[bucketed]", "50.0", "6.30 [6.00, 6.60]", "12.6"),)
    assert table.notes == ()


BELOW = replace(EXPOSED.series, value=-0.001, interval=make_interval(-0.003, 0.001))
UNPLACED = replace(PROFILE, transfer=None, wait=None, slowest=None, bandwidths=(), window=None, unplaced=True)
UNKNOWN = (
    "transfer, wait and bandwidths are unknown: some process groups have fewer ranks, and the profile does not show "
    "which ranks joined a collective"
)
NOTHING = replace(PROFILE, busy=0.0, overlapped=0.0, gaps=0.0, slowest=None, bandwidths=(), window=None)


@pytest.mark.parametrize(
    ("comparison", "measured", "row", "notes"),
    [
        pytest.param(  # what is left of two step times may come out below 0 if nothing is exposed
            replace(EXPOSED, series=BELOW),
            {"launches": blocks(0.05)},
            ("50.0", "-1.00 [-3.00, 1.00]"),
            (),
            id="less than nothing is no share",
        ),
        pytest.param(EXPOSED, {}, (), (), id="what was not measured has no column"),
        pytest.param(
            EXPOSED,
            {"launches": blocks(0.02, still_sent="the parameters that are gathered")},
            ("20.0", "6.30 [6.00, 6.60]", "31.5"),
            ("test_step[bucketed]: exposed communication does not include the parameters that are gathered",),
            id="what the figure leaves out",
        ),
        pytest.param(None, {"profile": NOTHING}, ("0", "0", "0", "0"), (), id="a profile alone"),
        pytest.param(
            None,
            {"profile": UNPLACED},
            ("20.0", "40", "75", "5.00", "1.00"),
            (f"test_step[bucketed]: {UNKNOWN}",),
            id="which ranks met is not known",
        ),
    ],
)
def test_a_row_shows_the_known_figures_of_communication(
    comparison: Comparison | None, measured: dict[str, Any], row: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    given: dict[str, Any] = {} if comparison is None else {"comparisons": (comparison,)}
    table = communication_table([make_result(measured=measured, **given)])
    assert (table.rows[0][1:], table.notes) == (row, notes)


def test_figures_of_a_profile_are_columns_of_the_communication_table() -> None:
    """Of 20 ms busy 5 are exposed: 75 % overlap, 40 % of 50 ms."""
    profiled = make_result(comparisons=(EXPOSED,), measured={"profile": PROFILE, "launches": ()})
    plain = make_result(comparisons=profiled.comparisons, measured={"name": "naive", "strategy": "naive"})
    table = communication_table([profiled, plain])
    assert table.headers[1:] == (*("busy\nms", "of its step\n%", "overlap\n%", "profiled exposed\nms", "gaps\nms"),)
    assert [row[1:] for row in table.rows] == [("20.0", "40", "75", "5.00", "1.00"), ("-",) * 5]


def test_collectives_of_the_profile_have_a_table() -> None:
    table = collective_table([make_result(measured={"profile": PROFILE}), make_result()])
    assert table.headers == (
        *("benchmark", "transfer\nms", "wait\nms", "last\nrank", "all_reduce\nGB/s (bus)", "window\nms", "late\nms"),
    )
    assert table.rows == (("test_step[bucketed] bucketed", "12.0", "8.00", "1 (75 %)", "2.50 (3.75)", "30.0", "10.0"),)


def test_models_of_several_sizes_are_listed_with_their_exposed_communication() -> None:
    """Two small models expose 6.3 of 20 and of 60 ms, 31.5 and 10.5 %, and a large one 6.3 of 20 ms."""

    def of_size(name: str, parameters: float, step: float) -> Result:
        counts = make_counts({}, parameters=parameters)
        return make_result(comparisons=(EXPOSED,), measured={"name": name, "counts": counts, "launches": blocks(step)})

    small = [of_size("a", 4.2e6, 0.02), of_size("b", 9e6, 0.06)]
    told = "models of {} parameters expose communication for {} % of a step (median)"
    table = communication_table([*small, of_size("c", 124e6, 0.02)])
    assert (table.headers[1], [row[1] for row in table.rows]) == ("parameters\nM", ["4.2", "9", "124"])
    assert [note.rpartition(": ")[2] for note in table.notes] == [
        told.format("less than 10 M", 21),
        told.format("100 M or more", 31.5),
    ]
    alike = communication_table(small[:1] * 2)
    assert (alike.headers[1], alike.notes) == ("step\nms", ())


SPENT = TimeSpent(starting=12.3, verifying=5.2, counting=4.1, measuring=30.6, diagnosing=5.8)


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        (SPENT, "58 s: starting 12, verifying 6, counting 4, measuring 30, diagnosing 6"),  # 12.3, 17.5, 21.6, 52.2, 58
        (TimeSpent(starting=0.42, counting=0.26), "0.7 s: starting 0.4, counting 0.3"),
        (TimeSpent(measuring=60.0, other=0.3), "60 s: measuring 60"),
    ],
)
def test_rounded_parts_add_up_and_none_is_0(spent: TimeSpent, text: str) -> None:
    assert time_text(spent) == text


def test_the_time_of_a_call_has_a_row_on_the_screen() -> None:
    parts = dict(summary_parts(Outputs(results=[make_result(spent=SPENT)]), verbosity=1))
    assert parts["ddpperf time"].splitlines()[0] == "time of 1 benchmark, 58 s in all"
    assert "ddpperf time" not in dict(summary_parts(Outputs(results=[make_result()]), verbosity=1))


def test_times_of_several_calls_have_a_table_with_the_slowest_first() -> None:
    """A call that measured two variants counts once, and its benchmarks are as many as elsewhere in the summary."""
    spent = {"20": replace(SPENT, measuring=20.0, other=1.0), "50": replace(SPENT, measuring=50.0, other=1.0)}
    results = [make_result(test=f"t.py::test_{name}", spent=each) for name, each in spent.items()]
    first = results[0]
    both = [
        replace(first, test="t.py::test_both", spent=SPENT, measurement=replace(first.measurement, name=name))
        for name in ("a", "b")
    ]
    assert render(time_table([*results, *both]), 100).splitlines() == [
        "time of 4 benchmarks in 3 calls, 185 s in all",
        "benchmark          all  starting  verifying  counting  measuring  diagnosing  other",
        "                     s         s          s         s          s           s      s",
        "----------------  ----  --------  ---------  --------  ---------  ----------  -----",
        "test_50 bucketed  78.4      12.3       5.20      4.10       50.0        5.80   1.00",
        "test_both         58.0      12.3       5.20      4.10       30.6        5.80      -",
        "test_20 bucketed  48.4      12.3       5.20      4.10       20.0        5.80   1.00",
    ]
