"""pytest as one of several processes of a launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.two_nodes import TwoNodes, why_not
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.nodes.tasks import task_of
from pytest_ddpperf.run.session.configuration import may_be_task
from pytest_ddpperf.run.session.under_launcher import takes_part
from pytest_ddpperf.settings import Settings
from tests.factories import git, known

SECONDS = 240.0

GROUP = """
import os
import pytest
import torch
import torch.distributed as dist

def total(ctx):
    summed = torch.ones(1)
    dist.all_reduce(summed)
    return summed.item(), ctx.local_rank, os.environ["GROUP_RANK"]
"""
PASSES = (
    GROUP
    + """
def test_sum(ddpperf_group):
    values = ddpperf_group.run(total).values
    assert [value[0] for value in values] == [len(values)] * len(values)
"""
)
FAILS = """
def test_fails(ddpperf_group):
    def raises(ctx):
        if ctx.rank == ctx.world_size - 1:
            raise ValueError("boom")
        total(ctx)
    ddpperf_group.run(raises)

def test_skips(ddpperf_group):
    pytest.skip("not today")
"""
PLAIN = "def test_plain(): pass\n"


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


Launch = Callable[..., list[Ended]]


def variables(rank: int, **others: str) -> dict[str, str]:
    """Those of one of two tasks of srun on one node."""
    of_step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(os.getpid()), "SLURM_STEP_NUM_NODES": "1"}
    return {**of_step, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **others}


def clean() -> dict[str, str]:
    """The environment of this process without what pytest has set in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


def pytest_in(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]


@contextmanager
def started(
    folder: Path, arguments: Callable[[int], Sequence[str]], of_task: Callable[[int], dict[str, str]] = variables
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """pytest as both tasks of a launcher, which write to files; those that still run in the end are killed."""
    tasks = []
    for rank in (0, 1):
        command, environ = pytest_in(folder, "-p", "no:asyncio", *arguments(rank)), {**clean(), **of_task(rank)}
        with (folder / f"{rank}.out").open("w") as out, (folder / f"{rank}.err").open("w") as err:
            tasks.append(subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=err))
    try:
        yield tasks
    finally:
        for task in tasks:
            task.kill()
            task.wait()


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run pytest in ``tmp_path`` as both tasks of srun."""

    def launched(*arguments: str) -> list[Ended]:
        with started(tmp_path, lambda _: arguments) as tasks:
            statuses = [task.wait(SECONDS) for task in tasks]
        texts = [[(tmp_path / f"{rank}.{name}").read_text() for name in ("out", "err")] for rank in (0, 1)]
        return [Ended(status, *text) for status, text in zip(statuses, texts, strict=True)]

    return launched


def test_processes_share_tests_that_use_ranks_if_the_launcher_has_started_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, others = (cast("pytest.Item", SimpleNamespace(fixturenames=names)) for names in (["ddpperf_group"], []))
    task = known(task_of(variables(1)))
    assert (takes_part(task, [ours]), takes_part(task, [others]), takes_part(task, [])) == (True, False, False)
    with pytest.raises(SettingError, match=r"restarted all processes .*=2., so failed tests would run again until"):
        takes_part(replace(task, restarts=2), [ours])
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert may_be_task(Settings())
    assert not may_be_task(Settings(multi_node="off")), "variables that are left over are ignored on demand"


@pytest.mark.slow  # test_cluster.py has two nodes in one process, every day
def test_rank_0_runs_the_tests_and_the_others_exit_silently_with_its_status(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "test_it.py").write_text(PASSES + FAILS)
    controller, follower = launch("--junitxml=report.xml", "-rs")
    assert (controller.status, follower.status) == (1, 1)
    assert "ddpperf: 2 processes of srun on 1 node\n" in controller.out
    assert "rank 1 of 2 raised ValueError: boom" in controller.out
    assert "1 failed, 1 passed, 1 skipped" in controller.out
    assert (follower.out, follower.err) == ("", "")
    report = (tmp_path / "report.xml").read_text()
    assert 'tests="3"' in report
    assert 'failures="1"' in report


@pytest.mark.slow
def test_with_option_m_not_ddpperf_each_process_runs_its_tests(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "test_it.py").write_text(PASSES + PLAIN)
    for ended in launch("-m", "not ddpperf"):
        assert "1 passed, 1 deselected" in ended.out


@pytest.mark.slow
def test_workers_of_xdist_are_no_tasks(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "test_it.py").write_text(PASSES)
    for ended in launch("-n", "1"):
        assert ended.status == 1
        assert "srun started 2 processes, and pytest-xdist would start more: leave -n out" in ended.out


@pytest.mark.slow
def test_tasks_meet_in_a_folder_and_a_killed_controller_ends_them(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import os, signal\ndef test_dies(ddpperf_group): os.kill(os.getpid(), 9)\n")
    (tmp_path / "meeting").mkdir()
    folder = [f"--ddpperf-rendezvous-dir={tmp_path}/meeting"]
    with started(tmp_path, lambda _: folder, lambda rank: variables(rank, SLURM_STEP_NUM_NODES="2")) as tasks:
        assert tasks[0].wait(SECONDS) == -signal.SIGKILL
        assert tasks[1].wait(5) == 1
    assert list((tmp_path / "meeting").iterdir()) == []


def ended(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=clean(), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def torchrun(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return ended(folder, *command, *pytest_in(folder)[1:])


@pytest.mark.slow  # torchrun imports torch for itself
def test_torchrun_shows_one_report_and_names_the_first_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PASSES)
    passed = torchrun(tmp_path)
    assert passed.returncode == 0
    assert passed.stdout.count("1 passed") == 1
    (tmp_path / "test_it.py").write_text(PASSES + FAILS)
    failed = torchrun(tmp_path)
    assert failed.returncode == 1
    assert failed.stdout.count("test session starts") == 1
    assert "test_it.py::test_fails: rank 1 of 2 raised ValueError: boom" in failed.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.system("command -v mpirun > /dev/null") != 0, reason="mpirun is not installed")  # noqa: S605
def test_mpirun_shows_one_report_and_ranks_have_the_cores_of_all_tasks(tmp_path: Path) -> None:
    """OpenMPI binds each of two tasks to a core."""
    (tmp_path / "test_it.py").write_text(
        PASSES
        + "def cores(ctx): return len(os.sched_getaffinity(0))\n"
        "def test_cores(ddpperf_group): assert set(ddpperf_group.run(cores).values) == {CORES}\n".replace(
            "CORES", str(len(os.sched_getaffinity(0)))
        )
    )
    done = ended(tmp_path, "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *pytest_in(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 passed") == 1


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with TwoNodes() as two:
        yield two


def on_nodes(nodes: TwoNodes, folder: Path, *arguments: str, processes: int = 1) -> Sequence[tuple[int, str]]:
    given = ["-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    return nodes.run(given, folder, processes=processes, seconds=SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_ranks_of_a_run_are_on_both_nodes_under_torchrun(nodes: TwoNodes, tmp_path: Path, processes: int) -> None:
    (tmp_path / "test_it.py").write_text(
        PASSES + "def test_places(ddpperf_group):\n"
        "    assert [value[1:] for value in ddpperf_group.run(total).values] == "
        "[(0, '0'), (1, '0'), (0, '1'), (1, '1')]\n"
    )
    first, second = on_nodes(nodes, tmp_path, "--ddpperf-world-size=4", processes=processes)
    assert (first[0], second[0]) == (0, 0), first[1] + second[1]
    assert f"{2 * processes} processes of torchrun on 2 nodes over {nodes.names[0]}; node 1 is " in first[1]
    assert "2 passed" in first[1]
    assert "test session starts" not in second[1]


REVISION_TEST = """
import os
import torch
import trained

def build(ctx):
    open(f"{os.environ['SEEN']}/{trained.NAME} on node {os.environ['GROUP_RANK']}", "w").close()
    return lambda: torch.distributed.all_reduce(torch.ones(1))

def test_step(ddpperf):
    ddpperf.check(build)
    if "KILLED" in os.environ:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_each_node_has_its_own_files_of_another_revision_until_the_end(
    nodes: TwoNodes, tmp_path: Path, *, killed: bool
) -> None:
    """The second node has a clone of its own at the same path, and folders for temporary files are not shared."""
    root, clone, seen, temporary = (tmp_path / name for name in ("project", "clone", "seen", "temporary"))
    for folder in (root, seen, temporary):
        folder.mkdir()
    git(root, "init", "-q")
    (root / "pytest.ini").touch()
    (root / "test_it.py").write_text(REVISION_TEST)
    for name in ("old", "new"):
        (root / "trained.py").write_text(f"NAME = {name!r}\n")
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", name)
    git(tmp_path, "clone", "-q", str(root), str(clone))
    script = (
        f"mount --bind {clone} {root} && mount -t tmpfs none {temporary} && cd {root} && "
        f'{{ "$@"; status=$?; ls {temporary} | grep against > {tmp_path}/left; exit $status; }}'
    )
    environ = {"SEEN": str(seen), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    if killed:
        environ["KILLED"] = ""
    given = ["-p", "no:cacheprovider", "--ddpperf-against=HEAD~1", "--ddpperf-counts=only", "--ddpperf-world-size=2"]
    with nodes.started(given, root, environ=environ, second=("unshare", "-m", "sh", "-c", script, "sh")) as tasks:
        statuses = [task.wait(SECONDS) for task in tasks]
    text = "".join(nodes.output(root, node).read_text() for node in range(2))
    assert statuses == [killed, killed], text
    assert {path.name for path in seen.iterdir()} == {
        f"{name} on node {node}" for name in ("old", "new") for node in (0, 1)
    }
    assert (tmp_path / "left").read_text() == ""
    assert not list(temporary.glob("ddpperf-against-*"))


@pytest.mark.slow
def test_a_follower_that_is_interrupted_writes_no_file(tmp_path: Path) -> None:
    """An empty report of a process that ran no test could pass for the controller's."""
    (tmp_path / "test_it.py").write_text(
        "import pathlib, time\n"
        "def test_waits(ddpperf_group):\n"
        "    pathlib.Path('begun').touch()\n"
        "    while not pathlib.Path('over').exists(): time.sleep(0.01)\n"
    )

    def files(rank: int) -> list[str]:
        return [f"--junitxml={rank}.xml", f"--ddpperf-report=json:{rank}.json"]

    with started(tmp_path, files) as tasks:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            assert all(task.poll() is None for task in tasks)
        tasks[1].send_signal(signal.SIGINT)
        assert tasks[1].wait(SECONDS) == 2
        (tmp_path / "over").touch()
        assert tasks[0].wait(SECONDS) == 0
    assert sorted(path.name for path in tmp_path.glob("*.xml")) == ["0.xml"]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["0.json"]
