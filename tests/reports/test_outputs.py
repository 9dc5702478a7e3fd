"""What a run has to tell grows while tests run, and shrinks when one of them runs again."""

from __future__ import annotations

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.reports.outputs import Outputs
from tests.factories import make_measurement, make_new_result

A, B = "t.py::test_a", "t.py::test_b"


def test_outputs_of_a_test_are_dropped_when_it_runs_again() -> None:
    made = Outputs(
        results=[make_new_result(A), make_new_result(B), make_new_result(A)],
        measured={A: [make_measurement()]},
        traces=[(A, "traces/a_summary.txt"), (B, "traces/b_summary.txt")],
    )
    made.stored.failed |= {A, B}
    made.forget(A)
    assert [result.test for result in made.results] == [B]
    assert (made.measured_text, made.traces, made.stored.failed) == ("", [(B, "traces/b_summary.txt")], {B})


def test_a_note_is_added_to_its_benchmark() -> None:
    made, finding = Outputs(results=[make_new_result(A), make_new_result(B)]), Finding("empty_profile")
    made.remark(B, made.results[1].measurement.key, finding)
    assert [result.findings[-1:] for result in made.results] == [(), (finding,)]


def test_a_measurement_without_a_verdict_is_one_line_without_a_summary() -> None:
    measured = make_measurement()
    made = Outputs(measured={A: [measured]})
    assert made.measured_text == (
        f"ddpperf.measure: {A} {measured.name}, 2 ranks: {measured.figure}, compared with nothing\n"
    )
    assert made.silent
    made.complaints.append("no commit is known")
    assert not made.silent
