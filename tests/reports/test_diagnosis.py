"""The line on what a step is bound by."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.records.finding import Advice, Bottleneck, Cause, Diagnosis
from pytest_ddpperf.reports.diagnosis import diagnosis_text
from tests.shell import shown


def told(*causes: Cause, bottleneck: Bottleneck, advice: tuple[Advice, ...] = ()) -> str:
    return diagnosis_text(Diagnosis(bottleneck=bottleneck, step=0.1, causes=causes, advice=advice))


def cause(bottleneck: Bottleneck, share: float, **facts: Any) -> Cause:
    return Cause(bottleneck=bottleneck, seconds=0.1 * share, share=share, facts=facts)


def test_the_line_names_cause_figures_and_change() -> None:
    advice = Advice(code="loader_workers", bottleneck="data", gain=0.5, facts={"workers": 4})
    other = Advice(code="accumulation", bottleneck="communication", gain=0.4, facts={"steps": 4})
    line = told(cause("data", 0.62), cause("communication", 0.2), bottleneck="data", advice=(advice, other))
    assert line == "data-bound: 62 % of the step (62.0 ms); load data with workers=4 (saves at most 50 %)"
    assert shown("diagnosis.md", "data-bound") == f"test_text.py::test_step: {line}\n"


@pytest.mark.parametrize(
    ("code", "estimated", "words"),
    [
        ("accumulation", False, "with no_sync (saves at most 40 % of the time of a sample)"),
        ("larger_batch", True, "use a batch 4 times as large (saves about 40 % of the time of a sample)"),
        ("compile", True, "(saves about 40 %)"),
    ],
)
def test_advice_for_the_bottleneck_has_its_gain_as_a_maximum(code: str, estimated: bool, words: str) -> None:  # noqa: FBT001
    advice = Advice(code=code, bottleneck="overhead", gain=0.4, estimated=estimated, facts={"steps": 4, "times": 4})
    assert told(cause("overhead", 0.5), bottleneck="overhead", advice=(advice,)).endswith(words)


@pytest.mark.parametrize(
    ("bottleneck", "facts", "words"),
    [
        (
            "compute",
            {"flops": 5e9, "rate": 1e11},
            "compute-bound: 50 % of the step (50.0 ms), 5.00 GFLOP; a rank computes up to",
        ),
        ("communication", {"sent": 1 << 20, "collectives": 3.0}, "1.00 MiB in 3 collectives"),
        ("memory_bandwidth", {"moved": 1 << 30, "rate": 2e10}, "1.00 GiB moved; a rank moves up to"),
        ("overhead", {"operators": 900.0, "each": 2e-6}, "900 operators; a small operator takes"),
        (
            "straggler",
            {"rank": 1, "own": 0.08, "others": 0.03, "phase": "forward"},
            "rank 1 takes 80.0 ms, the others 30.0 ms; most of the difference is in forward",
        ),
        ("oversubscribed", {"wanted": 4, "there": 2, "resource": "core"}, "4 threads on 2 cores"),
    ],
)
def test_each_cause_has_its_figures(bottleneck: Bottleneck, facts: dict[str, Any], words: str) -> None:
    assert words in told(cause(bottleneck, 0.5, **facts), bottleneck=bottleneck)


def test_fragmentation_is_reported_with_the_setting_that_reduces_it() -> None:
    advice = Advice(code="expandable_segments", bottleneck="memory_capacity", gain=None, facts={"share": 0.25})
    line = told(bottleneck="memory_capacity", advice=(advice,))
    assert "; 25 % of the memory that is held lies unused between tensors; to save memory, set PYTORCH_CUDA" in line


@pytest.mark.parametrize(
    ("ranks", "threads", "words"), [(4, 1, "4 ranks with 1 thread each"), (1, 4, "1 rank with 4 threads each")]
)
def test_ranks_and_threads_agree_with_their_numbers(ranks: int, threads: int, words: str) -> None:
    facts = {"ranks": ranks, "threads": threads}
    advice = Advice(code="fewer_ranks", bottleneck="oversubscribed", gain=None, facts=facts)
    assert told(bottleneck="oversubscribed", advice=(advice,)).endswith(f"use fewer ranks or threads: now {words}")


def test_a_disturbed_machine_is_named_after_another_cause() -> None:
    diagnosis = Diagnosis(bottleneck="data", step=0.1, causes=(cause("data", 0.9),), lost=0.4)
    assert diagnosis_text(diagnosis).endswith("; other processes took 40 % of the cores")


def test_a_disturbed_machine_is_named_before_small_causes() -> None:
    causes = (cause("data", 0.33), cause("compute", 0.32, flops=1.0, rate=1.0), cause("disturbed", 0.18, lost=0.4))
    mixed = diagnosis_text(Diagnosis(bottleneck="disturbed", step=0.1, causes=causes, lost=0.4))
    assert mixed == (
        "disturbed: no cause takes a third of the step (waiting for data 33 %, matrix products 32 %); other processes "
        "took 40 % of the cores"
    )
    alone = diagnosis_text(Diagnosis(bottleneck="disturbed", step=0.1, causes=(cause("disturbed", 0.6),), lost=0.4))
    assert alone == "disturbed: 60 % of the step (60.0 ms); other processes took 40 % of the cores"


def test_the_memory_bottleneck_has_the_share_of_used_memory() -> None:
    diagnosis = Diagnosis(bottleneck="memory_capacity", step=0.1, causes=(cause("compute", 0.9),), memory=0.95)
    assert diagnosis_text(diagnosis) == "memory-capacity-bound: a rank uses 95 % of its memory"


def test_an_unclear_diagnosis_names_the_largest_parts_or_the_wait() -> None:
    mixed = told(cause("data", 0.3), cause("compute", 0.25, flops=1.0, rate=1.0), bottleneck="unclear")
    assert mixed == "unclear: no cause takes a third of the step (waiting for data 30 %, matrix products 25 %)"
    idle = told(cause("unclear", 0.7, idle=0.07), cause("compute", 0.3, flops=1.0, rate=1.0), bottleneck="unclear")
    assert idle.startswith("unclear: ranks wait for 70 % of the step for an unknown reason")
