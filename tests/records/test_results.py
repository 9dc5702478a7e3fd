from __future__ import annotations

from pytest_ddpperf.records.measurement import Environment, Measurement, Plan, Series
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict

CPU = Environment("cpu", "AMD EPYC", 0, "AMD EPYC", 2, 1, 1, "gloo", 2, "2.13", None)
STEP_TIME = Series("step_time", "s", "lower", "absolute", "ratio", True, 0.0, (0.0473,), 0.0473, None)  # noqa: FBT003
MEASURED = Measurement("ddp", "ddp", None, Plan(5, 60), CPU, (), series=(STEP_TIME,))


def test_shown_in_a_prompt_a_result_is_its_verdict_and_its_change() -> None:
    slower = Comparison(STEP_TIME, 0.0418, 0.132, None, 0.03, 0.02, Verdict.REGRESSED, gated=True)
    result = Result("t.py::test_x", MEASURED, (slower,), Verdict.REGRESSED, None, "somewhere", ())
    assert repr(result) == ("<Result regressed: t.py::test_x ddp, 2 ranks, step_time 47.3 ms in 0 launches (+13.2 %)>")
    assert repr(Result("t.py::test_x", MEASURED, (), Verdict.NEW, None, "nothing", ())).endswith(" in 0 launches>")
