from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.baselines.codec import BaselineFile
from pytest_ddpperf.baselines.store import SavedRecord
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.reports.outputs import Stored
from pytest_ddpperf.reports.stored import list_tables, record_table, stored_lines
from tests.factories import make_counts, make_environment, make_interval, make_new_result, make_series

FLOPS = make_series("flops", 2e6, unit="FLOP", scale="exact", samples=(2e6,))
CPU = make_environment(cpu_model="AMD EPYC", cores=2, recorded={"host": "runner-1"})


@pytest.fixture
def record() -> BaselineRecord:
    step_time = make_series("step_time", 0.0418, samples=(0.0412, 0.0424), interval=make_interval(0.0412, 0.0424))
    skew = make_series("straggler_skew", 0.01, unit="1", scale="difference", gated=False, samples=(0.01,))
    return BaselineRecord(
        name="weak",
        strategy="ddp",
        mode="weak",
        plan=Plan(warmup=5, steps=60),
        environment=CPU,
        series=(step_time, skew),
        commit="3f2a1c0def",
        date="2026-01-12",
    )


def test_list_has_a_row_for_each_record(record: BaselineRecord) -> None:
    other = replace(record, name="b", commit=None, series=record.series[1:])
    (table,) = list_tables([BaselineFile(test="t.py::test_a", records=(replace(record, dirty=True), other))])
    assert table.title == "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13: 2 baselines"
    assert table.rows == (
        ("t.py::test_a", "weak", "2026-01-12", "3f2a1c0+changes", "41.8 ms"),
        ("t.py::test_a", "b", "2026-01-12", "-", "-"),
    )


def test_list_has_a_table_for_each_environment_and_times_only_if_there_are_any(record: BaselineRecord) -> None:
    counts = replace(record, environment=replace(CPU, world_size=1), series=(FLOPS,))
    tables = list_tables([BaselineFile(test="t.py::test_a", records=(record, counts))])
    assert [(table.title, table.headers) for table in tables] == [
        ("cpu-amd-epyc-2c-t1-gloo-w1-torch2.13: 1 baseline of counts alone", ("test", "variant", "date", "commit")),
        ("cpu-amd-epyc-2c-t1-gloo-w2-torch2.13: 1 baseline", ("test", "variant", "date", "commit", "step time")),
    ]


def test_a_record_of_counts_alone_shows_no_columns_of_launches(record: BaselineRecord) -> None:
    copies = make_series("device_copies", 3.0, unit="1", scale="exact", gated=False, samples=(3.0,))
    table = record_table("t.py::test_a", replace(record, series=(copies, FLOPS)))
    assert table.title.splitlines()[1] == "strategy ddp, weak scaling, 2 ranks; counts alone"
    assert table.headers == ("metric", "value", "better", "gated")
    assert table.rows == (("flops", "2 MFLOP", "lower", "yes"), ("device_copies", "3", "lower", "no"))


def test_record_shows_origin_plan_and_all_metrics(record: BaselineRecord) -> None:
    table = record_table("t.py::test_a", record)
    assert table.title.splitlines() == [
        "t.py::test_a: weak",
        "strategy ddp, weak scaling, 2 ranks; 2 launches x 60 steps after 5 of warm-up",
        "saved 2026-01-12 at commit 3f2a1c0 as cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
        "cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, torch 2.13",
        "host runner-1",
    ]
    assert table.headers == ("metric", "value", "interval, 95 % CI", "launches", "better", "gated")
    assert table.rows == (
        ("step_time", "41.8 ms", "41.2 .. 42.4", "2", "lower", "yes"),
        ("straggler_skew", "0.010", "-", "1", "lower", "no"),
    )


def test_a_value_whose_interval_would_say_nothing_is_noisy(record: BaselineRecord) -> None:
    step, skew = record.series
    noisy = replace(record, series=(replace(step, samples=(0.01, 0.2), interval=None), replace(skew, samples=(0.01,))))
    assert [row[2] for row in record_table("t.py::test_a", noisy).rows] == ["noisy", "-"]


FILE = Path("baselines/cpu-2c/t/test_a.json")


def saved(*records: tuple[BaselineRecord | None, BaselineRecord]) -> list[str]:
    """The lines of records that tests ``test_0``, ``test_1`` and so on have saved."""
    results = [make_new_result(f"t.py::test_{number}") for number, _ in enumerate(records)]
    kept = [SavedRecord(file=FILE, old=old, new=new) for old, new in records]
    return stored_lines(Stored(saved=list(zip(results, kept, strict=True))))


def counted(record: BaselineRecord, flops: float) -> BaselineRecord:
    return replace(record, series=(*record.series, *counted_series(make_counts({}, flops=flops))))


def test_saved_baselines_are_counted_as_new_replaced_or_renewed(record: BaselineRecord) -> None:
    newer = replace(record, date="2026-02-01")
    slower = replace(record, series=(replace(record.series[0], value=0.0473), record.series[1]))
    changes = ((None, record), (record, slower), (newer, slower), (counted(record, 1e9), counted(record, 2e9)))
    (line,) = saved(*changes)
    assert line == (
        "4 baselines saved in baselines/cpu-2c: 1 new, 2 in place of 2026-01-12 to 2026-02-01, 1 with new counts and "
        "the times of 2026-01-12"
    )


def test_benchmarks_that_are_not_stored_are_listed_in_one_line() -> None:
    unfit = [make_new_result(f"t.py::test_{number}") for number in range(2)]
    assert stored_lines(Stored(unfit=unfit, failed={"t.py::test_c", "t.py::test_b"})) == [
        "does not fit into memory, and its baseline is kept (--ddpperf-force-save removes it): both benchmarks",
        "failed, so not stored: test_b, test_c",
    ]
