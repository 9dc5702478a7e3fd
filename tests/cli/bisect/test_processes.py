"""Real probes: pytest runs in small git projects. Whole searches take long; what may not depend on luck is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_ddpperf.cli.bisect import processes as bisect_processes
from pytest_ddpperf.cli.bisect.processes import run_probe
from pytest_ddpperf.cli.bisect.ranges import commits_between
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.session.probe import Probe

ROOT = str(Path(__file__).parents[2])
Git = Callable[..., str]
STEP = """
def build(ctx):
    import torch

    matrix = torch.ones(128, 128)

    def step():
        for _ in range({calls}):
            torch.distributed.all_reduce(torch.ones(4))
        for _ in range({work}):
            matrix @ matrix
        return 1.0

    return step
"""
SUITE = """
import os
import signal
from pathlib import Path

import pytest
from demo import training

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=6, steps=20, warmup=2, max_time=20, tolerance=0.03, backend="gloo", device="cpu"
)


def test_step(ddpperf):
    ddpperf.check(training.build)


def test_blocks(ddpperf):
    def build(ctx):
        from demo import training

        if "ddpperf-against-" in training.__file__:
            (Path(__file__).parent / "blocked").touch()
            signal.pause()
        return lambda: 1.0

    ddpperf.check(build, world_size=1)


def test_skips():
    pytest.skip("not today")
"""


@pytest.fixture
def project(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a project with a commit for each text of its module, and then a change that is not committed."""
    root = tmp_path / "project"
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])))

    def make(steps: Sequence[str]) -> Path:
        (root / "demo").mkdir()
        (root / "demo" / "__init__.py").touch()
        (root / "test_demo.py").write_text(SUITE)
        (root / "pytest.ini").write_text("[pytest]\nddpperf_report = json:mine.json\nddpperf_history = mine.sqlite\n")
        (root / ".gitignore").write_text("__pycache__\n.pytest_cache\nblocked\n")
        git("init", "-q")
        for number, step in enumerate(steps):
            (root / "demo" / "training.py").write_text(f"# {number}\n{step}")
            git("add", ".")
            git("commit", "-q", "-m", f"commit {number}")
            git("tag", f"v{number}")
        (root / "demo" / "training.py").write_text(STEP.format(calls=9, work=9))
        return root

    return make


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all temporary ones."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def untouched(git: Git) -> bool:
    """Whether there is no other checkout, and the change that is not committed is the only one."""
    return len(git("worktree", "list").splitlines()) == 1 and git("status", "--porcelain") == "M demo/training.py"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("test_demo.py", "--fast"), "pytest test_demo.py --fast: unrecognized arguments: --fast"),
        (("test_demo.py", "-k", "nothing"), "pytest test_demo.py -k nothing: .*3 deselected"),
    ],
)
def test_an_error_of_pytest_is_quoted(project: Callable[..., Path], arguments: tuple[str, ...], said: str) -> None:
    root = project([STEP.format(calls=0, work=0)] * 2)
    between = commits_between("v0", "v1", root)
    with pytest.raises(SettingError, match=said) as caught:
        run_probe(Probe(between.bad), between.good, arguments)
    assert "\n" not in str(caught.value)


ADDED = """
from pytest_ddpperf import Metric


def pytest_ddpperf_metrics():
    return [Metric(name="work", unit="1", better="lower", family="absolute", scale="ratio", samples=len)]
"""


def test_a_probe_of_one_test_leaves_out_the_others_and_says_which_file_cannot_be_collected(
    project: Callable[..., Path],
) -> None:
    """It may follow a metric that a hook adds."""
    root = project([STEP.format(calls=0, work=0)] * 2)
    between = commits_between("v0", "v1", root)
    (root / "test_more.py").write_text("def test_skips():\n    assert False\n")
    (root / "test_broken.py").write_text("raise ValueError('half done')\n")
    (root / "conftest.py").write_text(ADDED)
    named = ("--continue-on-collection-errors", "-k", "skips", "test_demo.py", "test_more.py", "test_broken.py")
    outcome = run_probe(Probe(between.bad, test="test_demo.py::test_skips", metric="work"), between.good, named)
    assert outcome.failures == {
        "test_broken.py": "ValueError: half done",
        "test_demo.py::test_skips": "Skipped: not today",
    }


def test_a_metric_that_neither_we_nor_a_hook_has_is_refused_before_anything_is_measured(
    project: Callable[..., Path],
) -> None:
    root = project([STEP.format(calls=0, work=0)] * 2)
    between = commits_between("v0", "v1", root)
    with pytest.raises(SettingError, match=r"^pytest: --metric work: there is no such metric; there are step_time, "):
        run_probe(Probe(between.bad, metric="work"), between.good, ())


CODE = """
import signal, sys
from pytest_ddpperf.cli.command import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
COMMAND = (sys.executable, "-c", CODE, "bisect")


def test_a_probe_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes_long(command: Sequence[str], seconds: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, seconds)

    monkeypatch.setattr(bisect_processes, "printed_by", takes_long)
    with pytest.raises(SettingError, match=r"^pytest -k step took longer than a day: name fewer tests$"):
        run_probe(Probe("0" * 40), "1" * 40, ("-k", "step"))


@pytest.mark.slow
def test_the_commit_among_eight_that_communicates_more_is_found(project: Callable[..., Path], git: Git) -> None:
    steps = [STEP.format(calls=2 + (number >= 3), work=0) for number in range(9)]
    steps[4] = "raise ImportError('half done')"
    root = project(steps)
    arguments = ["test_demo.py::test_step", "--good", "v0", "--bad", "v8", "--metric", "collective_calls"]
    done = subprocess.run([*COMMAND, *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"\n{git('rev-parse', 'v3')} is the first bad commit\n  commit 3\n  a, " in done.stdout
    assert "commit 4 ... skipped: rank " in done.stdout
    assert "ImportError: half done" in done.stdout
    assert "collective_calls: all_reduce 2 -> 3 calls per step" in done.stdout
    assert untouched(git)


@pytest.mark.slow
def test_the_commit_among_eight_that_takes_longer_is_found(project: Callable[..., Path], git: Git) -> None:
    """It does four times the work: no luck is needed."""
    root = project([STEP.format(calls=0, work=100 if number >= 5 else 25) for number in range(9)])
    arguments = ["test_demo.py::test_step", "--good", "v0", "--bad", "v8", "--metric", "step_time"]
    done = subprocess.run([*COMMAND, *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{git('rev-parse', 'v5')} is the first bad commit\n" in done.stdout
    assert untouched(git)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_bisect_ends_it_leaves_no_process_and_no_worktree(
    project: Callable[..., Path], git: Git, temporary: Path, number: signal.Signals, status: int
) -> None:
    root = project([STEP.format(calls=calls, work=0) for calls in (2, 3)])
    deadline = time.monotonic() + 90

    def until(met: Callable[[], bool]) -> None:
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with subprocess.Popen([*COMMAND, "test_demo.py::test_blocks", "--good", "v0"], cwd=root) as run:
        until(lambda: (root / "blocked").exists() or run.poll() is not None)
        assert len(git("worktree", "list").splitlines()) > 1
        run.send_signal(number)
        assert run.wait(60) == status
    until(lambda: untouched(git))
    until(lambda: not any(str(root) in working_folder(process) for process in Path("/proc").glob("[0-9]*")))
    until(lambda: not list(temporary.glob("ddpperf-*")))


def working_folder(process: Path) -> str:
    """The current folder of a process; empty for this one and for those that cannot be seen."""
    try:
        return "" if process.name == str(os.getpid()) else str((process / "cwd").readlink())
    except OSError:
        return ""
