"""The file of each kind for a run with a bit of everything, as files to look at: ``golden/report.*``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pytest_ddpperf.records.finding import Advice, Cause, Diagnosis
from pytest_ddpperf.records.predictions import Gain
from pytest_ddpperf.records.results import StepAnalysis
from pytest_ddpperf.reports.documents import entries
from pytest_ddpperf.reports.formats.kinds import KINDS
from pytest_ddpperf.reports.formats.markdown import MARK
from tests.reports.formats.samples import BROKEN, REGRESSED, STEP, UNCHANGED
from tests.reports.golden_runs import golden
from tests.reports.made import make_document

DIAGNOSIS = Diagnosis(
    bottleneck="data",
    step=0.1,
    causes=(Cause(bottleneck="data", seconds=0.06, share=0.6), Cause(bottleneck="unclear", seconds=0.04, share=0.4)),
    advice=(
        Advice(code="loader_workers", bottleneck="data", gain=0.6, facts={"workers": 4}),
        Advice(code="larger_batch", bottleneck="overhead", gain=None, facts={"times": 2}),
    ),
)
GAIN = Gain(value=0.2, low=0.1, high=0.3)
PREDICTIONS = (
    entries.PredictionEntry(test="t.py::test_p", name="ddp", gain=None, **STEP),
    entries.PredictionEntry(test="t.py::test_p", name="flat", gain=GAIN, **{**STEP, "seconds": 0.032}),
)
SAME: dict[str, Any] = {"strategy": "", "batch_size": None, "measured": None}
BEST = entries.CandidateEntry(
    name="fsdp2", memory=2**30, fits=True, reason="", prediction=entries.StepEntry(**STEP), standing="best", **SAME
)
LARGE = entries.CandidateEntry(
    name="ddp",
    memory=2**36,
    fits=False,
    reason="its tensors take 64 GiB of 32 GiB",
    prediction=None,
    standing="does not fit",
    **SAME,
)
ADVICE = entries.StrategyAdviceEntry(test="t.py::test_a", world_size=64, memory=2**35, candidates=(BEST, LARGE))


def whole_run() -> entries.Run:
    """Of three benchmarks, the first one with a diagnosis, and with predictions and advice."""
    document = make_document(UNCHANGED, REGRESSED, BROKEN)
    first, *others = document.results
    results = (replace(first, step=StepAnalysis(diagnosis=DIAGNOSIS)), *others)
    return msgspec.structs.replace(document, results=results, predictions=PREDICTIONS, advice=(ADVICE,))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "html"])
def test_a_file_reads_as_before(kind: str) -> None:
    text = KINDS[kind].render(whole_run())
    assert text == golden(f"report.{kind}", text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("latex", "% no benchmark was judged\n"),
        ("markdown", f"{MARK}\n\n## ddpperf: no benchmark was judged\n"),
        ("text", "Performance report\n==================\n\nno benchmark was judged\n"),
    ],
)
def test_a_file_without_a_benchmark_says_so(kind: str, text: str) -> None:
    assert KINDS[kind].render(make_document()) == text


def test_a_report_makes_up_no_recommendation() -> None:
    document = make_document(UNCHANGED)
    step = StepAnalysis(diagnosis=replace(DIAGNOSIS, advice=()))
    report = KINDS["text"].render(msgspec.structs.replace(document, results=(replace(document.results[0], step=step),)))
    assert report.endswith("recommendations:\n  none: the plugin knows no change that would make the step faster\n")
