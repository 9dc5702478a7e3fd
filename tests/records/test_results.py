from __future__ import annotations

from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from pytest_ddpperf.records.results import Comparison, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_environment

CPU = make_environment(cpu_model="AMD EPYC", cores=2)
STEP_TIME = Series(
    metric="step_time",
    unit="s",
    better="lower",
    family="absolute",
    scale="ratio",
    gated=True,
    min_tolerance=0.0,
    samples=(0.0473,),
    value=0.0473,
    interval=None,
)
MEASURED = Measurement(
    name="ddp",
    strategy="ddp",
    mode=None,
    plan=Plan(warmup=5, steps=60),
    environment=CPU,
    launches=(),
    series=(STEP_TIME,),
)


def test_shown_in_a_prompt_a_result_is_its_verdict_and_its_change() -> None:
    slower = Comparison(
        series=STEP_TIME,
        baseline=0.0418,
        change=0.132,
        change_interval=None,
        tolerance=0.03,
        mde=0.02,
        verdict=Verdict.REGRESSED,
        gated=True,
    )
    result = Result(
        test="t.py::test_x",
        measurement=MEASURED,
        comparisons=(slower,),
        verdict=Verdict.REGRESSED,
        reference=StoredBaseline(record=None, origin="somewhere"),
    )
    assert repr(result) == ("<Result regressed: t.py::test_x ddp, 2 ranks, step_time 47.3 ms in 0 launches (+13.2 %)>")
    assert repr(
        Result(
            test="t.py::test_x",
            measurement=MEASURED,
            comparisons=(),
            verdict=Verdict.NEW,
            reference=StoredBaseline(record=None, origin="nothing"),
        )
    ).endswith(" in 0 launches>")
