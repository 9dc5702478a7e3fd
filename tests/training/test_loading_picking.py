"""Which settings are picked for a machine and its data, and why."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.loader_settings import LoaderSettings
from pytest_ddpperf.training.loading import Fetch, choose, pick

Loader = DataLoader[Any]
NONE = LoaderSettings(workers=0, pin_memory=False)


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)), torch.zeros(count))


def global_draws() -> list[float]:
    """A number each from the global generators of Python and numpy, which users' datasets draw from."""
    return [random.random(), np.random.rand()]  # noqa: S311, NPY002


class Drawn(Dataset[tuple[torch.Tensor, float]]):
    """Augments its samples by all the random numbers there are."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _index: int) -> tuple[torch.Tensor, float]:
        return torch.tensor([torch.rand(1).item(), *global_draws()]), 0.0


def test_fast_batches_are_fetched_by_the_rank() -> None:
    """512 bytes are handed over in 1 ms, 19 MB in 20 ms: fetching has to take twice as long to be worth a worker."""
    many: dict[str, Any] = {"cores": 64, "ranks": 2, "threads": 1, "cuda": False}
    assert choose(Fetch(0.0005, 1.0, 512), **many) == (
        NONE,
        "a batch takes 500 us to fetch, and about 1.00 ms to be handed over by a worker",
    )
    assert choose(Fetch(0.039, 1.0, 19_000_000), **many)[0] == NONE
    assert choose(Fetch(0.041, 1.0, 19_000_000), **many)[0].workers == 8


@pytest.mark.parametrize(
    ("milliseconds", "busy", "cores", "ranks", "threads", "workers", "prefetch", "reason"),
    [
        # 8 cores // 2 ranks - 1 thread = 3 spare, and ceil(12 / 5) = 3 give a batch every 5 ms
        (12, 1.0, 8, 2, 1, 3, 2, "and with 8 cores for 2 ranks each has 3 to spare"),
        # the same batches: one of 16 cores would do for each 5 ms, so 3 of the 7 spare ones are taken
        (12, 1.0, 16, 2, 1, 3, 2, "and with 16 cores for 2 ranks each has 7 to spare"),
        # a single worker holds four batches ready
        (12, 1.0, 4, 2, 1, 1, 4, "and with 4 cores for 2 ranks each has 1 to spare"),
        # a rank that computes with three threads has none to spare of its four cores but one
        (90, 1.0, 4, 1, 3, 1, 4, "and with 4 cores for 1 rank each has 1 to spare"),
        # slow data take all that is spare, up to 8
        (900, 1.0, 6, 1, 1, 5, 2, "and with 6 cores for 1 rank each has 5 to spare"),
        (900, 1.0, 96, 2, 1, 8, 2, "and with 96 cores for 2 ranks each has 47 to spare"),
        # what waits for a disk needs no core: as many workers as give a batch every 5 ms, up to 8
        (90, 0.2, 2, 2, 1, 8, 2, "which is mostly waiting and needs no core of its own"),
    ],
)
def test_slow_batches_are_fetched_by_as_many_workers_as_there_is_room_for(
    *, milliseconds: int, busy: float, cores: int, ranks: int, threads: int, workers: int, prefetch: int, reason: str
) -> None:
    fetch = Fetch(milliseconds / 1000, busy, 1000)
    settings, why = choose(fetch, cores=cores, ranks=ranks, threads=threads, cuda=False)
    assert settings == LoaderSettings(
        workers=workers, pin_memory=False, prefetch_factor=prefetch, persistent_workers=True
    )
    assert why.endswith(reason)


def test_without_a_core_to_spare_the_rank_fetches_by_itself() -> None:
    assert choose(Fetch(0.09, 1.0, 1000), cores=2, ranks=2, threads=1, cuda=False) == (
        NONE,
        "a batch takes 90.0 ms to fetch, and with 2 cores for 2 ranks there is none to spare for it",
    )


def test_memory_is_pinned_for_a_gpu_and_by_workers_only() -> None:
    assert choose(Fetch(0.09, 1.0, 1000), cores=8, ranks=1, threads=1, cuda=True)[0].pin_memory is True
    assert choose(Fetch(0.0001, 1.0, 1000), cores=8, ranks=1, threads=1, cuda=True)[0].pin_memory is False


def test_data_that_are_read_as_a_stream_get_one_worker() -> None:
    assert choose(Fetch(0.09, 1.0, 1000), cores=8, ranks=1, threads=1, cuda=False, max_workers=1)[0].workers == 1


class Waiting(Dataset[tuple[torch.Tensor, float]]):
    """Each sample takes 10 ms, as from a slow disk."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        time.sleep(0.01)
        return torch.tensor(float(index)), 0.0


def test_what_is_cheap_and_what_is_slow_is_found_by_fetching(make_ctx: Any) -> None:
    ctx = make_ctx()
    cheap, why = pick(ctx, DataLoader(numbers(400), batch_size=4))
    assert cheap == NONE
    assert why.startswith("data loading, picked by loader=auto: workers=0,pin_memory=false (a batch takes ")
    slow, why = pick(ctx, DataLoader(Waiting(), batch_size=4))
    assert slow.workers
    assert slow.persistent_workers
    assert f"picked by loader=auto: {slow} (a batch takes " in why


class Computed(Waiting):
    """Each sample takes 5 ms on a core."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        end = time.process_time() + 0.005
        while time.process_time() < end:
            math.sqrt(index)
        return torch.tensor(float(index)), 0.0


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not tell who waits")
def test_waiting_is_told_from_computing_on_a_busy_machine_too(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpperf.training.loading.usable_cores", lambda of: 1)
    assert pick(make_ctx(), DataLoader(Waiting()))[0].workers
    computed, why = pick(make_ctx(), DataLoader(Computed()))
    assert computed == NONE
    assert why.endswith("to fetch, and with 1 core for 1 rank there is none to spare for it)")


def test_a_pick_leaves_random_numbers_as_they_were(make_ctx: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    loader: Loader = DataLoader(Drawn(), batch_size=2, shuffle=True, generator=generator)

    def drawn() -> list[float]:
        return [torch.rand(1, generator=generator).item(), torch.rand(1).item(), *global_draws()]

    def seeded() -> None:
        generator.manual_seed(1)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002

    seeded()
    expected = drawn()
    seeded()
    pick(make_ctx(), loader)
    assert drawn() == expected


def test_an_empty_loader_is_picked_for_too(make_ctx: Any) -> None:
    assert pick(make_ctx(), DataLoader(numbers(3), batch_size=4, drop_last=True))[0] == NONE


def test_all_ranks_load_as_rank_0_picks(launcher: Launcher) -> None:
    """Rank 1 would pick otherwise: its data are cheap."""

    def picked(ctx: RankContext) -> tuple[str, str]:
        data = Waiting() if ctx.rank == 0 else numbers(40)
        settings, why = pick(ctx, DataLoader(data, batch_size=4))
        return str(settings), why

    first, second = launcher.run(picked, world_size=2, backend="gloo", device="cpu").values
    assert first == second
    assert not first[0].startswith("workers=0")
