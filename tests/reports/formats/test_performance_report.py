from __future__ import annotations

from dataclasses import replace

import msgspec

from pytest_ddpperf.records.finding import Cause, Diagnosis
from pytest_ddpperf.records.results import StepAnalysis
from pytest_ddpperf.reports.formats.performance_report import performance_report
from tests.reports.formats.samples import UNCHANGED
from tests.reports.made import make_document


def test_without_advice_none_is_made_up() -> None:
    document = make_document(UNCHANGED)
    diagnosis = Diagnosis(bottleneck="data", step=0.1, causes=(Cause(bottleneck="data", seconds=0.06, share=0.6),))
    diagnosed = replace(document.results[0], step=StepAnalysis(diagnosis=diagnosis))
    report = performance_report(msgspec.structs.replace(document, results=(diagnosed,)))
    assert report.endswith("recommendations:\n  none: the plugin knows no change that would make the step faster\n")
