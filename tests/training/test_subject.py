"""Scripts on real ranks: each has the main thread and a group of its own, and is stopped in time; workloads by hand."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import gc
import importlib
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddpperf import Script
from pytest_ddpperf.errors import RankFailed, SettingError, WorkloadError
from pytest_ddpperf.instruments.torch_internals import after_optimizer_steps
from pytest_ddpperf.judge.counts import change_of
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.launch.faults.exceptions import failed_report
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.unpicklable import describe
from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.sites import changed_sites
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import PREPARE_LAUNCH, RUN_LAUNCH, LaunchJob, PrepareJob
from pytest_ddpperf.training.subject import located, unfit
from tests.training.workloads import workload

FILE = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)  # the main thread alone may
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    steps, made = int(sys.argv[1]), 0
    try:
        for made in range(steps):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    except Exception:
        print("swallowed")
    finally:
        dist.barrier()
        print(f"{os.path.basename(__file__)} {sys.argv[1:]}, rank {dist.get_rank()} of {dist.get_world_size()}: {made}")
        print(os.environ["LOCAL_RANK"], torch.distributed.is_torchelastic_launched(), sys.path[0])
        dist.destroy_process_group()
    print("after the loop")
"""


def train(steps: int = 100, each: Callable[[int], object] = bool, make: Callable[..., Any] = torch.optim.SGD) -> None:
    """A training function as many repositories have one."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = make(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        each(step)
    dist.destroy_process_group()


def job(script: Script, steps: int = 3) -> LaunchJob:
    return LaunchJob(script, None, Settings(), Plan(warmup=2, steps=steps))


def launched(
    launcher: Launcher, job: LaunchJob | PrepareJob, function: Any = RUN_LAUNCH, projects: tuple[str, ...] = ()
) -> LaunchResult[Any]:
    group = {"backend": "gloo", "device": "cpu", "own_group": True, "projects": projects}
    return launcher.run(function, job, world_size=2, timeout=60, **group)  # type: ignore[arg-type]


def test_a_script_is_stopped_after_its_steps_and_its_finally_runs(launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(FILE)
    result: LaunchResult[RankLaunch] = launched(launcher, job(Script(file, 100), steps=4))
    needed = job(Script(file), steps=4).steps_needed
    for rank, (found, output) in enumerate(zip(result.values, result.outputs, strict=True)):
        assert (found.rank, len(found.step_times), found.background) == (rank, 4, False)
        assert found.phases is not None
        assert sum(found.phases.seconds["backward"]) > 0
        lines = [f"train.py ['100'], rank {rank} of 2: {needed - 1}", f"{rank} True {tmp_path}"]
        assert output.stdout.splitlines() == lines


def test_a_script_that_ends_early_says_how_many_steps_it_made(launcher: Launcher) -> None:
    needed = job(Script(train)).steps_needed
    assert len(launched(launcher, job(Script(partial(train, needed)))).values[0].step_times) == 3
    told = (
        rf"train \(.*test_subject.py:\d+\) ended after {needed - 1} optimizer steps.* needs {needed}, .* to diagnose:"
    )
    with pytest.raises(WorkloadError, match=told):
        launched(launcher, job(Script(partial(train, needed - 1))))


def test_a_group_that_a_script_destroys_lives_on_with_its_model_and_nothing_warns_of_it(launcher: Launcher) -> None:
    """Where the model held it last, gloo would end while Python is locked, which one of its threads may wait for.

    Where there is a GPU, torch warns of a barrier of a group as a script's run has one; a script's own warnings are
    its own.
    """

    def lives_on() -> None:
        def note(step: int) -> None:
            seen[:1] = [weakref.ref(dist.group.WORLD)] if step == 0 else seen[:1]
            if step == 2:
                warnings.warn("of its own", stacklevel=1)

        seen: list[Any] = []
        torch._C._get_accelerator = lambda *_: torch.device("cuda", 0)
        with warnings.catch_warnings(record=True) as said, contextlib.suppress(BaseException):  # that stops it
            warnings.simplefilter("always")
            train(each=note)
        dist.destroy_process_group()
        gc.collect()
        print("alive" if seen[0]() is not None else "gone", *(one.message for one in said))

    result = launched(launcher, job(Script(lives_on)))
    assert [output.stdout for output in result.outputs] == ["alive of its own\n"] * 2


def test_a_step_of_a_script_is_counted_as_any_other(launcher: Launcher) -> None:
    """From a step of the first optimizer that steps to its next one, whatever the second one does."""

    def two() -> None:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        first, second = (torch.optim.Adam(part) for part in ([model.module.weight], [model.module.bias]))
        while True:
            for optimizer in (first, second, second):
                optimizer.zero_grad()
                model(torch.ones(4, 8)).square().mean().backward()
                optimizer.step()

    result = launched(launcher, PrepareJob(job(Script(two)), timed=True, counted=True), PREPARE_LAUNCH)
    counts = merged([rank.counts for rank in result.values])
    assert counts.unstable == {}
    assert counts.totals["optimizer_steps"] == 3
    assert counts.details["collective_calls"] == {"all_reduce": 3}
    assert counts.totals["flops_forward"] == 3 * 2 * 4 * 8 * 8


def test_a_step_that_ends_inside_a_mode_or_inside_backward_is_counted_as_any_other(launcher: Launcher) -> None:
    """Only then are modes of the counters not the last ones that this thread entered."""

    def script() -> None:
        dist.init_process_group("gloo")
        model, flops = nn.Linear(8, 8), set()
        for parameter in model.parameters():
            step = torch.optim.SGD([parameter], lr=0.1).step
            parameter.register_post_accumulate_grad_hook(lambda _, step=step: step())  # type: ignore[no-untyped-call]
        try:
            while True:
                with torch.device("cpu"), FlopCounterMode(display=False) as mode:
                    model(torch.ones(4, 8)).square().mean().backward()
                    dist.all_reduce(model.weight.grad)
                flops.add(mode.get_total_flops())
        finally:
            of_functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
            print([*of_functions, *_get_current_dispatch_mode_stack()], flops)

    result = launched(launcher, PrepareJob(job(Script(script)), timed=True, counted=True), PREPARE_LAUNCH)
    counts = merged([rank.counts for rank in result.values])
    assert counts.unstable == {}
    assert counts.totals["optimizer_steps"] == 2
    assert counts.details["collective_calls"] == {"all_reduce": 1}
    assert counts.totals["flops"] == 2 * 2 * 4 * 8 * 8
    assert [output.stdout for output in result.outputs] == [f"[] {{{2 * 2 * 4 * 8 * 8}}}\n"] * 2


def test_a_script_whose_ranks_join_after_different_numbers_of_steps_is_refused(launcher: Launcher) -> None:
    def script(more: int) -> None:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            with Join([model]):
                for _ in range(3 + more * dist.get_rank()):
                    model(torch.ones(4, 8)).square().mean().backward()
                    optimizer.step()

    assert len(launched(launcher, job(Script(partial(script, 0)))).values) == 2
    with pytest.raises(WorkloadError, match="rank 0 has fewer batches than others and waits in Join"):
        launched(launcher, job(Script(partial(script, 1))))


def log(step: int) -> None:
    """Asks all ranks for their loss in each fifth step."""
    if step % 5 == 0:
        mean = torch.ones(())
        dist.all_reduce(mean)
        mean.item()


def evaluating() -> Callable[[int], object]:
    """What logs in each fifth step, and evaluates in each ninth."""
    model = nn.Linear(8, 8)

    def evaluate(step: int) -> None:
        log(step)
        if step % 9 == 0:
            losses = torch.empty(50)
            with torch.no_grad():
                for number in range(50):
                    losses[number] = model(torch.ones(4, 8)).square().mean()
            dist.all_gather([torch.empty(50) for _ in range(2)], losses)

    return evaluate


def counted(launcher: Launcher, each: Callable[[int], object], steps: int = 100) -> Counts:
    """The counts of training that does something after its steps."""
    training = PrepareJob(job(Script(lambda: train(steps, each=each))), counted=True)
    return merged([rank.counts for rank in launched(launcher, training, PREPARE_LAUNCH).values])


def test_work_of_some_steps_is_compared_by_its_frequency(launcher: Launcher) -> None:
    before, after = counted(launcher, log), counted(launcher, evaluating())
    assert (before.steps, after.steps) == (20, 20)
    verdicts = {metric: decide_count(metric, before, after) for metric in after.totals}
    red = {metric for metric, verdict in verdicts.items() if verdict is Verdict.REGRESSED and COUNTS[metric].gated}
    worse = {metric for metric in red if not COUNTS[metric].follows}
    assert worse == {"collective_calls", "collective_bytes", "flops", "operators", "model_state_bytes"}
    for metric in worse - {"model_state_bytes"}:  # the second model is no line's
        assert change_of(metric, before, after)[0]
        changes = changed_sites(before.sites.get(metric, ()), after.sites.get(metric, ()))
        assert {now.function for _, now in changes if now is not None} == {"evaluate"}


def test_a_script_that_ends_is_counted_until_its_end(launcher: Launcher) -> None:
    """Of 20 steps the first, 2 of warm-up and 3 that would be timed come before."""
    found = counted(launcher, log, steps=20)
    assert found.steps == 14
    assert found.totals["collective_calls"] == 1.2


def test_replacements_that_a_script_makes_in_the_standard_library_do_not_reach_the_plugin(launcher: Launcher) -> None:
    """Clocks may stand still, only the first rank may print, and tracebacks may be drawn by another library."""

    def replaces() -> None:
        pause, others = time.sleep, {traceback: "TracebackException", builtins: "print"}
        for name in ("time", "time_ns", "monotonic", "perf_counter", "process_time"):
            setattr(time, name, lambda: 0)
        for module, name in others.items():
            setattr(module, name, lambda *_, **__: None)
        try:
            train(each=lambda _: pause(0.01))
        finally:
            raise ValueError("too late")

    training = PrepareJob(job(Script(replaces)), timed=True, counted=True)
    result = launched(launcher, training, PREPARE_LAUNCH)
    for found, output in zip(result.values, result.outputs, strict=True):
        assert min(found.timed.step_times) >= 0.01
        assert min(found.counting, found.timed.worked, found.timed.window[1] - found.timed.window[0]) >= 0.03
        assert found.timed.cpu_time > 0
        assert re.search(r"line \d+, in replaces\nValueError: too late\n", output.stderr)


def test_an_error_of_the_script_is_raised_unchanged(launcher: Launcher) -> None:
    def fail(step: int) -> None:
        if step == 4 and dist.get_rank() == 1:
            raise ValueError("a bad batch")

    with pytest.raises(RankFailed, match=r"rank 1 of 2 raised ValueError: a bad batch[\s\S]*in fail") as failed:
        launched(launcher, job(Script(lambda: train(each=fail))))
    assert "script_run" not in str(failed.value)


def answering() -> None:
    """Ends as Hydra's main does: prints an error of its own, and leaves."""
    try:
        try:
            int("wide")
        except ValueError as error:
            raise RuntimeError("error in call to Model") from error
    except RuntimeError:
        sys.exit(1)


def test_an_exit_in_an_except_block_is_reported_as_the_first_error() -> None:
    with pytest.raises(SystemExit) as left:
        answering()
    report = failed_report(left.value, "run")
    assert (report.kind, report.type) == ("raised", "ValueError")
    assert "error in call to Model" in report.traceback
    assert report.position is not None
    assert report.position.line.endswith(f"test_subject.py:{answering.__code__.co_firstlineno + 4} in answering")


def test_an_exit_in_an_except_block_of_a_library_has_the_line_that_called_the_library() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int)

    def calling() -> None:
        parser.parse_args(["--width", "wide"])

    with pytest.raises(SystemExit) as left:
        calling()
    report = failed_report(left.value, "run")
    assert report.type == "ValueError"
    assert report.position is not None
    assert report.position.line.endswith(f"test_subject.py:{calling.__code__.co_firstlineno + 1} in calling")


def test_a_script_that_ends_before_its_first_step_says_so(launcher: Launcher) -> None:
    told = "ended before its first optimizer step: its last output .* does not see the steps of processes"
    with pytest.raises(WorkloadError, match=told):
        launched(launcher, job(Script(sys.exit)))


spawn: Any = importlib.import_module("torch.multiprocessing.spawn").spawn


def rank_of_a_script(rank: int) -> None:
    join_group(rank)
    train()


def join_group(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2)


def start_ranks() -> None:
    spawned = multiprocessing.get_context("spawn")
    ranks = [spawned.Process(target=rank_of_a_script, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


@pytest.mark.parametrize(
    ("by", "start"),
    [
        ("torch.multiprocessing.spawn", lambda: spawn(rank_of_a_script, nprocs=2)),
        ("multiprocessing.Process", start_ranks),
        ("torchrun", lambda: subprocess.run(["/usr/bin/torchrun", "--nproc-per-node=2", "train.py"], check=True)),
        ("torchrun", lambda: subprocess.run("exec torchrun train.py", shell=True, check=True)),  # noqa: S602
        (
            "torch.distributed.run",
            lambda: subprocess.run([sys.executable, "-m", "torch.distributed.run", "train.py"], check=True),
        ),
    ],
)
def test_a_script_that_starts_ranks_itself_is_refused_at_once(
    launcher: Launcher, by: str, start: Callable[[], object]
) -> None:
    """Its processes would wait for each other until the deadline, and nobody would see their steps."""
    told = f"starts ranks itself, by {by}: .* If RANK is set, let the script start no ranks"
    with pytest.raises(WorkloadError, match=told):
        launched(launcher, job(Script(start)))


def test_a_script_may_start_all_other_processes(launcher: Launcher) -> None:
    """Before it trains: a worker, and a command. While it trains: also a rank, such as a server that generates."""

    def each(step: int) -> None:
        if step == 1:
            with contextlib.suppress(FileNotFoundError):
                subprocess.run(["/no/such/torchrun", "serve"], check=True)

    def script() -> None:
        multiprocessing.get_context("fork").Process(target=print).start()
        spawn(print, nprocs=1)  # as a script may prepare its data
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        for command in (["echo", "torchrun"], ["echo", "-m", "accelerate"], "echo accelerate launch"):
            subprocess.run(command, shell=isinstance(command, str), check=True)
        train(100, each)

    assert len(launched(launcher, job(Script(script))).values) == 2


def test_a_script_that_starts_ranks_only_without_a_launcher_is_measured(launcher: Launcher) -> None:
    def script() -> None:
        if "RANK" in os.environ:
            train()
        else:
            spawn(rank_of_a_script, nprocs=2)

    assert len(launched(launcher, job(Script(script))).values) == 2


def test_nested_optimizer_steps_are_counted_once() -> None:
    class Inner(torch.optim.SGD):
        """A class whose step torch has not wrapped yet."""

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return super().step(closure)

    def optimizer(kind: type[torch.optim.SGD]) -> torch.optim.SGD:
        return kind([nn.Parameter(torch.ones(1))], lr=0.1)

    early = optimizer(torch.optim.SGD)
    stepped: list[object] = []
    with after_optimizer_steps(stepped.append):
        inner, outer = optimizer(Inner), optimizer(Outer)
        early.step()
        outer.step()
        inner.step()
    early.step()
    inner.step()
    assert stepped == [early, outer, inner]


def test_a_step_that_a_scaler_skips_is_no_optimizer_step() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    stepped: list[float] = []
    for loss in (math.inf, 1.0, math.inf, 2.0):
        with after_optimizer_steps(lambda _, loss=loss: stepped.append(loss)):  # type: ignore[misc]  # of this step
            optimizer.zero_grad()
            scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]  # torch has no annotation
            scaler.step(optimizer)
            scaler.update()
    assert stepped == [1.0, 2.0]


def test_a_script_is_searched_in_the_folder_of_the_test_and_then_in_the_root(tmp_path: Path) -> None:
    beside, root = tmp_path / "perf", tmp_path
    (root / "train.py").touch()
    script = Script("train.py", "--epochs", 3)
    assert script.arguments == ("--epochs", "3")
    assert script.found_in((beside, root)).target == str(root / "train.py")
    beside.mkdir()
    (beside / "train.py").touch()
    kept = Script("train.py", "--epochs", 3, keep_files=True)
    assert kept.found_in((beside, root)) == Script(beside / "train.py", "--epochs", "3", keep_files=True)
    assert Script(train).found_in(()) == Script(train)
    with pytest.raises(SettingError, match=rf"Script\('tain.py'\) does not exist; .*{beside}/tain.py, {root}"):
        Script("tain.py").found_in((beside, root))


SAVING = """
import os, sys
import torch, torch.distributed as dist
from package import paths

dist.init_process_group("gloo")
model = torch.nn.Linear(4, int(sys.argv[1]))
if os.path.exists("snapshot.pt"):
    model.load_state_dict(torch.load("snapshot.pt"))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
out = os.path.join(os.path.dirname(os.path.realpath(__file__)), "out")
folders = [out, paths.OUT, sys.argv[2].split("=")[1], "logs"]
for step in range(1000):
    if step == 5 and len(sys.argv) > 3:
        paths.fail()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "snapshot.pt")
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
            torch.save(model.module.state_dict(), os.path.join(folder, "snapshot.pt"))
    dist.barrier()
    if step == 0:
        print(*map(os.path.exists, ["snapshot.pt", *folders]), open("../data").read(), open("config.yaml").read())
"""
PATHS = """
import os
OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runs")

def fail():
    raise ValueError(f"nothing in {OUT}")
"""


def saving_project(folder: Path) -> Path:
    """A project whose script saves by all kinds of paths, and resumes."""
    project = folder / "project"
    (project / "package").mkdir(parents=True)
    (project / "train.py").write_text(SAVING)
    (project / "package/__init__.py").touch()
    (project / "package/paths.py").write_text(PATHS)
    (project / "config.yaml").write_text("here")
    (folder / "data").write_text("beside")
    return project


def files_of(project: Path) -> set[str]:
    return {str(file.relative_to(project)) for file in project.rglob("*") if "__pycache__" not in str(file)}


def test_a_script_that_saves_and_resumes_finds_nothing_of_another_launch(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = saving_project(tmp_path)
    before = files_of(project)
    monkeypatch.chdir(project)
    script = Script(project / "train.py", 2, f"--output={project}/saved")
    projects = script.projects(project)
    assert projects == (str(project),)
    result = launched(launcher, job(script), projects=projects)
    assert [output.stdout for output in result.outputs] == ["True True True True True beside here\n"] * 2
    assert files_of(project) == before
    script = Script(project / "train.py", 3, f"--output={project}/saved", "fail")  # it could load no model of size 2
    with pytest.raises(RankFailed) as failed:
        launched(launcher, job(script), projects=projects)
    words = str(failed.value)
    assert f'File "{project}/train.py", line 16, in <module>\n    paths.fail()' in words
    assert f'File "{project}/package/paths.py", line 6, in fail' in words
    assert f"ValueError: nothing in {project}/runs" in words
    assert "ddpperf-files" not in words
    assert failed.value.where == "package/paths.py:6 in fail"
    assert files_of(project) == before


def test_a_function_has_separate_files_too(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def saving() -> None:
        Path("snapshot.pt").write_text("new")
        Path(__file__).with_name("of-a-launch.pt").write_text("new")
        train()

    monkeypatch.chdir(tmp_path)
    script = Script(saving)
    top = Path(__file__).parents[2]  # of the repository, or of what was unpacked from it
    assert {*script.projects(Path(__file__).parent)} >= {str(tmp_path)}
    launched(launcher, job(script), projects=(str(top), str(tmp_path)))
    assert not Path(__file__).with_name("of-a-launch.pt").exists()
    assert [*tmp_path.iterdir()] == []


def test_a_launch_has_separate_files_of_project_current_folder_and_script_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repository/.git").mkdir(parents=True)
    root = tmp_path / "repository/perf"
    elsewhere = Script(tmp_path / "scripts/train.py")
    assert elsewhere.projects(root) == tuple(map(str, (tmp_path / "repository", tmp_path, tmp_path / "scripts")))
    assert Script(tmp_path / "scripts/train.py", keep_files=True).projects(root) == ()
    monkeypatch.chdir("/")
    assert Script(train).projects(root) == (str(tmp_path / "repository"),)


def test_a_function_that_takes_arguments_needs_a_lambda() -> None:
    def train(batch_size: int) -> None: ...

    def main(batch_size: int = 8) -> None: ...

    with pytest.raises(WorkloadError, match=r"^Script\(function\): train .* give Script\(lambda: train\(\.\.\.\)\)"):
        Script(train)  # type: ignore[arg-type]  # a mistake of users
    with pytest.raises(WorkloadError, match=r"takes arguments, .* give Script\(lambda: main\(16\)\)"):
        Script(main, 16)
    assert Script(main).arguments == ()
    assert Script(lambda: main(16), "--fast").arguments == ("--fast",)


def test_a_decorator_reads_the_arguments_of_the_function_that_it_completes() -> None:
    def main(config: dict[str, int]) -> None: ...

    @functools.wraps(main)
    def command(config: dict[str, int] | None = None) -> None: ...  # such as that of hydra.main

    assert Script(command, "trainer.epochs=1000").arguments == ("trainer.epochs=1000",)

    @functools.wraps(main)
    def recorded(*given: object) -> None: ...  # such as that of torch's record, which completes nothing

    with pytest.raises(WorkloadError, match="give Script"):
        Script(recorded, "trainer.epochs=1000")


SPAWNS = """import math
import multiprocessing
import sys
from {of} import NAME
print(NAME, __name__, sys.path[0])
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(math.sqrt, [4.0]) == [2.0]
"""


@pytest.mark.parametrize(
    ("package", "of", "expected"),
    [
        (True, ".part", "outer.kit.part __main__ {root}"),
        (False, ".part", "kit.part __main__ {root}/outer/kit"),
        (False, "part", "part __main__ {root}/outer/kit"),
    ],
)
@pytest.mark.parametrize("name", ["__main__.py", "train.py"])
def test_a_file_of_a_package_runs_as_with_python_m(
    tmp_path: Path, name: str, *, package: bool, of: str, expected: str
) -> None:
    folder = tmp_path / "outer" / "kit"
    folder.mkdir(parents=True)
    for file in (folder / "__init__.py", folder.parent / "__init__.py") if package else ():
        file.touch()
    (folder / "part.py").write_text("NAME = __name__")
    main = folder / name
    main.write_text(SPAWNS.format(of=of))
    code = f"from pytest_ddpperf import Script; Script({str(main)!r}).run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    shown = [line for line in done.stdout.splitlines() if name == "__main__.py" or "__mp_main__" not in line]
    assert (shown, done.stderr) == ([expected.format(root=tmp_path)], "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": None}, "neither batch nor loader: give one, either"),
        ({"batch": print, "loader": lambda _rank, _size: []}, "both batch and loader: give one, either"),
        ({"model": None}, r"Workload\(model=...\) is None, not a function: give"),
        ({"model": torch.nn.Linear(2, 2)}, r"Workload\(model=...\) is a Linear module: give a function that builds it"),
        ({"batch": (1, 2)}, r"Workload\(batch=...\) is \(1, 2\), not a function"),
        ({"batch": None, "loader": [1]}, r"Workload\(loader=...\) is \[1\], not a function"),
        ({"loss": None}, "neither loss nor forward: give one, either"),
        ({"forward": lambda _model, _batch: 0}, "both loss and forward: give one, either"),
        ({"blocks": []}, r"Workload\(blocks=...\) is \[\], not a function"),
        ({"loss": torch.nn.MSELoss}, r"Workload\(loss=...\) is the class MSELoss: give an instance, loss=MSELoss\(\)"),
        ({"model": lambda size: size}, r"Workload\(model=...\): .* takes \(size\) and .*; give model=lambda: ...$"),
        ({"loss": lambda outputs: outputs}, r"too many positional arguments; give loss=lambda outputs, targets: ...$"),
        ({"optimizer": lambda: None}, r"Workload\(optimizer=...\): .*; give optimizer=lambda parameters: ...$"),
        ({"blocks": lambda: ()}, r"Workload\(blocks=...\): .*; give blocks=lambda model: ...$"),
        ({"batch": None, "loader": lambda: ()}, r"Workload\(loader=.*; give loader=lambda rank, world_size: ...$"),
        (
            {"loss": None, "forward": lambda model: model},
            r"Workload\(forward=.*; give forward=lambda model, batch: ...$",
        ),
        ({"samples_per_step": 0}, r"Workload\(samples_per_step=0\): give a finite number above 0"),
        ({"samples_per_step": True}, r"Workload\(samples_per_step=True\): give a finite number above 0"),
        ({"tokens_per_step": float("nan")}, r"Workload\(tokens_per_step=nan\): give a finite number above 0"),
        ({"tokens_per_step": "128"}, r"Workload\(tokens_per_step='128'\): give a finite number above 0"),
    ],
)
def test_a_wrong_field_is_named_with_its_cure(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        workload(**changes)


def test_functions_are_located_by_file_and_line() -> None:
    line = workload.__code__.co_firstlineno
    assert located(workload).startswith("workload (")
    assert located(workload).endswith(f"workloads.py:{line})")
    assert located(functools.partial(workload, tokens_per_step=1)) == located(workload)
    assert located(torch.optim.SGD) == "SGD"
    assert located(torch.nn.MSELoss()) == "MSELoss"


def test_a_function_is_located_although_the_current_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    line = workload.__code__.co_firstlineno
    assert located(workload) == describe(workload) == f"workload ({workload.__code__.co_filename}:{line})"


def test_arguments_that_a_function_does_not_accept_are_named() -> None:
    def step(number: int, *, fast: bool = False) -> None:
        """Takes a number."""

    partial = functools.partial(step, 1)
    assert unfit(step, "number") is None
    assert unfit(step, "number", fast=True) is None
    assert unfit(partial) is None
    assert unfit(print, "anything") is None
    text = unfit(step, "number", slow=True)
    assert text is not None
    assert text.startswith("step (")
    assert text.endswith("is called as step(number, slow=True): got an unexpected keyword argument 'slow'")
