from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.judge.quality import QualityRules, held, trained
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.batch_size import Search, Trial
from pytest_ddpperf.records.convergence import Convergence, Curve
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.health import CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.launch import DeviceMemory, Launch, RankLaunch
from pytest_ddpperf.records.measurement import Interval, Plan
from pytest_ddpperf.records.phases import PHASES, MemoryUse, PhaseTimes
from pytest_ddpperf.records.results import Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.entries import ResultsFile
from pytest_ddpperf.reports.documents.schema import schema_of
from tests.factories import PROFILE, make_results_document, read_again

Make = Callable[..., Result]
Compare = Callable[..., Comparison]


COUNTS = Counts(
    totals={"collective_calls": 2.0},
    details={"collective_calls": {"all_reduce": 2.0}},
    unstable={"operators": "add"},
    details_by_rank={"collective_calls": {"all_reduce": (2.0, 1.0), "send": (0.0, 1.0)}},
    sites={
        "collective_calls": (
            CallSite(part="all_reduce", file="a.py", line=7, function="f", source="x()", backward=True, value=2.0),
        )
    },
)
CALLS = Comparison(
    series=counted_series(COUNTS)[0],
    baseline=1.0,
    change=1.0,
    change_interval=None,
    tolerance=0.0,
    mde=0.0,
    verdict=Verdict.REGRESSED,
    gated=True,
    note=Finding("all_reduce 1 -> 2"),
)
CODE = Checkout("3f2a1c0", "main", dirty=True)
MODULES = {"demo": ("/here/demo.py", "/there/demo.py"), "demo.new": ("/here/new.py", None)}


@pytest.fixture
def search(make_result: Make) -> Search:
    """5 samples fit, 6 do not, and 8 brought a rank to its end."""
    tried = (Trial(4, True, 2e6), Trial(8, False, None), Trial(6, False, 4e6), Trial(5, True, 3e6))  # noqa: FBT003
    environment = make_result().measurement.environment
    return Search(
        test="t.py::test_size",
        training="ddp precision=bf16",
        world_size=environment.world_size,
        environment_key=environment_key(environment),
        limit=64,
        memory_limit=2**20,
        size=5,
        peak=3e6,
        tried=tried,
    )


@pytest.fixture
def validate() -> Callable[[Any], None]:
    """Holds a document against the published schema, and against what reads it again."""
    schema = schema_of(ResultsFile)
    jsonschema.Draft202012Validator.check_schema(schema)

    def hold(document: Any) -> None:
        jsonschema.Draft202012Validator(schema).validate(document)
        read_again(document)

    return hold


@pytest.fixture
def results(make_result: Make, make_comparison: Compare) -> list[Result]:
    """One of every kind: regressed, new, broken, a scaling point."""
    efficiency = make_comparison("scaling_efficiency", 0.84, Verdict.UNCHANGED, baseline=0.9, change=-0.06)
    crowded = Finding("crowded")
    return [
        make_result(findings=(crowded,), measured={"findings": (crowded, Finding("unsettled"))}),
        make_result(verdict=Verdict.NEW, baseline=None, comparisons=(make_comparison("step_time", 0.04, Verdict.NEW),)),
        make_result(
            verdict=Verdict.BROKEN,
            comparisons=(),
            baseline=None,
            measured={"launches": (), "plan": Plan(warmup=0, steps=0)},
        ),
        make_result(comparisons=(efficiency,), measured={"name": "weak", "mode": "weak"}),
        make_result(comparisons=(CALLS,), measured={"counts": COUNTS}),
        make_result(measured={"profile": PROFILE}),
        make_result(measured={"profile": replace(PROFILE, transfer=None, wait=None, slowest=None, window=None)}),
        make_result(
            paired=PairedRevision(revision="3f2a1c0 (main)", commit="3f2a1c0", launches=8, modules=MODULES),
            seconds=12.5,
        ),
    ]


def test_a_profile_is_told_in_base_units(results: list[Result]) -> None:
    assert make_results_document(results, None)["results"][5]["profile"] == {
        "step": 0.05,
        "busy": 0.02,
        "overlapped": 0.015,
        "gaps": 0.001,
        "transfer": 0.012,
        "wait": 0.008,
        "slowest": [1, 0.75],
        "bandwidths": [{"kind": "all_reduce", "algorithm": 2.5e9, "bus": 3.75e9}],
        "window": {"communication": 0.03, "overlapped": 0.02},
        "unplaced": False,
    }


def test_the_document_keeps_to_its_schema(
    results: list[Result], search: Search, validate: Callable[[Any], None]
) -> None:
    validate(json.loads(json.dumps(make_results_document(results, CODE, searches=[search]))))
    validate(make_results_document([], None))


def test_the_code_is_told_with_whether_it_was_changed(make_result: Make) -> None:
    stored = make_result().baseline
    assert stored is not None
    document = make_results_document([make_result(baseline=replace(stored, dirty=True))], CODE)
    assert (document["commit"], document["dirty"]) == ("3f2a1c0", True)
    assert document["results"][0]["baseline"]["dirty"] is True
    assert document["results"][0]["baseline"]["counted"] is None
    unknown = make_results_document([], None)
    assert (unknown["commit"], unknown["dirty"]) == (None, False)


def test_a_search_for_the_largest_batch_is_told_with_all_that_was_tried(search: Search) -> None:
    (found,) = make_results_document([], None, searches=[search])["batch_sizes"]
    assert found == {
        "test": "t.py::test_size",
        "training": "ddp precision=bf16",
        "world_size": 2,
        "environment_key": "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
        "size": 5,
        "peak": 3e6,
        "limit": 64,
        "memory_limit": 2**20,
        "tried": [
            {"size": 4, "fits": True, "peak": 2e6},
            {"size": 8, "fits": False, "peak": None},
            {"size": 6, "fits": False, "peak": 4e6},
            {"size": 5, "fits": True, "peak": 3e6},
        ],
    }


def test_trainings_are_told_with_curves_last_values_and_verdicts(validate: Callable[[Any], None]) -> None:
    first, other = (
        trained(name, [Curve(steps=(5, 8, 9), values={"loss": (2.0, 1.99, end)}) for end in ends])
        for name, ends in (("ddp", (1.0, 1.0)), ("own", (1.5, 1.5)))
    )
    kept = held([first, other], first, set(), QualityRules(metric="loss", better="lower", tolerance=0.02))
    found = Convergence(test="t.py::test", world_size=2, metric="loss", strategies=(first, other), kept=kept)
    document = make_results_document([], CODE, convergences=[found])
    validate(json.loads(json.dumps(document)))
    (told,) = document["convergences"]
    assert (told["test"], told["world_size"], told["metric"], told["launches"]) == ("t.py::test", 2, "loss", 2)
    assert [one["name"] for one in told["strategies"]] == ["ddp", "own"]
    assert told["strategies"][1]["curves"] == [{"steps": [5, 8, 9], "values": {"loss": [2.0, 1.99, 1.5]}}] * 2
    assert told["strategies"][1]["finals"]["loss"]["value"] == 1.5
    (row,) = told["kept"]
    assert (row["name"], row["quantity"], row["worse"]["value"], row["agreement"]) == ("own", "loss", 0.5, "worse")
    assert (row["worse"]["interval"]["low"], row["apart"], row["allowed"], row["tolerance"]) == (0.49, 0.5, None, 0.02)


def test_a_calibrated_benchmark_keeps_to_the_schema(
    make_calibrated: Callable[..., Calibrated], validate: Callable[[Any], None]
) -> None:
    runs = ((0.04, Verdict.OK), (0.08, Verdict.REGRESSED))
    document = make_results_document([], CODE, calibrated=[make_calibrated(), make_calibrated(*runs)])
    validate(json.loads(json.dumps(document)))
    first, second = document["calibration"]
    assert document["environment"]["cpu_model"] == "AMD EPYC"
    assert (first["test"], first["name"], first["world_size"]) == (
        "perf_tests/test_strategies.py::test_step[bucketed]",
        "bucketed",
        2,
    )
    found = first["false_alarms"]
    assert (found["found"], found["of"], found["value"]) == (0, 2, 0)
    assert found["interval"]["high"] == pytest.approx(0.841886)  # (1 - p)^2 = 0.025
    assert (first["bound"], first["mde"], first["gross"], first["green"]["found"]) == (0.03, 0.05, 0.5, 2)
    # Twice as long in one of two runs; half as much again as this doubling.
    assert (second["false_alarms"]["value"], second["green"]["value"], second["gross"]) == (0.5, 0.5, 1.5)


def test_steps_of_each_launch_are_in_order(make_result: Make) -> None:
    """To nine digits; a step lasts as long as on its slowest rank."""
    ranks = make_result().measurement.launches[0].ranks
    rows = ((1 / 3, 0.5), (0.25, 0.125)), ((1.0, 2.0), (2.0, 1.0))
    launches = tuple(
        Launch(
            round=i,
            ranks=tuple(replace(rank, step_times=times) for rank, times in zip(ranks, row, strict=True)),
            seconds=1.0,
        )
        for i, row in enumerate(rows)
    )
    document = make_results_document([make_result(measured={"launches": launches})], None)
    assert document["results"][0]["step_times"] == [[0.333333333, 0.5], [2.0, 2.0]]


def test_a_launch_carries_what_went_on_in_the_machine(make_result: Make, validate: Callable[[Any], None]) -> None:
    ranks = make_result().measurement.launches[0].ranks
    cpu = CpuHealth(others=1 / 3, steal=0.0, overheated=2, governor="schedutil")
    gpus = (
        GpuHealth(device="a", readings=3, sm_clock=1.7e9, throttled={"power cap": 1 / 3}, others={7: None}),
        GpuHealth(device="b", readings=3),
    )
    ranks = (
        replace(ranks[0], device_memory=DeviceMemory(device="a", uuid="1f2e", used=9, total=1000, reserved=4)),
        ranks[1],
    )
    launches = (
        Launch(round=0, ranks=ranks, seconds=1.0, health=Health(cpu=cpu, gpus=gpus)),
        Launch(round=1, ranks=ranks, seconds=1.0),
        Launch(round=2, ranks=ranks, seconds=1.0, health=Health(cpu=cpu, nodes={"node 1 (b)": CpuHealth(steal=0.5)})),
    )
    document = make_results_document([make_result(measured={"launches": launches})], None)
    validate(document)

    first, second, on_nodes = document["results"][0]["health"]
    assert first["cpu"] == {
        "others": 0.333333333,
        "steal": 0.0,
        "throttled": None,
        "overheated": 2,
        "swapped": None,
        "governor": "schedutil",
        "frequency": None,
        "power": None,
    }
    (on_a,) = first["gpus"]  # no rank computed on the other
    assert (on_a["device"], on_a["sm_clock"], on_a["power"]) == ("a", 1.7e9, None)
    assert (on_a["throttled"], on_a["others"]) == ({"power cap": 0.333333333}, {"7": None})
    assert second is None
    assert first["nodes"] == {}
    assert {name: each["steal"] for name, each in on_nodes["nodes"].items()} == {"node 1 (b)": 0.5}


def test_memory_is_told_by_rank_and_by_phase(make_result: Make, validate: Callable[[Any], None]) -> None:
    uses = {"forward": MemoryUse(kind="heap", change=4096, peak=None)}
    phases = PhaseTimes(seconds=dict.fromkeys(PHASES, (0.1,)), memory=uses)
    ranks = tuple(
        RankLaunch(
            rank=rank,
            step_times=(0.1,),
            memory={"peak_resident": 10.0 + rank},
            loss=None,
            samples_per_step=None,
            tokens_per_step=None,
            phases=phases,
        )
        for rank in range(2)
    )
    document = make_results_document(
        [make_result(measured={"launches": (Launch(round=0, ranks=ranks, seconds=1.0),)})], None
    )
    validate(document)

    result = document["results"][0]
    assert result["memory_by_rank"] == {"peak_resident": [10.0, 11.0]}
    assert result["memory_by_phase"] == {"forward": {"kind": "heap", "change": 4096, "peak": None}}


def test_the_schema_refuses_what_is_not_described(results: list[Result], validate: Callable[[Any], None]) -> None:
    document = make_results_document(results, None)
    document["results"][0]["metrics"]["step_time"]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        validate(document)


def test_every_property_is_described() -> None:
    def undescribed(node: Any, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        found = [] if "description" in node or "$ref" in node else [path]
        for name, inner in node.get("properties", {}).items():
            found += undescribed(inner, f"{path}.{name}")
        return found

    schema = schema_of(ResultsFile)
    assert [name for root in (schema, *schema["$defs"].values()) for name in undescribed(root, "")] == []


def test_a_metric_holds_all_that_was_judged(results: list[Result]) -> None:
    first = make_results_document(results, None)["results"][0]
    assert first["metrics"]["step_time"] == {
        "unit": "s",
        "better": "lower",
        "family": "absolute",
        "scale": "ratio",
        "gated": True,
        "value": 0.0473,
        "interval": {"low": 0.0468, "high": 0.0478, "confidence": 0.95},
        "samples": [0.0473],
        "baseline": 0.0418,
        "baseline_samples": [0.0416, 0.042],
        "change": 0.132,
        "change_interval": {"low": 0.119, "high": 0.146, "confidence": 0.95},
        "min_tolerance": 0,
        "tolerance": 0.03,
        "margin": 0.05,
        "mde": 0.021,
        "verdict": "regressed",
    }
    assert (first["launches"], first["plan"]) == (8, {"warmup": 5, "steps": 60})
    assert first["findings"] == ["crowded", "unsettled"]
    assert first["baseline"]["date"] == "2026-01-12"


def test_what_is_not_finite_becomes_null(
    make_result: Make, make_comparison: Compare, validate: Callable[[Any], None]
) -> None:
    wide = Interval(low=float("-inf"), high=float("inf"), confidence=0.95)
    comparison = make_comparison("step_time", 0.04, Verdict.INCONCLUSIVE, interval=wide, mde=float("inf"))
    document = make_results_document([make_result(comparisons=(comparison,))], None)
    metric = document["results"][0]["metrics"]["step_time"]
    assert (metric.get("mde"), metric["interval"]["low"], metric["interval"]["high"]) == (None, None, None)
    validate(document)


def test_the_other_side_is_told_with_what_was_imported(results: list[Result]) -> None:
    *others, last = make_results_document(results, None)["results"]
    assert {one["against"] for one in others} == {None}
    assert last["seconds"] == 12.5
    assert last["against"] == {
        "revision": "3f2a1c0 (main)",
        "commit": "3f2a1c0",
        "launches": 8,
        "modules": {
            "demo": {"here": "/here/demo.py", "there": "/there/demo.py"},
            "demo.new": {"here": "/here/new.py", "there": None},
        },
        "python": None,
        "environment": None,
        "packages": {},
    }


def test_the_commit_of_the_baseline_is_told_or_why_it_was_not_measured(
    make_result: Make, validate: Callable[[Any], None]
) -> None:
    commit = PairedRevision(revision="3f2a1c0", commit="3f2a1c0", launches=6)
    stored = [
        StoredBaseline(record=None, origin="cpu", pair=commit),
        StoredBaseline(record=None, origin="cpu", unpaired="git is not installed"),
    ]
    document = make_results_document([make_result(reference=each) for each in (*stored, commit)], None)
    validate(json.loads(json.dumps(document)))
    paired, alone, against = document["results"]
    assert (paired["against"], paired["paired_with"]["launches"], paired["unpaired"]) == (None, 6, "")
    assert (alone["paired_with"], alone["unpaired"]) == (None, "git is not installed")
    assert (against["against"]["launches"], against["paired_with"], against["unpaired"]) == (6, None, "")
