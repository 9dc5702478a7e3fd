"""Good launches: what ranks get, and what comes back."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.errors import LaunchError, PayloadError, SettingError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher


def run(launcher: Launcher, function: Any, *args: object, world_size: int = 1) -> LaunchResult[Any]:
    return launcher.run(function, *args, world_size=world_size, device="cpu", backend="gloo", timeout=20)


@pytest.mark.parametrize("world_size", [1, 4])
def test_every_rank_takes_part_and_answers_in_order(launcher: Launcher, world_size: int) -> None:
    def gather(ctx: RankContext, factor: int) -> list[int]:
        import torch
        import torch.distributed as dist

        mine = torch.tensor([ctx.rank * factor])
        every = [torch.zeros_like(mine) for _ in range(ctx.world_size)]
        dist.all_gather(every, mine)
        print("done")
        return [int(part) for part in every]

    result = launcher.run(gather, 10, world_size=world_size)
    assert result.values == ([10 * rank for rank in range(world_size)],) * world_size
    assert [output.stdout for output in result.outputs] == ["done\n"] * world_size
    who = {1: "rank 0", 4: "ranks 0, 1, 2, 3"}[world_size]
    assert result.sections == ((f"{who} stdout", "done\n"),)
    assert 0 < result.seconds < 20


def test_a_rank_knows_where_it_stands(launcher: Launcher) -> None:
    def stand(ctx: RankContext) -> tuple[object, ...]:
        assert isinstance(ctx, RankContext)
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        place = (ctx.rank, ctx.local_rank, ctx.world_size, ctx.local_world_size)
        assert place == tuple(int(os.environ[name]) for name in names)
        return (ctx.rank, str(ctx.device), ctx.backend, ctx.mode)

    result = launcher.run(stand, world_size=2, device="cpu", mode="weak")
    assert result.values == ((0, "cpu", "gloo", "weak"), (1, "cpu", "gloo", "weak"))


def test_several_ranks_on_the_cpu_are_joined_by_accelerate_unless_the_user_decides(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(_: RankContext) -> str | None:
        return os.environ.get("ACCELERATE_USE_CPU")

    assert launcher.run(told, world_size=2, device="cpu").values == ("true", "true")
    assert launcher.run(told, world_size=1, device="cpu").values == (None,)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    assert launcher.run(told, world_size=2, device="cpu").values == ("false", "false")


def test_ranks_draw_the_same_random_numbers(launcher: Launcher) -> None:
    def draw(_ctx: RankContext) -> tuple[float, ...]:
        import numpy as np
        import torch

        return random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002, S311

    first, second = run(launcher, draw, world_size=2).values
    assert first == second == run(launcher, draw).rank(0)


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

    def look(_ctx: RankContext) -> tuple[object, ...]:
        import only_found_by_path  # type: ignore[import-not-found]
        import torch

        names = ("FRESHLY_SET", "HOME", "OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE")
        threads = torch.get_num_threads()
        return (str(Path.cwd()), only_found_by_path.ANSWER, *map(os.environ.get, names), threads)

    assert run(launcher, look).rank(0) == (str(tmp_path), 42, "yes", None, "1", None, 1)


@pytest.mark.slow
def test_a_variable_that_torch_reads_when_it_is_loaded_holds_for_the_next_launch(
    shared_launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dynamo(_ctx: RankContext) -> tuple[bool, int]:
        import torch._dynamo

        return torch._dynamo.config.verbose, os.getppid()

    with Launcher(like=shared_launcher) as launcher:
        before, first = run(launcher, dynamo).rank(0)
        assert run(launcher, dynamo).rank(0) == (before, first)
        monkeypatch.setenv("TORCHDYNAMO_VERBOSE", str(int(not before)))
        after, second = run(launcher, dynamo).rank(0)
        assert (after, second == first) == (not before, False)
        assert shared_launcher.pid != second  # which has its own torch, and is left to its launches


def test_ranks_listen_on_loopback_only(launcher: Launcher) -> None:
    def listening(_ctx: RankContext) -> list[str]:
        inodes = set()
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):  # the folder's own is closed by now
                inodes.add(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        addresses = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table) as lines:  # noqa: PTH123
                rows = [line.split() for line in lines.readlines()[1:]]
            addresses += [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
        return addresses

    result = run(launcher, listening, world_size=2)
    assert len(result.rank(0)) >= 1  # the store, at least
    # 127.0.0.1 and ::1 as the kernel writes them: 32-bit words in the machine's byte order; and 127.0.0.1 within IPv6.
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert {address for value in result.values for address in value} <= loopback


def test_a_large_result_comes_back_whole(launcher: Launcher) -> None:
    assert run(launcher, lambda _ctx, n: bytes(n), 20 << 20).rank(0) == bytes(20 << 20)


def test_a_result_that_cannot_be_sent_is_named(launcher: Launcher) -> None:
    with pytest.raises(
        PayloadError, match=r"lock returned by rank 0 cannot be sent back: cannot pickle '_thread.lock'"
    ):
        run(launcher, lambda _ctx: threading.Lock())


def test_a_function_that_a_rank_cannot_load_is_named(launcher: Launcher, tmp_path: Path) -> None:
    class Loaded:
        def __reduce__(self) -> tuple[Any, ...]:
            return __import__, (f"missing_{tmp_path.name}",)

    with pytest.raises(PayloadError, match=r"rank \d cannot load the function: ModuleNotFoundError: No module named"):
        run(launcher, lambda _ctx, _loaded: None, Loaded())


def test_any_thread_may_launch(launcher: Launcher) -> None:
    values: list[object] = []
    starts = [threading.Thread(target=lambda: values.append(run(launcher, lambda ctx: ctx.rank).rank(0))) for _ in "ab"]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert values == [0, 0]


def test_torch_that_cannot_be_imported_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libfoo.so is missing')\n")
    with pytest.MonkeyPatch.context() as patch, Launcher() as launcher:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        with pytest.raises(LaunchError, match=r"cannot import what they need: OSError: libfoo\.so is missing; check"):
            run(launcher, print)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number_of_seconds(timeout: float) -> None:
    with pytest.raises(SettingError, match=rf"timeout {timeout}: expected a number"):
        Launcher().run(print, world_size=1, timeout=timeout)


def test_more_ranks_than_files_may_be_opened(launcher: Launcher) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with pytest.raises(LaunchError, match="may not open enough files for 100 ranks"):
            run(launcher, print, world_size=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def imported(_ctx: RankContext, name: str) -> bool:
    return name in sys.modules


def test_what_a_launch_preloads_its_ranks_and_later_ones_find_imported(launcher: Launcher) -> None:
    """A module that cannot be imported is for the code to complain of that needs it."""
    name = "xml.dom.pulldom"
    assert run(launcher, imported, name, world_size=2).values == (False, False)
    preload = ("no_such_module", name)
    found = launcher.run(imported, name, world_size=2, backend="gloo", device="cpu", timeout=60, preload=preload)
    assert found.values == (True, True)
    assert run(launcher, imported, name, world_size=2).values == (True, True)


def test_what_ranks_print_is_told_while_they_run(launcher: Launcher, tmp_path: Path) -> None:
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
        assert echoing.run(prints, world_size=2, device="cpu", backend="gloo", timeout=20).values == ("done", "done")
    assert {(0, "rank 0 begins"), (1, "rank 1 begins"), (0, "no end of line"), (1, "no end of line")} <= set(heard)
