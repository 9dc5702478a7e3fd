from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import msgspec
import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.judge.quality import QualityRules, held, trained
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, DeviceMemory, GpuHealth, Health, Launch
from pytest_ddpperf.records.measurement import Interval, Plan
from pytest_ddpperf.records.phases import PHASES, MemoryUse, PhaseTimes
from pytest_ddpperf.records.results import Comparison, PairedRevision, Provenance, Result, StoredBaseline
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.records.verbs import Convergence, Curve, Search, Trial
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.entries import ResultsFile
from pytest_ddpperf.reports.documents.run_file import run_text
from pytest_ddpperf.reports.outputs import Outputs
from tests.factories import PROFILE, known, make_rank_launch, make_results_document, read_again
from tests.reports.golden_runs import golden
from tests.reports.made import make_calibrated, make_comparison, make_result

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


@pytest.fixture(scope="module")
def validate() -> Callable[[Any], None]:
    """Holds a document against the published schema, and against what reads it again."""
    schema = msgspec.json.schema(ResultsFile)
    jsonschema.Draft202012Validator.check_schema(schema)

    def hold(document: Any) -> None:
        jsonschema.Draft202012Validator(schema).validate(document)
        read_again(document)

    return hold


@pytest.fixture
def results() -> list[Result]:
    """One of every kind: regressed, new, broken, a scaling point, with counts, profiles and other sides."""
    stored = known(make_result().baseline)
    renewed = make_result(baseline=replace(stored, dirty=True, counted=Provenance(date="2026-02-01", commit=None)))
    efficiency = make_comparison("scaling_efficiency", 0.84, Verdict.UNCHANGED, baseline=0.9, change=-0.06)
    wide = Interval(low=-math.inf, high=math.inf, confidence=0.95)
    endless = make_comparison("step_time", 0.04, Verdict.INCONCLUSIVE, interval=wide, mde=math.inf)
    crowded, broken = Finding("crowded"), {"launches": (), "plan": Plan(warmup=0, steps=0)}
    commit = PairedRevision(revision="3f2a1c0", commit="3f2a1c0", launches=6)
    other = PairedRevision(revision="3f2a1c0 (main)", commit="3f2a1c0", launches=8, modules=MODULES)
    without = replace(PROFILE, transfer=None, wait=None, slowest=None, window=None)
    return [
        make_result(findings=(crowded,), measured={"findings": (crowded, Finding("unsettled"))}),
        renewed,
        make_result(verdict=Verdict.NEW, baseline=None, comparisons=(make_comparison("step_time", 0.04, Verdict.NEW),)),
        make_result(verdict=Verdict.BROKEN, comparisons=(), baseline=None, measured=broken),
        make_result(comparisons=(efficiency,), measured={"name": "weak", "mode": "weak"}),
        make_result(comparisons=(CALLS,), measured={"counts": COUNTS}),
        make_result(comparisons=(endless,)),
        make_result(measured={"profile": PROFILE}),
        make_result(measured={"profile": without}),
        make_result(paired=other, seconds=12.5),
        make_result(reference=StoredBaseline(record=None, origin="cpu", pair=commit)),
        make_result(reference=StoredBaseline(record=None, origin="cpu", unpaired="git is not installed")),
        make_result(measured={"launches": launches()}),
    ]


def launches() -> tuple[Launch, ...]:
    """A launch on one machine that is watched, one that nobody watched, and one on two machines.

    A step lasts as long as on its slowest rank: 0.333333333 and 0.5 s. No rank computes on the second GPU.
    """
    phases = PhaseTimes(
        seconds=dict.fromkeys(PHASES, (0.1,)), memory={"forward": MemoryUse(kind="heap", change=4096, peak=None)}
    )
    memory = DeviceMemory(device="a", uuid="1f2e", used=9, total=1000, reserved=4)
    ranks = (
        make_rank_launch(0, (1 / 3, 0.25), memory={"peak_resident": 10.0}, phases=phases, device_memory=memory),
        make_rank_launch(1, (0.25, 0.5), memory={"peak_resident": 11.0}, phases=phases),
    )
    cpu = CpuHealth(others=1 / 3, steal=0.0, overheated=2, governor="schedutil")
    throttled = GpuHealth(device="a", readings=3, sm_clock=1.7e9, throttled={"power cap": 1 / 3}, others={7: None})
    healths = (
        Health(cpu=cpu, gpus=(throttled, GpuHealth(device="b", readings=3))),
        None,
        Health(cpu=cpu, nodes={"node 1 (b)": CpuHealth(steal=0.5)}),
    )
    return tuple(Launch(round=i, ranks=ranks, seconds=1.0, health=health) for i, health in enumerate(healths))


@pytest.fixture
def made(results: list[Result]) -> Outputs:
    """A run that searched for a batch, trained to the end and calibrated: 5 samples fit, 6 and 8 do not."""
    tried = (Trial(4, True, 2e6), Trial(8, False, None), Trial(6, False, 4e6), Trial(5, True, 3e6))  # noqa: FBT003
    environment = results[0].measurement.environment
    search = Search(
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
    first, other = (
        trained(name, [Curve(steps=(5, 8, 9), values={"loss": (2.0, 1.99, end)}) for end in ends])
        for name, ends in (("ddp", (1.0, 1.0)), ("own", (1.5, 1.5)))
    )
    kept = held([first, other], first, set(), QualityRules(metric="loss", better="lower", tolerance=0.02))
    found = Convergence(test="t.py::test", world_size=2, metric="loss", strategies=(first, other), kept=kept)
    twice_as_long = make_calibrated((0.04, Verdict.OK), (0.08, Verdict.REGRESSED))
    return Outputs(
        results=results, searches=[search], convergences=[found], calibrated=[make_calibrated(), twice_as_long]
    )


def test_a_document_reads_as_before_and_keeps_to_its_schema(made: Outputs, validate: Callable[[Any], None]) -> None:
    """Numbers have nine digits, what is not finite is null, and (1 - p)^2 = 0.025 ends the interval of no alarm."""
    text = run_text(made, CODE)
    assert text == golden("run.json", text)
    validate(json.loads(text))


def test_a_run_without_benchmarks_outside_of_a_repository_keeps_to_the_schema(validate: Callable[[Any], None]) -> None:
    document = make_results_document([], None)
    validate(document)
    assert (document["commit"], document["dirty"]) == (None, False)


def test_the_schema_refuses_fields_that_it_does_not_describe(
    results: list[Result], validate: Callable[[Any], None]
) -> None:
    document = make_results_document(results[:1], None)
    document["results"][0]["metrics"]["step_time"]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        validate(document)
