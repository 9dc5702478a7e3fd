"""The words of each finding, and that no finding is without words."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import pytest_ddpperf
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import LongSteps, SlowImport
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import WORDS, broken_reason, finding_text, sentence
from tests.factories import make_counts, make_interval, make_series
from tests.reports.golden_runs import golden
from tests.reports.made import make_result

MIB, GIB = 2**20, 2**30
STEPS = tuple(
    Counts(
        totals={"optimizer_steps": number}, details={"optimizer_steps": {"Adam": number}}, unstable={}, varying=varying
    )
    for number, varying in ((1 / 3, {"optimizer_steps": dict.fromkeys(("", "Adam"), ((1.0, 0.0, 0.0),))}), (1.0, {}))
)
SWEPT = {"most": 16 * MIB, "ranks": 4, "profiled": False}
UNSWEPT = {"most": None, "ranks": 4, "profiled": False}
SEEN = {"seen": 2, "launches": 3}
LONG = LongSteps(number=18, steps=180, factor=67.0, share=0.84, period=10)
NEVER = {"stored": False, "seen": (12, 500.0, 700.0)}
SITE = CallSite(part="no_sync", file="train.py", line=41, function="step", source="", backward=False, value=1.0)
LAW = {"points": [("excellent", 2)], "law": "amdahl", "serial": 0.2, "interval": None, "pays": None, "sharing": []}
GROWTH = {"device": "cpu", "least": MIB, "most": 2 * MIB, "ranks": (1,), "world_size": 4, "steps": 10, "launches": 3}


SAME = {"ranks": (0, 1), "drawn": True, "paired": None, "alone": False, "sites": ()}
STARTING = {"starting": 12.0, "working": 3.5, "launches": 3, "slowest": None, "setting": "max_time"}


def counts(**operators: float) -> Counts:
    """Counts of operators alone."""
    return make_counts({"operators": operators}, operators=sum(operators.values()))


MEANT = Comparison(
    series=make_series("step_time", 0.046), tolerance=0.03, verdict=Verdict.REGRESSED, gated=False, baseline=0.04
)
CASES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "acceptance": [
        {"worse": MEANT, "reason": "see #7", "needed": needed, "covered": covered}
        for needed, covered in ((True, True), (True, False), (False, True))
    ],
    "measured_beside": [{"pid": 7, "folder": "/home/me"}],
    "without_gpu": [
        {
            "sites": tuple(
                replace(SITE, part=part, line=line) for part, line in (("to(0)", 9), ("cuda", 7), ("to(0)", 41))
            )
        }
    ],
    "no_device_counts": [{"counts": ("kernel_launches", "device_copies")}],
    "on_network": [
        {"predicted": 0.011, "error": 0.06, "measured": None, "how": "", "exposed": exposed}
        for exposed in (0.002, 0.0, 0.02)
    ],
    "only_on_network": [{"predicted": 0.011, "error": 0.06, "profiled": profiled} for profiled in (False, True)],
    "not_on_network": [
        {"reason": "too_large", "collective": "all_reduce", "nbytes": 25.0 * MIB, **SWEPT},
        {"reason": "not_swept", "collective": "all_gather", "nbytes": 64.0, **UNSWEPT},
        {"reason": "never_swept", "collective": "send", "nbytes": 64.0, **UNSWEPT},
        {"reason": "smaller_groups", "collective": "", "nbytes": 0.0, **UNSWEPT},
        {"reason": "smaller_groups", "collective": "", "nbytes": 0.0, **UNSWEPT, "profiled": True},
    ],
    "empty_profile": [{}],
    "launches_needed": [
        {"launches": 30, "max_time": 60, "known": 5},
        {"launches": 30, "max_time": None, "known": None},
    ],
    "no_launches_decide": [{"any_number": False, "paired": True}, {"any_number": True, "paired": False}],
    "busy": [
        {"now": 0.41, "then": None},
        {"now": None, "then": 0.3},
        {"now": 0.41, "then": 0.3},
        {"now": 0.0, "then": 0.3},
    ],
    "slower_than_stored": [
        {"change": 0.12, "differ": ("torch 2.13.0 -> 2.13.1", "NCCL 2.27.5 -> 2.28.9")},
        {"change": 0.12, "differ": ()},
    ],
    "long_steps": [
        {"now": LONG, "before": replace(LONG, number=0, factor=0.0, share=0.0, period=None)},
        {"now": replace(LONG, number=1, period=None), "before": replace(LONG, share=0.101)},
        {"now": replace(LONG, phase="data_wait"), "before": None},
        {"now": replace(LONG, phase="optimizer"), "before": None},
        {"now": replace(LONG, phase="other"), "before": None},
    ],
    "timed_otherwise": [{"then_in_turns": False}, {"then_in_turns": True}],
    "mesh_without_data": [{"mesh": "mesh=tp=2", "names": ("dp", "data", "shard")}],
    "does_not_fit": [{"reason": "no", "fitted": True}, {"reason": "no", "fitted": False}],
    "lost_metric": [{"metric": "throughput", "paired": False}, {"metric": "throughput", "paired": True}],
    "alike_baselines": [{"names": ("ddp", "ddp w2")}],
    "count_changed": [{"metric": "optimizer_steps", "then": STEPS[0], "now": STEPS[1]}],
    "unsure_counts": [{"steps": {"optimizer_steps": 48}, "then": STEPS[1], "now": STEPS[0]}],
    "unsteady_count": [{"reason": "aten.mm from 1 to 9", "doubled": True}, {"reason": "1, 2", "doubled": False}],
    "fewer_counted": [
        {"metric": "operators", "then": counts(add=5.0, mul=4.0), "now": counts(add=5.0), "paired": False},
        {"metric": "operators", "then": counts(mul=4.0), "now": counts(add=4.0), "paired": False},
    ],
    "ungated_counts": [
        {
            "counts": (("operators", "5 or 6", True, (5.0, 6.0)), ("flops", "1 or 2", False, ())),
            "paired": False,
            "renew": True,
        }
    ],
    "cannot_run": [
        {"revision": "revision v1", "reason": "it raised", "submodules": False},
        {"revision": "revision v1", "reason": "it raised", "submodules": True},
        {"revision": "revision v1", "reason": "ModuleNotFoundError: No module named kit", "submodules": True},
    ],
    "other_environment": [
        {
            "python": "new/bin/python",
            "differ": ("torch 2.11 -> 2.13",),
            "packages": {"torch": ("2.11.0", "2.13.0"), "old-lib": ("1", None)},
        },
        {
            "python": "new/bin/python",
            "differ": (),
            "packages": {"q": ("1", None), **{f"p{i}": ("1", "2") for i in range(9)}, "r": (None, "1")},
        },
    ],
    "told_counts": [
        {
            "differs": ("torch 2.11 -> 2.13",),
            "changed": (("operators", 120.0, 118.0), ("flops", 1e6, 2e6)),
            "number": 9,
        },
        {"differs": ("torch 2.11 -> 2.13",), "changed": (), "number": 9},
    ],
    "settings_of_a_workload": [{"settings": (("precision", "bf16"), ("loader", "workers=2"))}],
    "other_batch_size": [{"size": 32, "samples": 16.0, "passes": 1}, {"size": 4, "samples": 4.0, "passes": 2}],
    "never_met": [{"series": make_series("throughput", 600.0, unit="samples/s"), "value": 900.0, **NEVER}],
    "left_by_steps": [{"processes": 2, "threads": 9}],
    "other_work": [
        {"metric": "backward_passes", "before": 1.0, "now": 4.0, "paired": False, "shapes": ()},
        {"metric": "batch_rows", "before": 8.0, "now": 16.0, "paired": True, "shapes": ()},
        {"metric": "batch_rows", "before": 8.0, "now": 8.0, "paired": True, "shapes": (("8 x 64",), ("8 x 128",))},
    ],
    "same_data": [
        SAME,
        {**SAME, "ranks": (0, 1, 3), "drawn": False, "paired": False},
        {**SAME, "alone": True},
        {**SAME, "sites": (replace(SITE, part="DistributedSampler"),)},
    ],
    "ranks_apart": [
        {"ranks": 2, "metric": "collective_calls", "pair": (4.0, 0.0), "paired": False},
        {"ranks": 2, "metric": "collective_bytes", "pair": (16.5 * 1024, 4.0), "paired": True},
    ],
    "parameters_apart": [
        {"ranks": (0, 1), "parameter": "net.0.weight", "sites": (SITE,), "paired": None},
        {"ranks": (0, 1), "parameter": "net.0.weight", "sites": (), "paired": None},
        {"ranks": (0, 2), "parameter": "", "sites": (), "paired": True},
    ],
    "lenient_verification": [
        {"precision": "bf16", "exact_steps": 0},
        {"precision": None, "exact_steps": 0},
        {"precision": None, "exact_steps": 2},
    ],
    "oversubscribed": [
        {"ranks": 6, "threads": 1, "shared": 4, "resource": "core"},
        {"ranks": 2, "threads": 1, "shared": 1, "resource": "GPU"},
        {"ranks": 2, "threads": 4, "shared": 4, "resource": "core"},
    ],
    "slow_starts": [
        STARTING,
        {**STARTING, "slowest": SlowImport(module="lightning", seconds=3.1, reason=None), "setting": "steps"},
        {**STARTING, "slowest": SlowImport(module="vendor", seconds=3.1, reason="starts a thread")},
    ],
    "outlying_launches": [
        {"outlying": ((4, 0.198),), "launches": 5},
        {"outlying": ((1, -0.1), (4, 0.2)), "launches": 9},
    ],
    "memory_growth": [
        GROWTH,
        {**GROWTH, "device": "cuda", "least": 2 * MIB, "ranks": (0, 1, 2, 3)},
        {**GROWTH, "ranks": (0, 1, 3), "launches": 1},
    ],
    "cores_used_by_others": [{"least": 0.12, "most": 0.38, **SEEN}],
    "cores_stolen": [
        {"least": 0.04, "most": 0.04, **SEEN},
        {"least": 0.04, "most": 0.04, **SEEN, "node": "node 1 (b)"},
    ],
    "cpu_quota": [{"least": 0.25, "most": 0.5, **SEEN}],
    "hot_cores": [{"least": 1, "most": 4, **SEEN}],
    "swapping": [{"least": 3 * MIB, "most": 3 * MIB, **SEEN}],
    "gpu_used_by_others": [{"pid": 7, "nbytes": 3 * GIB, **SEEN}, {"pid": 8, "nbytes": None, **SEEN}],
    "unread_gpus": [{"reasons": ("0000:1b:00.0: Insufficient Permissions", "0000:5d:00.0: GPU is lost"), **SEEN}],
    "busy_baseline": [{"lost": None}, {"lost": 0.5}],
    "scaling_law": [
        {**LAW, "points": [("good", 2), ("good", 4), ("poor", 8)]},
        {**LAW, "interval": make_interval(0.1, 0.3), "pays": 9, "sharing": [16]},
    ],
    "best_variants": [
        {"fastest": ("ddp",), "leanest": ("fsdp2", "zero1"), "unbeaten": ("ddp", "fsdp2")},
        {"fastest": (), "leanest": ("fsdp2",), "unbeaten": ()},
    ],
}
"""Facts by the code of their finding; ``golden/findings.txt`` has the sentence of each."""


def test_findings_read_as_before() -> None:
    sentences = [f"{code}: {finding_text(Finding(code, one))}\n" for code, facts in CASES.items() for one in facts]
    assert sentences == golden("findings.txt", "".join(sentences)).splitlines(keepends=True)


def test_every_code_whose_words_depend_on_its_facts_has_a_case() -> None:
    assert CASES.keys() == {code for code, words in WORDS.items() if not isinstance(words, str)}


def test_facts_of_a_template_are_quantities() -> None:
    quantities = {"size": 3 * MIB, "share": 0.4, "change": 0.2, "clock": 1.7e9, "rate": 2e9, "time": 0.5}
    assert sentence("{size:B}, {share:%}, {change:+%}, {clock:MHz}, {rate:G}FLOP/s, {time:s}", quantities) == (
        "3.00 MiB, 40 %, +20.0 %, 1700 MHz, 2 GFLOP/s, 500 ms"
    )
    words = {"names": ("a", "b", "c"), "paired": True, "one": 1, "two": 2, "plain": 96.0}
    assert sentence("{names:and}; {names:list}; {one:launch}, {two:timed step}, {plain:g}", words) == (
        "a, b and c; a, b, c; 1 launch, 2 timed steps, 96"
    )
    assert sentence("{paired:reference}: {paired:turns}", words) == (
        "the other revision: different benchmarks are not interleaved"
    )


def test_a_finding_of_another_plugin_is_shown_with_its_code_and_facts() -> None:
    assert finding_text(Finding("cold_cache", {"misses": 3, "level": "L2"})) == "cold_cache: misses=3, level=L2"
    assert finding_text(Finding("cold_cache")) == "cold_cache"


def test_the_reason_of_a_broken_result_is_found_by_its_code() -> None:
    findings = (Finding("few_launches", {"made": 1}), Finding("broken", {"reason": "rank 1 was killed"}))
    assert broken_reason(make_result(findings=findings)) == "rank 1 was killed"
    assert broken_reason(make_result(findings=findings[:1])) == "the measurement failed"


@cache
def produced() -> list[tuple[str, ast.Call]]:
    """Each ``Finding(...)`` in the package, with where it is."""
    return [
        (f"{file.name}:{node.lineno}", node)
        for file in sorted(Path(pytest_ddpperf.__file__).parent.rglob("*.py"))
        if "Finding(" in (text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    ]


def literal(call: ast.Call) -> str:
    """The code of a finding: the syntax tree has to tell it."""
    code = call.args[0]
    assert isinstance(code, ast.Constant), ast.unparse(call)
    assert isinstance(code.value, str)
    return code.value


def test_every_finding_of_the_package_has_words_and_every_row_of_the_table_a_finding() -> None:
    assert {literal(call) for _, call in produced()} == set(WORDS)


def test_findings_have_the_facts_that_their_words_take() -> None:
    """They are written out where the finding is made, but for the spans of a machine that others use."""
    for place, call in produced():
        facts = call.args[1] if len(call.args) > 1 else ast.Dict(keys=[], values=[])
        if isinstance(facts, ast.Dict):
            names = {name.value for name in facts.keys if isinstance(name, ast.Constant)}
        else:
            assert (ast.unparse(facts), place[:11]) == ("span", "findings.py"), f"{place}: write the facts out"
            names = {"least", "most", "seen", "launches", "node"}
        words = WORDS[literal(call)]
        if isinstance(words, str):
            taken = {name for _, name, _, _ in Formatter().parse(words) if name}
        else:
            taken = set(inspect.signature(words).parameters)
        assert names == taken, place
