"""The example of a plugin adds a strategy, a metric, a fact and a report, and its metric is a gate.

The example projects pass as their READMEs say.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.errors import NOT_MEASURED
from pytest_ddpperf.run.session.extensions import Extensions
from tests.factories import SHARDS_ON_CPU

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "ddpperf_extras"
PROJECTS = {file.parent.name: file.parent for file in sorted(ROOT.glob("examples/*/requirements.txt"))}
EXPOSING = {  # the tests whose communication can be left out
    "accelerate_loop": {"test_step"},
    "ddp_loop": {"test_step"},
    "fsdp2": {"test_workload"},
    "hf_trainer": {"test_step"},
    "lightning": {"test_step"},
    "torchtitan_like": set[str](),
}
SUITE = """
import pytest
import torch
from torch import nn
from pytest_ddpperf import Workload

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=0.2, tolerance="1000%", backend="gloo", device="cpu"
)
workload = Workload(
    model=lambda: nn.Linear(8, 4),
    batch=lambda: (torch.randn(6, 8), torch.randn(6, 4)),
    loss=nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=6,
)
"""


@pytest.fixture
def plugin(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.Pytester]:
    """A suite that runs with the example plugin, which ranks can import, too."""
    monkeypatch.syspath_prepend(EXAMPLE)
    inner.makeini("[pytest]\naddopts = -p ddpperf_extras\n")
    yield inner
    sys.modules.pop("ddpperf_extras", None)


def results(inner: pytest.Pytester) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((inner.path / "results.json").read_text())["results"]
    return found


def test_a_strategy_a_fact_and_a_report_are_added(plugin: pytest.Pytester) -> None:
    plugin.makepyfile(
        test_suite=SUITE
        + """
def test_it(ddpperf):
    ddpperf.check(workload, strategy="reversed[half=false]", counts='only')
    compared = ddpperf.compare(workload, strategies=["naive", "reversed"])
    assert compared.speedup("reversed") > 0


def test_unknown(ddpperf):
    ddpperf.check(workload, strategy="reverse")
"""
    )
    run = plugin.runpytest("-q", "--ddpperf-report=json:results.json")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(
        ["strategy 'reverse' is unknown: *", "*ddpperf verdicts*", "3 judged, 3 measured", "new: 3"]
    )
    assert [result["strategy"] for result in results(plugin)] == ["reversed[half=false]", "naive", "reversed"]
    environment = json.loads((plugin.path / "results.json").read_text())["environment"]
    assert environment["recorded"]["libc"]


def test_an_added_metric_fails_a_test_when_it_regresses(
    plugin: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time is gated here: the samples of a step are the same in every run."""
    plugin.makepyfile(
        test_suite=SUITE
        + """
import os


class Step:
    def __init__(self, samples):
        self.samples = samples

    def __call__(self):
        return 1.0


def test_it(ddpperf):
    most = int(os.environ["MOST"])
    measured = ddpperf.check(lambda ctx: Step(most if ctx.rank == 0 else 8), counts='off', tolerance="1%")
    assert measured["sample_imbalance"].value == 2 * most / (most + 8)
"""
    )
    fails = "--ddpperf-fail-on=regressed"
    monkeypatch.setenv("MOST", "8")
    plugin.runpytest("-q", "--ddpperf-save", fails).assert_outcomes(passed=1)
    monkeypatch.setenv("MOST", "12")
    run = plugin.runpytest("-q", "--ddpperf-report=json:results.json", fails)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["sample_imbalance *1.00 *1.20 *+20.0 %*FAIL"])
    (result,) = results(plugin)
    assert result["metrics"]["sample_imbalance"]["verdict"] == "regressed"


def test_a_fact_of_a_hook_replaces_the_name_of_the_host() -> None:
    hook = SimpleNamespace(pytest_ddpperf_environment=lambda: [{"host": "ci"}, {"libc": "2.36"}])
    facts = {"host": "anna-laptop", "kernel": "6.1"}
    assert Extensions(hook).recorded(facts) == {"host": "ci", "kernel": "6.1", "libc": "2.36"}


ADDED = """
from pytest_ddpperf import Metric

SAMPLES = {samples}


def pytest_ddpperf_metrics():
    row = dict(unit="1", better="lower", family="relative", scale="ratio")
    return [Metric(name="constant", samples=SAMPLES, **row)]
"""


MEASURED = "\ndef test_it(ddpperf):\n    ddpperf.check(lambda ctx: lambda: 1.0, counts='off')\n"


NONE = "pytest_ddpperf_metrics: metric constant returned * for * launches: *"
RETURNED = {
    "pytest_ddpperf_strategies(): return {'ddp': print}": "a strategy named 'ddp' exists already: choose*",
    "pytest_ddpperf_strategies(): return {'mine': 3}": "'mine': 3 is not a strategy: expected a function*",
    "pytest_ddpperf_strategies(): return 3": "returned 3: return a dict {name: function}",
    "pytest_ddpperf_metrics(): return [3]": "returned 3: return a list of pytest_ddpperf.Metric",
    "pytest_ddpperf_environment(): return {'a': 3}": "returned {'a': 3}: return a dict {name: text}",
    "pytest_ddpperf_environment(): return {'kernel': 'x'}": "a fact named 'kernel' exists already: *",
    "pytest_ddpperf_metrics():\n    return nosuch": " failed at *conftest.py:2: *nosuch*",
}
SAMPLED = [
    ("lambda measured: ()", NONE),
    pytest.param("lambda measured: (float('nan'),)", NONE, marks=pytest.mark.slow),
    pytest.param("lambda measured: 3.0", NONE, marks=pytest.mark.slow),
    ("lambda measured: nosuch", "pytest_ddpperf_metrics: metric constant failed at *:3: *nosuch*"),
]


def refused(inner: pytest.Pytester, conftest: str, message: str) -> None:
    inner.makeconftest(conftest)
    inner.makepyfile(test_suite=SUITE + MEASURED)
    run = inner.runpytest("-q")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines([message])
    run.stdout.no_fnmatch_line("*pytest_ddpperf/run/*")


@pytest.mark.parametrize("hook", RETURNED)
def test_a_fault_of_a_hook_is_reported_in_one_line(inner: pytest.Pytester, hook: str) -> None:
    refused(inner, f"def {hook}\n", f"{hook.partition('(')[0]}*{RETURNED[hook]}")


@pytest.mark.slow
def test_an_error_in_a_verdicts_hook_is_reported_in_one_line(inner: pytest.Pytester) -> None:
    hook = "def pytest_ddpperf_verdict(result):\n    result.nosuch\n"
    refused(inner, hook, "pytest_ddpperf_verdict failed at *conftest.py:2: *nosuch*")


def test_a_column_that_is_misspelt_is_refused_in_one_line(inner: pytest.Pytester) -> None:
    wrong = ADDED.format(samples="lambda measured: None").replace('"lower"', '"less"')
    refused(inner, wrong, "pytest_ddpperf_metrics: constant has better='less': expected lower or higher")


@pytest.mark.parametrize(("samples", "message"), SAMPLED)
def test_samples_that_are_none_are_refused_in_one_line(inner: pytest.Pytester, samples: str, message: str) -> None:
    refused(inner, ADDED.format(samples=samples), message)


def test_a_report_that_fails_leaves_the_summary_and_fails_the_session(inner: pytest.Pytester) -> None:
    inner.makeconftest("def pytest_ddpperf_report(results):\n    raise ValueError('no disk')\n")
    inner.makepyfile(test_suite=SUITE + MEASURED)
    run = inner.runpytest("-q")
    assert run.ret == NOT_MEASURED
    run.stdout.fnmatch_lines(["WARNING pytest_ddpperf_report failed at *conftest.py:2: ValueError: no disk"])


@pytest.mark.slow
def test_expect_ignores_a_search_for_a_batch_size(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        test_suite=SUITE
        + """
import dataclasses


def test_it(ddpperf):
    ddpperf.check(workload, counts='only')
    ddpperf.find_batch_size(lambda size: workload, limit=1, memory_limit="8GiB")
    ddpperf.expect(optimizer_steps=1)
"""
    )
    inner.runpytest("-q").assert_outcomes(passed=1)


def requirements(project: str) -> list[str]:
    """The packages that a project needs."""
    lines = (PROJECTS[project] / "requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def command(project: str) -> tuple[str, ...]:
    """What the project's README has typed: to install, and to test."""
    (line,) = re.findall(r"^```sh\n(.*)\n```$", (PROJECTS[project] / "README.md").read_text(), re.MULTILINE)
    return tuple(line.split(" && "))


@pytest.mark.parametrize("project", EXPOSING)
def test_the_readme_of_a_project_has_its_one_command(project: str) -> None:
    installs, tests = command(project)
    assert installs == f"pip install -c constraints.txt -e . -r examples/{project}/requirements.txt"
    assert tests == f"pytest -q examples/{project}"
    assert len((PROJECTS[project] / "README.md").read_text().splitlines()) <= 25
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {*requirements(project)} <= {*pinned, "pytest-ddpperf"}


def test_every_project_is_tested() -> None:
    assert list(PROJECTS) == list(EXPOSING)


@pytest.mark.slow
@pytest.mark.parametrize("project", EXPOSING)
def test_a_project_passes_with_its_command(project: str, tmp_path: Path) -> None:
    """In a copy. Its tests measure correct training, which is compared with that of a single process."""
    missing = [name for name in requirements(project) if find_spec(name.replace("-", "_")) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    if project in {"fsdp2", "torchtitan_like"} and not SHARDS_ON_CPU:
        pytest.skip("fully_shard on the CPU needs torch 2.7")
    shutil.copytree(
        PROJECTS[project], tmp_path / "examples" / project, ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    results = tmp_path / "results.json"
    options = (
        f"--ddpperf-report=json:{results}",
        "--ddpperf-communication=true",
        "--ddpperf-max-time=60",
    )  # on a busy machine
    tests = command(project)[1].split()
    run = subprocess.run(
        [sys.executable, "-m", *tests, *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(results.read_text())["results"]
    assert {result["verdict"] for result in found} == {"new"}
    assert not [text for result in found for text in result["findings"] if "single process" in text]
    exposing = {result["test"].partition("::")[2] for result in found if "exposed_communication" in result["metrics"]}
    assert exposing == EXPOSING[project]


def tracker(name: str) -> str:
    return (ROOT / "examples" / "trackers" / f"ddpperf_{name}.py").read_text()


class FakeMlflow(ModuleType):
    """The functions of mlflow that the example calls, with the signatures of 3.17; they note what they are given."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.experiment, self.runs = "", list[dict[str, Any]]()

    def set_experiment(self, experiment_name: str | None = None) -> None:
        self.experiment = str(experiment_name)

    @contextmanager
    def start_run(self, run_id: str | None = None, *, run_name: str | None = None) -> Iterator[None]:
        self.runs.append({"name": run_name})
        yield

    def set_tags(self, tags: dict[str, Any]) -> None:
        self.runs[-1]["tags"] = tags

    def log_params(self, params: dict[str, Any]) -> None:
        self.runs[-1]["params"] = params

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.runs[-1]["metrics"] = metrics


class FakeWandb(ModuleType):
    """The function of wandb that the example calls, and its run, with the signatures of 0.31."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.logged, self.summary, self.ended = dict[str, float](), dict[str, str](), False

    @contextmanager
    def init(self, *, project: str | None = None, job_type: str | None = None) -> Iterator[FakeWandb]:
        assert (project, job_type) == ("ddpperf", "benchmark")
        yield self
        self.ended = True

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        assert step == 0  # of all benchmarks: one session is one step
        self.logged |= data


TRACKED = (
    SUITE
    + """
def test_step(ddpperf):
    ddpperf.check(workload, strategy="naive", name="one")
"""
)


@pytest.mark.slow
def test_mlflow_has_a_run_for_each_benchmark(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    inner.makeconftest(tracker("mlflow"))
    inner.makepyfile(test_suite=TRACKED)
    inner.runpytest().assert_outcomes(passed=1)
    assert fake.experiment == "ddpperf"
    (run,) = fake.runs
    assert run["name"] == "test_suite.py::test_step one"
    assert run["tags"] == {"test": "test_suite.py::test_step", "verdict": "new"}
    assert run["params"] == {"strategy": "naive", "ranks": 2}
    assert run["metrics"]["step_time"] > 0


@pytest.mark.slow
def test_wandb_has_a_chart_for_each_metric(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    inner.makeconftest(tracker("wandb"))
    inner.makepyfile(test_suite=TRACKED)
    inner.runpytest().assert_outcomes(passed=1)
    assert fake.ended
    assert fake.logged["test_suite.py::test_step one w2/step_time"] > 0
    assert fake.summary == {"test_suite.py::test_step one w2/verdict": "new"}


@pytest.mark.slow  # they start processes of their own
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_mlflow_and_wandb_accept_the_values_of_the_examples(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{pytester.path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    pytester.makeconftest(tracker(name))
    pytester.makepyfile(test_suite=TRACKED)
    run = pytester.runpytest_subprocess("--ddpperf-counts=only")
    run.assert_outcomes(passed=1)
    assert run.ret == 0
    assert [*pytester.path.glob({"mlflow": "mlruns/*/*/tags/verdict", "wandb": "wandb/offline-run-*/*.wandb"}[name])]
