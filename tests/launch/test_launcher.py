"""Good launches: what ranks get, and what comes back."""

from __future__ import annotations

import itertools
import os
import random
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.errors import LaunchError, PayloadError, SettingError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.processes import open_files
from tests.factories import run_on_cpu

run = partial(run_on_cpu, world_size=1)


def addresses() -> list[str]:
    """The addresses that this process listens at, as the kernel writes them."""
    inodes = {*open_files().values()}
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def look(ctx: RankContext, factor: int) -> tuple[list[int], dict[str, object], list[str]]:
    import numpy as np
    import torch
    import torch.distributed as dist

    assert isinstance(ctx, RankContext)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    place = (ctx.rank, ctx.local_rank, ctx.world_size, ctx.local_world_size)
    assert place == tuple(int(os.environ[name]) for name in names)
    every = [torch.zeros(1, dtype=torch.int64) for _ in range(ctx.world_size)]
    dist.all_gather(every, torch.tensor([ctx.rank * factor]))
    print("done")
    found: dict[str, object] = {
        "group": (str(ctx.device), ctx.backend, ctx.mode),
        "accelerate": os.environ.get("ACCELERATE_USE_CPU"),
        "drawn": (random.random(), float(np.random.rand()), torch.rand(1).item()),  # noqa: NPY002, S311
    }
    return [int(part) for part in every], found, addresses()


def test_ranks_make_a_group_draw_the_same_numbers_and_listen_on_loopback_only(launcher: Launcher) -> None:
    result = launcher.run(look, 10, world_size=2, device="cpu", mode="weak")
    gathered, (first, second), (listening, others) = zip(*result.values, strict=True)
    assert gathered == ([0, 10],) * 2
    assert result.sections == (("ranks 0, 1 stdout", "done\n"),)
    assert 0 < result.seconds < 20
    assert first == second
    assert first["group"] == ("cpu", "gloo", "weak")
    assert first["accelerate"] == "true", "several ranks on the CPU are joined by Accelerate"
    assert len(listening) >= 1  # the store, at least
    # 127.0.0.1 and ::1 as the kernel writes them: 32-bit words in the machine's byte order; and 127.0.0.1 within IPv6.
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert {*listening, *others} <= loopback
    _, alone, _ = run(launcher, look, 1).rank(0)
    assert alone == {**first, "group": ("cpu", "gloo", None), "accelerate": None}


def test_the_controllers_environment_folder_and_path_reach_the_ranks(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "only_found_by_path.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FRESHLY_SET", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # settled when torch was imported: too late to change
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "outer")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")

    def read(_ctx: RankContext) -> tuple[object, ...]:
        import only_found_by_path  # type: ignore[import-not-found]
        import torch

        names = ("FRESHLY_SET", "ACCELERATE_USE_CPU", "HOME", "OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE")
        threads = torch.get_num_threads()
        return (str(Path.cwd()), only_found_by_path.ANSWER, *map(os.environ.get, names), threads)

    assert run(launcher, read, world_size=2).rank(1) == (str(tmp_path), 42, "yes", "false", None, "1", None, 1)


@pytest.mark.slow
def test_a_variable_that_torch_reads_when_it_is_loaded_holds_for_the_next_launch(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dynamo(_ctx: RankContext) -> tuple[bool, int]:
        import torch._dynamo

        return torch._dynamo.config.verbose, os.getppid()

    with Launcher(like=launcher) as copied:
        before, first = run(copied, dynamo).rank(0)
        assert run(copied, dynamo).rank(0) == (before, first)
        monkeypatch.setenv("TORCHDYNAMO_VERBOSE", str(int(not before)))
        after, second = run(copied, dynamo).rank(0)
        assert (after, second == first) == (not before, False)
        assert launcher.pid != second  # which has its own torch, and is left to its launches


def test_a_result_that_cannot_be_sent_is_named(launcher: Launcher) -> None:
    told = (
        "^the dict returned by rank 0 cannot be sent back: key 'step' is a _thread.lock: cannot .*; return plain data$"
    )
    with pytest.raises(PayloadError, match=told):
        run(launcher, lambda _ctx: {"step": threading.Lock()})


def test_a_function_that_a_rank_cannot_load_is_named(launcher: Launcher, tmp_path: Path) -> None:
    class Loaded:
        def __reduce__(self) -> tuple[Any, ...]:
            return __import__, (f"missing_{tmp_path.name}",)

    told = "rank 0 cannot load the function: ModuleNotFoundError: No module named 'missing_.*'; ranks import modules"
    with pytest.raises(PayloadError, match=told):
        run(launcher, lambda _ctx, _loaded: None, Loaded())


def test_any_thread_may_launch_and_a_large_result_comes_back_whole(launcher: Launcher) -> None:
    with ThreadPoolExecutor(2) as pool:
        values = pool.map(lambda size: run(launcher, lambda _ctx: bytes(size)).rank(0), (5, 20 << 20))
        assert [*values] == [bytes(5), bytes(20 << 20)]


def test_torch_that_cannot_be_imported_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libfoo.so is missing')\n")
    with pytest.MonkeyPatch.context() as patch, Launcher() as launcher:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        with pytest.raises(LaunchError, match=r"cannot import torch or a preloaded module: OSError: libfoo\.so is"):
            run(launcher, print)


@pytest.mark.parametrize("timeout", [0, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number_of_seconds(timeout: float) -> None:
    with pytest.raises(SettingError, match=rf"timeout={timeout}: expected a number"):
        Launcher().run(print, world_size=1, timeout=timeout)


def test_too_many_ranks_for_the_limit_of_open_files_are_refused_and_leave_none_open(launcher: Launcher) -> None:
    """Whichever file of a launch is the one too many: its failure is one sentence, and it leaves no file open."""
    launcher.wait()
    open_now, failed = open_files(), 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in itertools.count():
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_now) + more, hard))
        try:
            run(launcher, print, world_size=2)
        except LaunchError as error:
            assert "may not open enough files for 2 ranks" in str(error)  # noqa: PT017
            failed += 1
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed > 5
    assert open_files() == open_now


def imported(_ctx: RankContext, name: str) -> bool:
    return name in sys.modules


def test_modules_that_a_launch_preloads_are_imported_in_its_ranks_and_in_later_ones(launcher: Launcher) -> None:
    """A module that cannot be imported is for the code to complain of that needs it."""
    name = "xml.dom.pulldom"
    assert run(launcher, imported, name).values == (False,)
    preload = ("no_such_module", name)
    assert run(launcher, imported, name, timeout=60, preload=preload).values == (True,)
    assert run(launcher, imported, name).values == (True,)


def test_output_of_ranks_is_forwarded_while_they_run(launcher: Launcher, tmp_path: Path) -> None:
    heard: list[tuple[int, str]] = []
    seen = tmp_path / "seen"

    def echo(rank: int, lines: list[str]) -> None:
        heard.extend((rank, line) for line in lines)
        if (1, "and waits") in heard:
            seen.touch()

    def prints(ctx: RankContext) -> str:
        print(f"rank {ctx.rank} begins", file=sys.stderr)
        if ctx.rank == 1:
            print("and waits")
            while not seen.exists():  # until the line has been told, or the deadline of the launch
                os.sched_yield()
        print("no end of line", end="")
        return "done"

    with Launcher(echo=echo, like=launcher) as echoing:
        assert run(echoing, prints, world_size=2).values == ("done", "done")
    assert {(0, "rank 0 begins"), (1, "rank 1 begins"), (0, "no end of line"), (1, "no end of line")} <= set(heard)
