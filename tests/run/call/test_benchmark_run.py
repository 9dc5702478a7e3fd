"""Benchmarks of workloads as a user meets them: verified, compared, named after what makes them another benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_ddpperf.records.acceptance import Acceptance
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.call.benchmark_run import BenchmarkRun
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings
from tests.factories import make_measurement, make_result, make_series, make_variant

PARTS = ("starting", "verifying", "counting", "measuring", "diagnosing", "other")
SUITE = """
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from pytest_ddpperf import Workload
from pytest_ddpperf.strategies.strategy import Parallel

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=0.2, tolerance="1000%",
    backend="gloo", device="cpu", timeout=60,
)

workload = Workload(
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)),
    batch=lambda: (torch.randn(6, 8), torch.randint(4, (6,))),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    samples_per_step=6,
)


def broadcast(module):
    for tensor in module.state_dict().values():
        dist.broadcast(tensor, src=0)


"""


def run_suite(inner: pytest.Pytester, tests: str, *arguments: str) -> tuple[pytest.RunResult, list[dict[str, Any]]]:
    """A run of the suite, and its results out of the JSON file."""
    inner.makepyfile(test_suite=SUITE + tests)
    run = inner.runpytest("--ddpperf-report=json:results.json", *arguments)
    results: list[dict[str, Any]] = json.loads((inner.path / "results.json").read_text())["results"]
    return run, results


def test_a_strategy_that_trains_something_else_is_broken_and_the_others_are_counted(inner: pytest.Pytester) -> None:
    run, results = run_suite(
        inner,
        """
def forgetful(module, ctx):
    broadcast(module)
    return Parallel(module)


def test_wrong_among_others(ddpperf):
    ddpperf.compare(workload, strategies=["naive", forgetful])


def test_wrong_and_not_looked_at(ddpperf):
    ddpperf.check(workload, strategy=forgetful, verify=False)


@pytest.mark.ddpperf(fail_on="regressed")
def test_wrong_and_not_to_fail(ddpperf):
    ddpperf.check(workload, strategy=forgetful)
""",
        "--ddpperf-counts=only",
    )
    run.assert_outcomes(passed=1, failed=1, skipped=1)
    run.stdout.fnmatch_lines(
        [
            "BROKEN: it does not train as a single process does",
            "Cause      the rank kept its own gradient, which was not synchronised",
            " * gradients differ from a single process: * on rank * at step 1,*",
            "Which      benchmark forgetful(), 2 ranks, gloo",
            "  at test_suite.py:* in test_wrong_among_others",
            "*- ddpperf time -*",
            "* s: starting *, verifying *",
        ]
    )
    verdicts = {(result["test"].partition("::")[2], result["strategy"]): result["verdict"] for result in results}
    assert verdicts == {
        ("test_wrong_among_others", "forgetful()"): "broken",
        ("test_wrong_and_not_looked_at", "forgetful()"): "new",
        ("test_wrong_and_not_to_fail", "forgetful()"): "broken",
    }
    assert all(
        result["counts"]["totals"]["collective_calls"] == 0 for result in results if result["verdict"] == "broken"
    )
    reasons = [result["findings"][0] for result in results if result["verdict"] == "broken"]
    assert all(reason.startswith("gradients differ from a single process: ") for reason in reasons)


def of_count(verdict: Verdict, *others: Comparison) -> Result:
    """The result of a benchmark that was counted for want of time, with this verdict on its collectives."""
    series = make_series("collective_calls", 2.0, scale="exact")
    calls = Comparison(series=series, tolerance=0.0, verdict=verdict, gated=True, baseline=1.0)
    measured = make_measurement(findings=(Finding("no_time_to_measure"),))
    return make_result(measurement=measured, verdict=verdict, comparisons=(calls, *others))


SAME_OPERATORS = Comparison(
    series=make_series("operators", 2.0, scale="exact"),
    tolerance=0.0,
    verdict=Verdict.UNCHANGED,
    gated=True,
    baseline=2.0,
)


@pytest.mark.parametrize(
    ("results", "accepted", "again"),
    [
        ([of_count(Verdict.INCONCLUSIVE)], False, True),
        ([of_count(Verdict.NEW), of_count(Verdict.INCONCLUSIVE)], False, True),
        ([of_count(Verdict.REGRESSED), of_count(Verdict.INCONCLUSIVE)], False, False),  # red already
        ([of_count(Verdict.NEW)], False, False),
        ([of_count(Verdict.REGRESSED, SAME_OPERATORS)], True, True),
    ],
)
def test_benchmarks_that_were_only_counted_may_get_time_later(
    tmp_path: Path, results: list[Result], *, accepted: bool, again: bool
) -> None:
    session = Session(Settings(budget=60.0), tmp_path, LiveLine(None, None))
    session.budget.two_passes = True
    run = BenchmarkRun(session, "t.py::test", Settings(), [])
    run._accepts = [Acceptance("collective_calls", "one call more")] * accepted
    session.budget.start()
    session.budget._whole = 0.0
    judge: Any = Mock(results=results)
    run.measure([make_variant()], judge)
    assert session.budget.holds("t.py::test") is again


def test_of_several_variants_the_one_that_failed_is_named(inner: pytest.Pytester) -> None:
    """Each has a rank 1. Preparing takes some 30 steps; in later launches both run at the same time."""
    run, results = run_suite(
        inner,
        """
def test_it(ddpperf):
    def fine(ctx):
        return lambda: 1.0

    def bad(ctx):
        steps = iter(range(100))
        return lambda: 1.0 if ctx.rank == 0 else 1.0 / (50 - next(steps))

    ddpperf.compare({"fine": fine, "bad": bad}, steps=60, max_time=60)
""",
    )
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["Cause      bad: rank 1 of 2 raised ZeroDivisionError*"])
    lines = (inner.path / "test_suite.py").read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if "1.0 / (50" in text)
    why = f"rank 1 of 2 raised ZeroDivisionError: float division by zero (test_suite.py:{line})"
    assert [(one["name"], one["verdict"], one["findings"]) for one in results] == [
        ("fine", "broken", ["not measured, because bad failed"]),
        ("bad", "broken", [why]),
    ]
    run.stdout.fnmatch_lines(["    rank 1 of 2 raised ZeroDivisionError"])
    assert None not in [one["counts"] for one in results], "what was counted before is kept"


@pytest.mark.slow
def test_communication_is_measured_and_profiled_if_asked_for(inner: pytest.Pytester) -> None:
    run, results = run_suite(
        inner,
        """
def test_both(ddpperf):
    begun = time.monotonic()
    measured = ddpperf.check(workload, strategy="ddp", max_time=60)
    Path("wall.txt").write_text(str(time.monotonic() - begun))
    assert measured.profile.busy > 0


def test_neither(ddpperf):
    measured = ddpperf.check(workload, strategy="ddp", communication=False, profile=False, verify=False)
    assert measured.profile is None


def test_something_goes_on(ddpperf):
    ddpperf.check(workload, strategy="zero1", profile=False, verify=False, max_time=60)
""",
        *("-v", "--ddpperf-profile", "--ddpperf-counts=off"),
    )
    run.assert_outcomes(passed=3)
    both, neither, zero1 = results
    parts = [both["time"][part] for part in PARTS]
    assert [seconds > 0 for seconds in parts] == [True, True, False, True, True, True]  # nothing was counted
    assert sum(parts) == pytest.approx(float((inner.path / "wall.txt").read_text()), rel=0.1)
    assert {"exposed_communication", "communication_overhead"} <= both["metrics"].keys()
    assert (both["profile"]["busy"] > 0, both["still_sent"]) == (True, "")
    assert not {"exposed_communication", "communication_overhead"} & neither["metrics"].keys()
    assert (neither["profile"], zero1["profile"]) == (None, None)
    run.stdout.fnmatch_lines(
        [
            "*ddpperf communication*",
            "test_both ddp *",
            "*zero1: exposed communication does not include the parameters that each rank broadcasts after its update",
            "*ddpperf collectives*",
            "benchmark*transfer*wait*last*all_reduce*window*late*",
            "test_both ddp * (* %) * (*",
            "*ddpperf time*",
            "time of 3 benchmarks, *",
        ]
    )


def test_settings_other_than_plain_training_are_in_the_name_and_in_the_results(inner: pytest.Pytester) -> None:
    run, results = run_suite(
        inner,
        """
def test_accumulation(ddpperf):
    measured = ddpperf.check(workload, strategy="ddp_bucketed", accumulation_steps=4, precision="bf16")
    assert measured.effective_batch_size == 48


def test_skipped(ddpperf):
    ddpperf.check(workload, precision="tf32")
""",
        *("-rs", "--ddpperf-verify=false", "--ddpperf-counts=off"),
    )
    run.assert_outcomes(passed=1, skipped=1)
    run.stdout.fnmatch_lines(["*precision tf32 is a mode of NVIDIA GPUs*"])
    named = {result["name"]: result for result in results}
    first = named["bucketed precision=bf16 accumulation_steps=4"]
    assert first["recipe"] == {"precision": "bf16", "accumulation_steps": "4"}
    assert first["effective_batch_size"] == 48
    assert "effective batch size 48: 4 micro-batches on each of 2 ranks" in first["findings"]


@pytest.mark.slow
def test_a_search_for_the_largest_batch_has_its_table(inner: pytest.Pytester) -> None:
    run, _ = run_suite(
        inner,
        """
def test_batch_size(ddpperf):
    from dataclasses import replace

    def of(size):
        return replace(workload, batch=lambda: (torch.randn(size, 8), torch.randint(4, (size,))))

    assert ddpperf.find_batch_size(of, limit=3, memory_limit="1GiB").size == 3
    ddpperf.find_batch_size(of, limit=3)
""",
    )
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["find_batch_size on the CPU needs memory_limit*"])
    run.stdout.fnmatch_lines(["*= ddpperf batch sizes =*", "test_batch_size ddp * 2 * 3 *the limit * 1, 2, 3"])
    (found,) = json.loads((inner.path / "results.json").read_text())["batch_sizes"]
    assert (found["test"], found["size"], found["limit"]) == ("test_suite.py::test_batch_size", 3, 3)
    assert [trial["size"] for trial in found["tried"]] == [1, 2, 3]


@pytest.mark.slow
def test_variants_differ_in_their_settings_and_variables_alone(inner: pytest.Pytester) -> None:
    """Two micro-batches are twice the samples of a step, and the variable is one of the ranks of its way."""
    run, results = run_suite(
        inner,
        """
def named(ctx):
    import os
    assert os.environ.get("OF_WAY") == "yes"
    return lambda: 1.0


def test_it(ddpperf):
    ways = {"one": {}, "two": {"accumulation_steps": 2}, "flat": {"strategy": "flat", "env": {"OF_WAY": "yes"}}}
    compared = ddpperf.compare(workload, variants=ways)
    assert compared.speedup("one") == 1
    assert compared["two"].effective_batch_size == 2 * compared["one"].effective_batch_size
    assert "memory_ratio" in compared["flat"]
    with pytest.raises(Exception, match="a: rank .* of 2 raised AssertionError"):
        ddpperf.compare(named, name="step", variants={"a": {}, "b": {"env": {"OF_WAY": "yes"}}})
    ddpperf.measure(workload)
""",
    )
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines(
        ["ddpperf.measure: *::test_it ddp, 2 ranks: step_time * in * launches, compared with nothing"]
    )
    told = {one["name"]: (one["strategy"], one["recipe"], "speedup" in one["metrics"]) for one in results[:3]}
    assert told == {
        "one": ("ddp", {}, False),
        "two": ("ddp", {"accumulation_steps": "2"}, True),
        "flat": ("flat", {"env": "OF_WAY=yes"}, True),
    }
    assert [one["name"] for one in results if one["metrics"].get("speedup", {}).get("gated")] == ["two", "flat"]


HUNGRY = """
def hungry(module, ctx):
    module.kept = torch.ones(2**26 if Path("hungry").exists() else 1)  # 256 MiB
    return Parallel(module, synchronise=lambda: None)


"""
THREE = (
    HUNGRY
    + """
def test_it(ddpperf):
    strategies = {"hungry": hungry, "naive": "naive", "flat": "flat"}
    compared = ddpperf.compare(workload, strategies=strategies, memory_limit="128MiB", verify=False, counts="off")
    fits = not Path("hungry").exists()
    assert [compared.fits(name) for name in compared.names] == [fits, True, True]
    assert compared.over == ("hungry" if fits else "naive")
    assert compared.speedup("flat") > 0
    if not fits:
        with pytest.raises(KeyError, match="hungry does not fit into memory: rank"):
            compared.speedup("hungry")
"""
)


def test_a_benchmark_that_does_not_fit_is_a_row_and_the_others_are_measured(inner: pytest.Pytester) -> None:
    (inner.path / "hungry").touch()
    run, results = run_suite(inner, THREE)
    run.assert_outcomes(passed=1)
    assert [one["verdict"] for one in results] == ["does_not_fit", "new", "new"]
    assert results[0]["findings"][0].startswith("the benchmark does not fit into memory: rank ")
    assert [one["over"] for one in results] == [None, None, "naive"], "the first that fits takes its place"
    run.stdout.fnmatch_lines(
        ["  hungry * does_not_fit", "    the benchmark does not fit into memory: rank * of 2 ran out of*"]
    )


@pytest.mark.slow  # it takes six runs
def test_a_benchmark_that_no_longer_fits_is_a_regression_until_it_is_accepted(inner: pytest.Pytester) -> None:
    """The baseline is saved without a limit."""
    mark = inner.path / "hungry"
    run_suite(inner, THREE.replace('memory_limit="128MiB", ', ""), "--ddpperf-save")
    mark.touch()
    run, results = run_suite(inner, THREE)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        ["*: REGRESSED compared with *", "Cause      the benchmark does not fit into memor*", "*; the reference fits"]
    )
    assert results[0]["verdict"] == "regressed"
    run.stdout.fnmatch_lines(["Intended?  pytest * --ddpperf-save --ddpperf-force-save"])
    run, _ = run_suite(inner, THREE, "--ddpperf-save")
    run.stdout.fnmatch_lines(
        ["does not fit into memory, and its baseline is kept (--ddpperf-force-save removes it): test_it hun*"]
    )
    run_suite(inner, THREE)[0].assert_outcomes(failed=1)
    run, results = run_suite(inner, THREE, "--ddpperf-save", "--ddpperf-force-save")
    run.stdout.fnmatch_lines(["does not fit into memory, and its baseline is removed: test_it hungry*"])
    run, results = run_suite(inner, THREE)
    run.assert_outcomes(passed=1)
    assert results[0]["verdict"] == "does_not_fit"


def test_ranks_of_a_call_have_its_variables_and_its_baseline_depends_on_them(inner: pytest.Pytester) -> None:
    test = """
def build(ctx):
    import os
    assert (os.environ.get("ALGORITHM"), os.environ.get("OF_MARKER")) == ({0}), "variables differ"
    return lambda: 1.0


@pytest.mark.ddpperf(env={{"OF_MARKER": "yes"}})
def test_it(ddpperf):
    import os
    ddpperf.check(build, name="mine", verify=False{1})
    assert not {{"ALGORITHM", "OF_MARKER"}} & {{*os.environ}}
"""
    counted = ("--ddpperf-counts=only", "--ddpperf-save")
    run, (result,) = run_suite(inner, test.format("None, 'yes'", ""), *counted)
    run.assert_outcomes(passed=1)
    assert (result["name"], result["recipe"]) == ("mine", {"env": "OF_MARKER=yes"})
    other = test.format("'ring', None", ", env={'ALGORITHM': 'ring'}")
    run, (result,) = run_suite(inner, other, "--ddpperf-counts=only", "--ddpperf-require-baseline")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        ["Cause      the baseline is not comparable: env ALGORITHM none -> ring, env OF_MARKER yes -> none"]
    )
    assert (result["name"], result["verdict"]) == ("mine", "incompatible")


def test_counts_are_gated_exactly_and_without_a_clock(inner: pytest.Pytester) -> None:
    same = """
def test_it(ddpperf):
    measured = ddpperf.check(workload, strategy="flat", accumulation_steps=2)
    assert measured.counts.totals["optimizer_steps"] == 1
    ddpperf.expect(collectives={"all_reduce": 1}, optimizer_steps=1)
"""
    more = """
def test_both(ddpperf):
    ddpperf.compare(workload, strategies=["naive", "flat"])
    ddpperf.expect(collectives={"all_reduce": 1})
"""
    counted = ("--ddpperf-counts=only", "--ddpperf-verify=false")
    saved = same + SAVED_AND_CHANGED.format("")
    run, _ = run_suite(inner, saved, "--ddpperf-save", "-rs", *counted)
    run.assert_outcomes(passed=1, skipped=1)  # one asks for a time that there is not, when it has been judged
    line = (SUITE + saved).strip().partition("> 0")[0].count("\n") + 1
    run.stdout.fnmatch_lines([f"*only counts; the test ended at *:{line} in test_own, and checked nothing after it"])
    options = '    ddpperf.check(workload, strategy="flat", accumulation_steps=2, no_sync=False)\n'
    again = same + options + SAVED_AND_CHANGED.format("dist.all_reduce(torch.ones(3))") + more
    run, (result, new, changed, *_) = run_suite(inner, again, *counted)
    run.assert_outcomes(passed=1, failed=2)
    assert (result["verdict"], result["launches"]) == ("unchanged", 0)
    assert result["metrics"]["collective_calls"]["scale"] == "exact"
    assert changed["verdict"] == "regressed"
    run.stdout.fnmatch_lines(
        [
            "Cause      all_reduce 1 -> 2 calls per step (+1): the new one at test_*",
            "collective_bytes *16 B *28 B *+75.0 % * FAIL",
        ]
    )
    assert "all_reduce 1 -> 2 calls" in run.stdout.str().partition("collective_bytes")[0]
    run.stdout.fnmatch_lines(["expected 1 all_reduce call per step, counted 4", "  benchmark naive, 2 ranks"])
    hint = "there is a baseline with other options: `flat accumulation_steps=2`; options are part of a benchmark's name"
    assert (new["verdict"], hint in new["findings"]) == ("new", True)


SAVED_AND_CHANGED = """
def test_own(ddpperf):
    def build(ctx):
        weight = torch.ones(4, requires_grad=True)

        def step():
            weight.grad = None
            weight.sum().backward()
            dist.all_reduce(weight.grad)
            {}

        return step

    measured = ddpperf.check(build)
    assert measured["step_time"].value > 0
"""


def test_sizes_of_the_command_line_and_settings_of_a_file_make_benchmarks(inner: pytest.Pytester) -> None:
    """A file as yaml.safe_load reads it; 8 d + d and 4 d + 4 parameters."""
    inner.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--d-model', type=int, default=16)\n")
    settings = [
        {"strategy": "ddp[bucket_cap_mb=5]", "accumulation_steps": 2, "clip_grad_norm": 1.0},
        {"strategy": "flat"},
    ]
    (inner.path / "configuration.json").write_text(json.dumps(settings))
    test = """
import json
from dataclasses import replace


@pytest.mark.parametrize("settings", json.loads(Path("configuration.json").read_text()))
def test_it(ddpperf, request, settings):
    d = request.config.getoption("--d-model")
    sized = replace(workload, model=lambda: nn.Sequential(nn.Linear(8, d), nn.Tanh(), nn.Linear(d, 4)))
    ddpperf.check(sized, **settings)
"""
    options = ("--ddpperf-counts=only", "--ddpperf-verify=false", "--d-model=5")
    run, (first, second) = run_suite(inner, test, *options)
    run.assert_outcomes(passed=2)
    assert first["name"] == "ddp[bucket_cap_mb=5] accumulation_steps=2 clip_grad_norm=1"
    assert (second["name"], second["recipe"]) == ("flat", {})
    assert [result["metrics"]["parameters"]["value"] for result in (first, second)] == [13 * 5 + 4] * 2
