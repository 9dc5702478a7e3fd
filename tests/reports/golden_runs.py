"""Runs of 6, 7 and 30 benchmarks with a bit of everything, for the golden files of the summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, TimeSpent
from pytest_ddpperf.records.measurement import MetricRules, Plan
from pytest_ddpperf.records.phases import PHASES, BlockTimes
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.records.verbs import Search, Trial
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.causes import reason_text
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.stats.intervals import change_of_suite
from tests.factories import (
    PROFILE,
    analysed,
    make_environment,
    make_interval,
    make_launch,
    make_measurement,
    make_rank_launch,
    make_series,
)

GOLDEN = Path(__file__).parent / "golden"
MIB = 2.0**20
RULES = {row.name: row.rules for row in METRICS}
UNITS = {row.name: row.unit for row in METRICS}
OTHERS = {"least": 0.48, "most": 0.73, "seen": 6, "launches": 6}
AGAIN = {"steps": 40, "launches": 2}
LONG = "perf/test_language_model.py::TestPretraining::test_step_of_a_decoder_with_rotary_embeddings"
COMMIT = "3f2a1c0" + "0" * 33
COMMIT_OF_BASELINE = PairedRevision(revision="3f2a1c0", commit=COMMIT, launches=6, candidate_launches=6)
PHASE_SHARES = dict(zip(PHASES, (0.01, 0.3, 0.45, 0.18, 0.058, 0.002), strict=True))


def golden(name: str, text: str) -> str:
    """The text of a golden file, which is written first if the environment asks for it."""
    if os.environ.get("DDPPERF_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    return (GOLDEN / name).read_text()


def environment(world_size: int = 2) -> Any:
    """A small machine that is shared with others."""
    return make_environment(cpu_model="AMD EPYC", cores=2, world_size=world_size)


def metric(name: str, value: float, verdict: Verdict, change: float | None = None, **fields: Any) -> Comparison:
    """A judged metric whose intervals have 1 % to either side of its value, and 2 % of its change."""
    exact = fields.pop("exact", False)
    half = fields.pop("half", 0.02)
    series = make_series(
        name,
        value,
        unit=UNITS.get(name, "1"),
        scale="exact" if exact else "ratio",
        rules=RULES.get(name, MetricRules()),
        samples=fields.pop("samples", (value,)),
        interval=fields.pop("interval", None if exact else make_interval(0.99 * value, 1.01 * value)),
    )
    known = {}
    if change is not None:
        baseline = value - change if exact else value / (1 + change)
        interval = None if exact else make_interval(change - half, change + half)
        known = {"baseline": baseline, "change": change, "change_interval": interval}
    defaults = {"tolerance": 0.03, "margin": 0.05, "gated": True, "mde": None if change is None or exact else 2 * half}
    defaults["bound"] = None if change is None or exact else change + 0.8 * half
    return Comparison(series=series, verdict=verdict, **{**defaults, **known, **fields})


def diagnosed(step: float) -> list[Comparison]:
    """Phases and exposed communication, which are not gated."""
    parts = {f"phase_{phase}": share * step for phase, share in PHASE_SHARES.items()}
    shown = {**parts, "exposed_communication": 0.15 * step}
    return [metric(name, value, Verdict.NEW, gated=False) for name, value in shown.items()]


def result(
    test: str,
    verdict: Verdict,
    step: float = 0.0,
    change: float | None = None,
    more: tuple[Comparison, ...] = (),
    **fields: Any,
) -> Result:
    """A benchmark with the time of its step, throughput and memory, and what else it has."""
    measured: dict[str, Any] = fields.pop("measured", {})
    world_size = fields.pop("world_size", 2)
    step_fields: Mapping[str, Any] = fields.pop("step_time", {})
    differs, unpaired = fields.pop("differs", ()), fields.pop("unpaired", "")
    stored = verdict not in {Verdict.NEW, Verdict.BROKEN}
    paired = stored and change is not None and not differs and not unpaired
    comparisons: list[Comparison] = []
    launches: tuple[Launch, ...] = ()
    if step:
        judged = Verdict(step_fields.get("verdict", verdict))
        others = {key: value for key, value in step_fields.items() if key != "verdict"}
        comparisons = [
            metric("step_time", step, judged, change, paired=paired, **others),
            metric(*("throughput", 32 / step, judged, None if change is None else 1 / (1 + change) - 1), paired=paired),
            metric("peak_resident", 100 * MIB + 1e9 * step, Verdict.UNCHANGED, None if change is None else 0.001),
        ]
        comparisons = [c for c in comparisons if c.series.metric not in {m.series.metric for m in more}]
        blocks = BlockTimes(synchronised=(step,), unsynchronised=(0.85 * step,))
        rank = make_rank_launch(0, (step,), communication=blocks)
        launches = tuple(make_launch(round=number, ranks=(rank,)) for number in range(6))
        comparisons += diagnosed(step)
    measurement = make_measurement(
        **{
            "name": "ddp",
            "strategy": "ddp",
            "plan": Plan(warmup=5, steps=40),
            "launches": launches,
            "environment": environment(world_size),
            **measured,
        }
    )
    record = BaselineRecord(
        **{**measurement.identity_fields, "environment": environment(world_size)},
        plan=measurement.plan,
        series=(),
        commit=COMMIT,
        date="2026-01-12",
    )
    known = fields.pop("reference", None) or StoredBaseline(
        record=record if stored else None,
        origin="cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
        differs=differs,
        pair=COMMIT_OF_BASELINE if paired else None,
        unpaired=unpaired,
    )
    reasons = (Finding("unpaired", {"reason": unpaired}),) if unpaired else ()
    made = Result(
        test=test,
        measurement=measurement,
        comparisons=(*comparisons, *more),
        verdict=verdict,
        reference=known,
        findings=(*fields.pop("findings", ()), *reasons),
    )
    made = analysed(made)
    failed = verdict in {Verdict.REGRESSED, Verdict.BROKEN}
    return replace(made, failure=reason_text(made, verdict, ())) if failed else made


def strategy(name: str, **fields: Any) -> dict[str, Any]:
    """The measurement's fields of a strategy."""
    return {"name": name, "strategy": name.partition(" ")[0], **fields}


def disturbed(**facts: float) -> Finding:
    """What other processes did, by facts that differ from ``OTHERS``."""
    return Finding("cores_used_by_others", {**OTHERS, **facts})


def site(part: str, line: int, value: float) -> CallSite:
    """A line of the trainer that part of a count comes from, under backward."""
    place = {"file": "trainer.py", "line": line, "function": "step", "source": f"{line}"}
    return CallSite(part=part, backward=True, value=value, **place)  # type: ignore[arg-type]


def counts(calls: float, operators: float) -> Counts:
    """So many all-reduces of 1 MiB each, all from line 16, and operators of two kinds."""
    details = {
        "collective_calls": {"all_reduce": calls},
        "collective_bytes": {"all_reduce": calls * MIB},
        "operators": {"aten.copy_": 2 * calls, "aten.mul": operators - 2 * calls},
    }
    totals = {name: sum(parts.values()) for name, parts in details.items()}
    sites = {name: (site("all_reduce", 16, details[name]["all_reduce"]),) for name in list(details)[:2]}
    return Counts(totals=totals, details=details, unstable={}, sites=sites)


def counted(name: str, then: Counts, now: Counts) -> Comparison:
    """A count that became more."""
    note = Finding("count_changed", {"metric": name, "then": then, "now": now})
    change = now.totals[name] - then.totals[name]
    return replace(metric(name, now.totals[name], Verdict.REGRESSED, change, exact=True), note=note)


SAME = tuple(
    metric(name, 2.0, Verdict.UNCHANGED, 0.0, exact=True) for name in ("collective_calls", "operators", "flops")
)
REGRESSED = result(
    "perf/test_strategies.py::test_step[naive]",
    Verdict.REGRESSED,
    0.0473,
    0.132,
    (
        metric("collective_calls", 8.0, Verdict.REGRESSED, 6.0, exact=True),
        metric("collective_bytes", 16.0 * MIB, Verdict.REGRESSED, 12.0 * MIB, exact=True),
        metric("operators", 112.0, Verdict.REGRESSED, 24.0, exact=True),
        metric("flops", 4.19e6, Verdict.REGRESSED, 2.1e6, exact=True),
    ),
    measured=strategy("naive", profile=PROFILE),
    step_time={
        "samples": (0.0469, 0.0473, 0.0478, 0.0474, 0.0471, 0.0476),
        "base_samples": (0.0416, 0.0418, 0.0482, 0.0414, 0.0417, 0.0419),
        "worse_in": 6,
    },
    findings=(Finding("suspected", {"metrics": ("step_time",), "launches": 6}), disturbed()),
)
BROKEN = result(
    "perf/test_strategies.py::test_step[zero1]",
    Verdict.BROKEN,
    measured=strategy("zero1"),
    findings=(
        Finding("broken", {"reason": "rank 1 raised RuntimeError: the size of tensor a (64) must match the size of b"}),
    ),
)
UNDECIDED = result(
    "perf/test_strategies.py::test_step[bucketed]",
    Verdict.INCONCLUSIVE,
    0.0429,
    0.026,
    SAME,
    measured=strategy("bucketed"),
    step_time={"half": 0.12, "note": Finding("launches_needed", {"launches": 30, "max_time": 90, "known": None})},
    findings=(disturbed(least=0.5),),
)
UNCHANGED = result(
    "perf/test_strategies.py::test_step[ddp]", Verdict.UNCHANGED, 0.0412, -0.004, SAME, findings=(disturbed(most=0.6),)
)
IMPROVED = result(
    "perf/test_strategies.py::test_step[overlap]", Verdict.IMPROVED, 0.0331, -0.21, SAME, measured=strategy("overlap")
)
NEW = result(
    f"{LONG}[fsdp2-bf16-4-1024]", Verdict.NEW, 0.412, None, SAME, measured=strategy("fsdp2"), findings=(disturbed(),)
)


def _pretraining(number: int) -> Result:
    """One of many with a long id; their numbers of steps and their loads differ a little."""
    strategies = ("naive", "flat", "ddp", "fsdp1", "fsdp2")
    name = strategies[number % len(strategies)]
    change = 0.01 * (number % 3 - 1)
    undecided, half = number % 4 == 3, 0.02 if number % 2 else 0.08  # unchanged rules out more than ok does
    return result(
        f"{LONG}[{name}-{'bf16' if number % 2 else 'fp32'}-{2 ** (number // 5)}-1024]",
        Verdict.INCONCLUSIVE if undecided else Verdict.UNCHANGED if number % 2 else Verdict.OK,
        0.4 + 0.01 * number,
        change,
        SAME,
        measured=strategy(name),
        step_time={"half": 0.12 + 0.01 * number, "note": _needed(number)} if undecided else {"half": half},
        findings=(disturbed(least=0.48 + 0.01 * number, most=0.6 + 0.01 * number),),
    )


def _needed(number: int) -> Finding:
    """Why it is undecided."""
    return Finding("launches_needed", {"launches": 20 + number, "max_time": 60 + 3 * number, "known": None})


def _scaling(world_size: int, efficiency: float | None) -> Result:
    """A point of a weak scaling curve."""
    more = () if efficiency is None else (metric("scaling_efficiency", efficiency, Verdict.UNCHANGED, 0.001),)
    crowded = Finding("oversubscribed", {"ranks": world_size, "threads": 1, "shared": 2, "resource": "core"})
    return result(
        "perf/test_scaling.py::test_weak_scaling",
        Verdict.UNCHANGED,
        0.02 / (efficiency or 1.0),
        0.003,
        more,
        world_size=world_size,
        measured=strategy(f"weak w{world_size} ddp", mode="weak"),
        findings=(crowded,) if world_size > 2 else (),
    )


def _compared(name: str, speedup: float | None, verdict: Verdict = Verdict.UNCHANGED) -> Result:
    """A variant of a comparison, with its speedup over the first one."""
    more = () if speedup is None else (metric("speedup", speedup, Verdict.UNCHANGED, 0.0),)
    return result(
        "perf/test_compare.py::test_strategies_side_by_side",
        verdict,
        0.05 / (speedup or 1.0),
        0.31 if verdict is Verdict.REGRESSED else -0.002,
        more,
        measured=strategy(name, over="naive" if speedup else None),
    )


SPECIAL = (
    _scaling(1, None),
    _scaling(2, 0.91),
    _scaling(4, 0.43),
    _compared("naive", None),
    _compared("ddp bucket_cap_mb=5 static_graph=true", 1.42, Verdict.REGRESSED),
    _compared("ddp bucket_cap_mb=25 static_graph=true", 1.51),
    result(
        "perf/test_memory.py::test_activations",
        Verdict.REGRESSED,
        0.00004,
        0.002,
        (metric("peak_resident", 463 * MIB, Verdict.REGRESSED, 0.124),),
        step_time={"verdict": Verdict.UNCHANGED},
        findings=(
            Finding(
                "memory_growth",
                {"device": "cpu", "least": 4e6, "most": 4.2e6, "ranks": (0, 1), "world_size": 2, **AGAIN},
            ),
        ),
    ),
    result(
        "perf/test_memory.py::test_optimizer",
        Verdict.INCOMPATIBLE,
        0.031,
        differs=("torch 2.11 -> 2.13",),
        findings=(Finding("unsettled_warmup", {"slow": 4, "launches": 6, "slower": 0.1, "warmup": 5}), disturbed()),
    ),
    result(
        "perf/test_counts.py::test_collectives",
        Verdict.UNCHANGED,
        more=(
            metric("collective_calls", 2.0, Verdict.UNCHANGED, 0.0, exact=True),
            metric("flops", 4.19e6, Verdict.UNCHANGED, 0.0, exact=True),
        ),
    ),
)
THIRTY = (REGRESSED, BROKEN, UNDECIDED, UNCHANGED, IMPROVED, NEW, *SPECIAL, *map(_pretraining, range(15)))


def _search(number: int) -> Search:
    tried = tuple(Trial(size, size <= 12 + number, None) for size in (8, 16, 12))
    return Search(
        test=f"perf/test_memory.py::test_largest_batch[{number}]",
        training="ddp precision=bf16",
        world_size=2,
        environment_key="cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
        limit=None,
        memory_limit=512 * 2**20,
        size=12,
        peak=(480.0 + number) * MIB,
        tried=tried,
    )


PAIRED = PairedRevision(revision="3f2a1c0 (main)", commit=COMMIT, launches=6, candidate_launches=6)


def _beside(name: str, verdict: Verdict, change: float, *counts: Comparison, **step_time: Any) -> Result:
    """One of a suite beside another revision."""
    return result(
        f"perf/test_strategies.py::test_step[{name}]",
        verdict,
        0.04 * (1 + change),
        change,
        counts or SAME,
        measured=strategy(name),
        step_time={"tolerance": 0.015, "margin": 0.025, **step_time},
        reference=PAIRED,
    )


SUITE = (
    _beside("ddp", Verdict.OK, 0.029),
    _beside("flat", Verdict.OK, 0.036, half=0.05),
    _beside("overlap", Verdict.OK, 0.031, half=0.03),
    _beside("fsdp2", Verdict.OK, 0.027, half=0.04),
    _beside("zero1", Verdict.UNCHANGED, 0.004, half=0.015),
    _beside(
        *("bucketed", Verdict.INCONCLUSIVE, 0.038),
        half=0.12,
        note=Finding("launches_needed", {"launches": 11, "max_time": 90, "known": None}),
    ),
    _beside(
        *("naive", Verdict.REGRESSED, 0.192),
        *(counted("collective_calls", counts(2, 100), counts(4, 100)), *SAME[1:]),
        half=0.04,
        samples=(0.0471, 0.0466, 0.0398, 0.0495, 0.0502, 0.0488),
        base_samples=(0.0399, 0.0401, 0.0402, 0.0397, 0.0404, 0.0403),
        worse_in=5,
    ),
)


def _timed(*results: Result) -> tuple[Result, ...]:
    """The results with the seconds of their calls: each measured for 2 s longer than the one before it."""
    parts = {"starting": 11.6, "verifying": 1.2, "counting": 0.8, "diagnosing": 3.1, "other": 0.3}
    return tuple(
        replace(result, spent=TimeSpent(**parts, measuring=20.0 + 2 * number)) for number, result in enumerate(results)
    )


def outputs(*results: Result, **more: Any) -> Outputs:
    """What a run with these results has at its end."""
    return Outputs(results=[*results], common_change=change_of_suite(results), **more)


RUNS = {
    7: outputs(*SUITE, here="8be01d2+changes"),
    6: outputs(
        *_timed(UNCHANGED, REGRESSED, BROKEN, UNDECIDED, IMPROVED, NEW),
        searches=[_search(0)],
        complaints=[
            "ddpperf_history: /home/somebody/projects/training/.ddpperf/history.sqlite is locked: it is skipped"
        ],
        recorded="this run is number 31 of .ddpperf/history.sqlite",
    ),
    30: outputs(*_timed(*THIRTY), searches=[*map(_search, range(4))]),
}
"""By their numbers of benchmarks; 7 are a suite beside another revision."""

_GREEN = [one for one in map(_pretraining, range(18)) if one.verdict is not Verdict.INCONCLUSIVE]
_QUIET = [replace(one, findings=()) for one in (UNCHANGED, IMPROVED, *_GREEN)]
_NAMED = (result(f"perf/test_trainer.py::test_{name}", Verdict.OK, 0.02, 0.004, SAME) for name in ("epoch", "resume"))
_STRATEGIES = (_beside(name, Verdict.OK, 0.01) for name in ("flat", "bucketed", "fsdp2"))
_GREENS = [*_QUIET, *SPECIAL[:4], SPECIAL[5], *(replace(one, reference=UNCHANGED.reference) for one in _STRATEGIES)]
SCREENS = {
    "green": outputs(*_GREENS, *_NAMED),
    "red": RUNS[7],
    "undecided": outputs(UNDECIDED, *map(_pretraining, range(3, 27, 4)), UNCHANGED, SPECIAL[7], NEW),
    "broken": outputs(
        UNCHANGED, BROKEN, IMPROVED, SPECIAL[6], complaints=["ddpperf_history: history.sqlite is locked"]
    ),
}
"""What a run ends with if nothing got worse, if something did, if nobody knows, and if a rank failed."""
