"""Runs against another revision as a user meets them: whole pytest runs in small git projects of two commits.

What may not depend on luck is counted; the one benchmark that is judged by time does twenty times the work.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.factories import commit_all, git

OLD = """
def steps(calls, sizes=(8,)):
    def build(ctx):
        import torch

        # One place for all products: what is allocated and freed makes a difference in memory, of luck's size.
        matrices = {size: (torch.ones(size, size), torch.empty(size, size)) for size in sizes}

        def step():
            for size in sizes:
                matrix, product = matrices[size]
                torch.mm(matrix, matrix, out=product)
            for _ in range(calls):
                torch.distributed.all_reduce(torch.ones(4))
            return 1.0

        return step

    return build


def fewer(ctx):
    return steps(2)(ctx)


def more(ctx):
    return steps(1)(ctx)


def slower(ctx):
    return steps(0, [256])(ctx)


def as_fast(ctx):
    return steps(0)(ctx)
"""
COPIED = """
import pytest
import stray
from demo import training


@pytest.mark.ddpperf(world_size=2, backend="gloo", device="cpu", counts='only')
def test_calls(ddpperf):
    ddpperf.check(training.more)
"""
NEW = """

def fresh(ctx):
    return steps(1)(ctx)
"""
SUITE = """
import sys
from pathlib import Path

import pytest
import demo
from demo import training

HERE = Path(__file__).parent
pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=4, steps=5, warmup=1, max_time=60, backend="gloo", device="cpu", counts='only'
)


def test_more(ddpperf):
    ddpperf.check(training.more)


def test_fewer(ddpperf):
    ddpperf.check(training.fewer)


def test_fresh(ddpperf):
    ddpperf.check(training.fresh)


def test_own(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0)
    ddpperf.expect(optimizer_steps=0)


def test_stray(ddpperf):
    def build(ctx):
        sys.path.insert(0, str(HERE))
        import stray

        return lambda: 1.0

    ddpperf.check(build)


@pytest.mark.ddpperf(counts='off')
def test_slower(ddpperf):
    ddpperf.check(training.slower)


@pytest.mark.ddpperf(counts='off', launches=2, max_time=1, tolerance="1000%")
def test_as_fast(ddpperf):
    assert ddpperf.check(training.as_fast)["cpu_time"].gated
"""


def project(pytester: pytest.Pytester, suite: str) -> Path:
    """A project with a src layout; ``demo.training`` is changed and not yet committed."""
    root = pytester.path
    git(root, "init", "-q")
    package = root / "src" / "demo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "training.py").write_text(OLD)
    (root / "perf").mkdir()
    (root / "perf" / "stray.py").touch()
    (root / "perf" / "test_demo.py").write_text(suite)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (root / ".gitignore").write_text("__pycache__\nresults.json\n")
    commit_all(root)
    changed = OLD.replace("steps(1)", "steps(3)").replace("steps(2)", "steps(1)").replace("[256]", "[256] * 20")
    (package / "training.py").write_text(changed + NEW)
    return root


def results(root: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((root / "results.json").read_text())["results"]
    return {result["test"].partition("::")[2]: result for result in found}


TRACED_AS = "perf.test_demo.test_slower.custom.w2"


def test_counts_of_an_uncommitted_change_are_compared_with_the_last_commit(inner: pytest.Pytester) -> None:
    """The ranks of this checkout are those of all tests; the other revision's import torch for this one."""
    root = project(inner, SUITE)
    named = ("-k", "test_more or test_own")
    run = inner.runpytest("-q", "perf", *named, "--ddpperf-against=HEAD", "--ddpperf-report=json:results.json")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["Cause      all_reduce 1 -> 3 calls per step (+2): all at *"])
    found = results(root)
    assert {test: result["verdict"] for test, result in found.items()} == {
        "test_more": "regressed",
        "test_own": "unchanged",
    }
    modules = found["test_more"]["against"]["modules"]["demo.training"]
    assert modules["here"] == str(root / "src/demo/training.py")
    assert modules["there"].endswith("/checkout/src/demo/training.py")
    assert len(git(root, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_an_uncommitted_change_is_compared_with_the_last_commit_with_traces_of_both_sides(
    pytester: pytest.Pytester,
) -> None:
    root = project(pytester, SUITE)
    traced = ("--ddpperf-profile=traces", "--ddpperf-profile-on=regression")
    run = pytester.runpytest_subprocess("perf", "--ddpperf-against=HEAD", "--ddpperf-report=json:results.json", *traced)
    run.assert_outcomes(passed=4, failed=3)
    short = git(root, "rev-parse", "--short=7", "HEAD")
    found = results(root)
    found.pop("test_as_fast")  # how fast two launches are, nobody knows
    assert {test: result["verdict"] for test, result in found.items()} == {
        "test_more": "regressed",
        "test_fewer": "improved",
        "test_fresh": "new",
        "test_own": "unchanged",
        "test_stray": "broken",
        "test_slower": "regressed",
    }
    run.stdout.fnmatch_lines(
        [
            "Cause      all_reduce 1 -> 3 calls per step (+2): all at src/demo/training.py:*",
            "*at perf/test_demo.py:* in test_more",
            f"the ranks of {short} (HEAD) imported stray from {root}/perf/stray.py, which is not part of that *:*",
            f"custom: REGRESSED compared with revision {short} (HEAD), 2 ranks, gloo",
            "step_time *FAIL",
        ]
    )
    for line in (
        f"WARNING test_fresh custom: revision {short} (HEAD) cannot run this benchmark: *fresh*",
        "WARNING test_own custom: neither revision imported a module from its checkout, *",
        f"*= ddpperf: * | against {short} (HEAD) =*",
    ):
        run.stdout.fnmatch_lines([line])
    assert "--ddpperf-save" not in run.stdout.str()
    slower = found["test_slower"]
    assert slower["baseline"] is None
    assert slower["launches"] == slower["against"]["launches"] >= 4  # more on a busy machine
    assert slower["seconds"] > 0
    modules = slower["against"]["modules"]
    assert set(modules) == {"demo", "demo.training"}
    assert modules["demo.training"]["here"] == str(root / "src/demo/training.py")
    assert modules["demo.training"]["there"].endswith("/checkout/src/demo/training.py")
    assert not Path(modules["demo.training"]["there"]).exists()
    assert len(git(root, "worktree", "list").splitlines()) == 1
    wanted = {f"{TRACED_AS}{side}_rank_{rank}_trace.json" for side in ("", ".reference") for rank in (0, 1)}
    assert wanted <= {file.name for file in (root / "traces").iterdir()}
    assert not list((root / "traces").glob("*as_fast*"))
    summary = (root / "traces" / f"{TRACED_AS}_summary.txt").read_text()
    assert "A: the reference; B: this checkout" in summary
    (product,) = (line.split() for line in summary.splitlines() if line.startswith("aten::mm "))
    assert product[1:4] == ["operator", "1", "20"]
    assert product[-2:] == ["more", "calls"]
    run.stdout.fnmatch_lines(["*aten::mm *operator *more calls*", f"*{TRACED_AS}_summary.txt: *"])


@pytest.mark.slow
def test_a_project_that_was_installed_as_a_copy_is_the_same_on_both_sides(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No search path leads from the copy to the other revision; what tests import by name is each side's own."""
    root = project(pytester, COPIED)
    (root / "pytest.ini").write_text("[pytest]\n")  # nothing leads to src
    site = tmp_path / "site-packages"
    shutil.copytree(root / "src" / "demo", site / "demo")
    info = site / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (info / "RECORD").write_text("demo/__init__.py,,\ndemo/training.py,,\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    run = pytester.runpytest_subprocess("-q", "perf", "--ddpperf-against=HEAD")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        [f"*the ranks of this checkout imported demo from {site}/demo/__init__.py, an installed copy: *install -e*"]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--ddpperf-against=gone"],
            "ERROR: --ddpperf-against=gone: there is no such branch, tag, commit or folder in *",
        ),
        (["--ddpperf-against=HEAD", "--ddpperf-save"], "ERROR: *uses no baselines, but --ddpperf-save writes them*"),
        (["--ddpperf-against="], "ERROR: *--ddpperf-against=: expected a text that is not empty*"),
    ],
)
def test_impossible_options_end_the_run_before_it_begins(
    pytester: pytest.Pytester, options: list[str], said: str
) -> None:
    git(pytester.path, "init", "-q")
    run = pytester.runpytest_inprocess(*options)
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([said])


TESTS = """
import conftest
import pytest
import torch
from pytest_ddpperf import Workload

pytestmark = pytest.mark.ddpperf(world_size=1, backend="gloo", device="cpu", counts='only')


def steps(calls):
    def build(ctx):
        def step():
            for _ in range(calls):
                torch.ones(4)
            return 1.0

        return step

    return build


def helper(ctx):
    return steps(2)(ctx)


class Build:
    def __call__(self, ctx):
        return steps(2)(ctx)


workload = Workload(
    model=lambda: torch.nn.Linear(2, 2),
    batch=lambda: (torch.ones(1, 2), torch.ones(1, 2)),
    loss=torch.nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    samples_per_step=1,
)


def test_function(ddpperf):
    ddpperf.check(helper)


def test_object(ddpperf):
    ddpperf.check(Build())


def test_workload(ddpperf):
    ddpperf.check(workload)


def test_conftest(ddpperf, subject):
    ddpperf.check(subject)


def test_local(ddpperf):
    def build(ctx):
        step = helper(ctx)
        return lambda: step() + step()

    ddpperf.check(build)


def test_fresh(ddpperf):
    ddpperf.check(fresh)


def fresh(ctx):
    return steps(1)(ctx)
"""
CONFTEST = """
import pytest


def build(ctx):
    import torch

    def step():
        torch.ones(2)
        return 1.0

    return step


@pytest.fixture
def subject():
    return build
"""


@pytest.mark.slow
def test_test_modules_may_be_the_other_revisions_too(pytester: pytest.Pytester) -> None:
    root = pytester.path
    git(root, "init", "-q")
    perf = root / "perf"
    perf.mkdir()
    old = (
        TESTS.replace("steps(2)", "steps(1)")
        .replace("Linear(2, 2)", "Linear(4, 2)")
        .replace("ones(1, 2)", "ones(1, 4)", 1)
    )
    (perf / "test_tests.py").write_text(old.replace("def fresh(", "def stale("))
    (perf / "conftest.py").write_text(CONFTEST)
    (root / ".gitignore").write_text("__pycache__\nresults.json\n")
    commit_all(root)
    (perf / "test_tests.py").write_text(TESTS)
    (perf / "conftest.py").write_text(CONFTEST.replace("torch.ones(2)", "torch.ones(2) + 1"))
    (perf / "test_added.py").write_text(
        "def build(ctx):\n    return lambda: 1.0\n\n\n"
        "def test_added(ddpperf):\n    ddpperf.check(build, world_size=1, device='cpu', counts='only')\n"
    )
    options = ["-v", "--ddpperf-against=HEAD", "--ddpperf-against-tests", "--ddpperf-report=json:results.json"]
    run = pytester.runpytest_subprocess(*options)
    found = results(root)
    assert {test: result["verdict"] for test, result in found.items()} == {
        "test_function": "regressed",
        "test_object": "regressed",
        "test_workload": "improved",
        "test_conftest": "regressed",
        "test_local": "regressed",
        "test_fresh": "new",
        "test_added": "new",
    }
    operators = {test: result["metrics"]["operators"] for test, result in found.items()}
    assert (operators["test_local"]["baseline"], operators["test_local"]["value"]) == (2, 4)  # helper is, build is not
    modules = found["test_function"]["against"]["modules"]
    assert modules["test_tests"]["here"] == str(perf / "test_tests.py")
    assert modules["test_tests"]["there"].endswith("/checkout/perf/test_tests.py")
    assert found["test_conftest"]["against"]["modules"]["conftest"]["there"].endswith("/checkout/perf/conftest.py")
    for line in (
        "test_added custom: revision * cannot run *: *LookupError: the reference revision has no file test_added.py",
        "*both revisions ran this checkout's test_local.<locals>.build (test*, because * finds only names *",
        "test_fresh custom: revision * cannot run *: *LookupError: *.py of the reference revision has no f*",
    ):
        run.stdout.fnmatch_lines([line])


@pytest.mark.slow
def test_each_of_several_variants_is_compared_with_itself_in_the_other_revision(pytester: pytest.Pytester) -> None:
    suite = """
import pytest
import torch
from torch import nn
from pytest_ddpperf import Workload
from demo import model

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=2, tolerance="1000%", backend="gloo", device="cpu", timeout=60
)
workload = Workload(
    model=model.network,
    batch=lambda: (torch.randn(6, 8), torch.randint(4, (6,))),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    samples_per_step=6,
)


def test_compare(ddpperf):
    compared = ddpperf.compare(workload, strategies=["naive", "flat"])
    assert [one.strategy for one in compared.measurements] == ["naive", "flat"]
    assert compared.speedup("flat") > 0


def test_scaling(ddpperf):
    curve = ddpperf.scaling(workload, world_sizes=[1, 2])
    assert [point.world_size for point in curve.points] == [1, 2]
"""
    root = project(pytester, suite)
    layers = "from torch import nn\n\n\ndef network():\n    return nn.Sequential(nn.Linear(8, 4){more})\n"
    (root / "src/demo/model.py").write_text(layers.format(more=""))
    commit_all(root)
    (root / "src/demo/model.py").write_text(layers.format(more=", nn.Linear(4, 4)"))
    run = pytester.runpytest_subprocess("-q", "--ddpperf-against=HEAD", "--ddpperf-report=json:results.json")
    run.assert_outcomes(failed=2)
    listed = json.loads((root / "results.json").read_text())["results"]
    assert [(one["name"], one["verdict"]) for one in listed] == [
        ("naive", "regressed"),
        ("flat", "regressed"),
        ("weak w1", "regressed"),
        ("weak w2", "regressed"),
    ]
    calls = [one["metrics"]["collective_calls"] for one in listed]
    assert [(one["baseline"], one["value"]) for one in calls] == [(2, 4), (1, 1), (0, 0), (1, 1)]
    assert listed[1]["metrics"]["speedup"]["baseline"] is not None
    assert listed[3]["metrics"]["scaling_efficiency"]["baseline"] is not None


@pytest.mark.slow
def test_a_revision_that_has_to_be_built_gets_a_separate_environment(pytester: pytest.Pytester) -> None:
    """What is built here lies in a folder that git does not know; there a command puts it among the packages."""
    suite = """
import built

def test_calls(ddpperf):
    def build(ctx):
        return built.training.more(ctx)

    ddpperf.check(build, world_size=2, device="cpu", backend="gloo", counts='only')
"""
    root = project(pytester, suite)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = src build\n")
    (root / ".gitignore").write_text("__pycache__\nresults.json\nbuild\n")
    (root / "build.py").write_text(
        "import pathlib, sysconfig, torch\n"
        "pathlib.Path(sysconfig.get_path('purelib'), 'built.py').write_text('from demo import training')\n"
    )
    training = root / "src" / "demo" / "training.py"
    training.write_text(OLD)
    commit_all(root)
    (root / "build").mkdir()
    (root / "build" / "built.py").write_text("from demo import training")
    training.write_text(OLD.replace("steps(1)", "steps(3)"))
    options = ["-q", "--ddpperf-against=HEAD", "--ddpperf-report=json:results.json"]
    run = pytester.runpytest_subprocess(*options, "--ddpperf-against-setup=python build.py")
    run.stdout.fnmatch_lines(["Cause      all_reduce 1 -> 3 calls per step (+2)*"])
    modules = results(root)["test_calls"]["against"]["modules"]
    assert modules["demo.training"]["there"].endswith("/checkout/src/demo/training.py")
    assert modules["built"]["there"].endswith("/site-packages/built.py")
    assert modules["built"]["here"] == str(root / "build" / "built.py")
    assert len(git(root, "worktree", "list").splitlines()) == 1
