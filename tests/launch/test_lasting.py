"""Ranks that live on from call to call: what they keep, what is put back, what is told, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import PayloadError, RankFailed, RanksTimedOut, SettingError
from pytest_ddpperf.launch.lasting import LastingRanks
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.renewal import MEMORY_LIMIT, RankState, drift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_ddpperf.launch.context import RankContext


@pytest.fixture
def ranks(shared_launcher: Launcher) -> Iterator[LastingRanks]:
    ranks = LastingRanks(Launcher(like=shared_launcher))
    yield ranks
    ranks.close()


def run(ranks: LastingRanks, function: Any, *args: object, world_size: int = 2, timeout: float = 20) -> Any:
    return ranks.run(function, *args, world_size=world_size, device="cpu", backend="gloo", timeout=timeout)


def pid_of(_ctx: object) -> int:
    return os.getpid()


def total(_ctx: object) -> float:
    import torch
    import torch.distributed as dist

    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()


def test_ranks_live_on_and_their_group_with_them(ranks: LastingRanks) -> None:
    first = run(ranks, pid_of).values
    assert run(ranks, total).values == run(ranks, total).values == (2.0, 2.0)
    assert run(ranks, pid_of).values == first
    assert ranks.left == []


def test_a_call_reports_what_it_prints_and_nothing_of_an_earlier_one(ranks: LastingRanks) -> None:
    def says(ctx: RankContext, text: str) -> None:
        print(text, ctx.rank)

    assert run(ranks, says, "first word").sections == (
        ("rank 0 stdout", "first word 0\n"),
        ("rank 1 stdout", "first word 1\n"),
    )
    assert run(ranks, says, "second").sections == (("rank 0 stdout", "second 0\n"), ("rank 1 stdout", "second 1\n"))


def test_what_a_call_changes_is_told_and_put_back(ranks: LastingRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes(ctx: RankContext) -> None:
        import torch
        import torch.distributed as dist

        os.environ["OF_A_TEST"] = "1"
        os.chdir("/")
        torch.set_grad_enabled(False)
        dist.new_group([0, 1])
        if ctx.rank == 1:
            torch.set_default_dtype(torch.float64)
            threading.Thread(target=threading.Event().wait, name="waits", daemon=True).start()

    def state(_ctx: object) -> tuple[object, ...]:
        import torch
        from torch.distributed import distributed_c10d

        groups = len(distributed_c10d._world.pg_map)
        set_by_test = os.environ.get("OF_A_TEST"), os.environ.get("OF_SESSION")
        return (*set_by_test, str(Path.cwd()), torch.is_grad_enabled(), str(torch.get_default_dtype()), groups)

    before, random = run(ranks, state).values, run(ranks, drawn).values
    run(ranks, changes)
    assert ranks.left == [
        "ranks 0, 1: environment OF_A_TEST",
        "ranks 0, 1: grad mode False",
        "ranks 0, 1: current folder /",
        "ranks 0, 1: 1 process group left open",
        "rank 1: default dtype torch.float64",
        "rank 1: running thread waits",
    ]
    assert run(ranks, state).values == before
    assert run(ranks, drawn).values == random
    assert ranks.left == []
    monkeypatch.setenv("OF_SESSION", "2")
    assert [value[:2] for value in run(ranks, state).values] == [(None, "2")] * 2


def drawn(_ctx: object) -> float:
    import torch

    return torch.rand(1).item()


def test_ranks_that_called_different_numbers_of_collectives_serve_no_further_call(ranks: LastingRanks) -> None:
    def odd(ctx: RankContext) -> int:
        import torch
        import torch.distributed as dist

        if ctx.rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)
        return os.getpid()

    first = run(ranks, odd).values
    assert ranks.left == [
        "a collective that not all have called (rank 0: 1, rank 1: 0 so far): the next call has new ranks"
    ]
    assert not {*run(ranks, pid_of).values} & {*first}
    assert run(ranks, total).values == (2.0, 2.0)


def test_ranks_without_their_group_serve_no_further_call(ranks: LastingRanks) -> None:
    def leaves(_ctx: object) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()

    run(ranks, leaves)
    assert ranks.left == ["ranks 0, 1: no default process group"]
    assert run(ranks, total).values == (2.0, 2.0)


def test_a_failure_ends_the_ranks_and_the_next_call_has_new_ones(
    ranks: LastingRanks, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    def fails(ctx: RankContext) -> None:
        if ctx.rank == 1:
            raise ValueError("boom")
        total(ctx)

    first = run(ranks, pid_of).values
    with pytest.raises(RankFailed, match=r"^rank 1 of 2 raised ValueError: boom"):
        run(ranks, fails)
    assert all_gone(first)
    assert run(ranks, total).values == (2.0, 2.0)


def test_a_deadline_ends_the_ranks_and_names_the_late_one(ranks: LastingRanks) -> None:
    def hangs(ctx: RankContext) -> None:
        if ctx.rank == 1:
            threading.Event().wait()
        total(ctx)

    run(ranks, pid_of)
    with pytest.raises(RanksTimedOut) as caught:
        run(ranks, hangs, timeout=2)
    assert caught.value.rank == 1
    assert not ranks.alive
    assert run(ranks, total).values == (2.0, 2.0)


def test_a_rank_that_dies_between_calls_costs_none_of_them(ranks: LastingRanks) -> None:
    first = run(ranks, pid_of).values
    os.kill(first[1], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{first[1]}").exists() and time.monotonic() < deadline:  # its files are closed by then
        time.sleep(0.01)
    assert run(ranks, total).values == (2.0, 2.0)
    assert ranks.left == ["rank 1 had ended since the call before: this one has new ranks"]


@pytest.mark.parametrize("other", [{"world_size": 1}, {"timeout": 60}])
def test_a_call_that_asks_for_others_has_new_ranks(ranks: LastingRanks, other: dict[str, Any]) -> None:
    first = run(ranks, pid_of).values
    assert not {*run(ranks, pid_of, **other).values} & {*first}
    assert ranks.left == []


def test_variables_that_ranks_read_at_their_start_make_new_ranks(
    ranks: LastingRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(ranks, pid_of).values
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert not {*run(ranks, pid_of).values} & {*first}


def test_a_result_that_cannot_be_sent_ends_nothing_but_its_call(ranks: LastingRanks) -> None:
    with pytest.raises(PayloadError, match="returned by rank"):
        run(ranks, lambda _ctx: threading.Lock())
    assert run(ranks, total).values == (2.0, 2.0)


def test_closing_leaves_no_process(ranks: LastingRanks, all_gone: Callable[[Iterable[int]], bool]) -> None:
    first = run(ranks, pid_of).values
    ranks.close()
    assert all_gone(first)
    assert not ranks.alive


def test_ranks_of_several_nodes_do_not_last(shared_launcher: Launcher) -> None:
    class Nodes:
        interface = "lo"

        def counts(self, world_size: int, _gpus: int) -> tuple[int, ...]:
            return (world_size // 2,) * 2

        def close(self) -> None: ...

    ranks = LastingRanks(Launcher(like=shared_launcher, nodes=Nodes()))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="these 4 are on 2: set group=test"):
        run(ranks, pid_of, world_size=4)


def test_growth_counts_from_a_level_and_above_a_limit() -> None:
    def grown(size: int) -> tuple[str, ...]:
        before, after = (RankState(memory={"host memory": number}) for number in (1000, size))
        return drift(before, after, {"host memory": 100})

    assert grown(100 + MEMORY_LIMIT) == ()
    assert grown(101 + 2 * MEMORY_LIMIT) == ("1.00 GiB more of host memory",)
