"""The batches of a rank: timed on demand, loaded as the settings say, and nothing left behind."""

from __future__ import annotations

import multiprocessing
from collections import UserDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.records.loader_settings import LoaderSettings
from pytest_ddpperf.training.data import batches, contradicting_size, with_settings
from tests.training.workloads import workload


def eight() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(8.0), torch.zeros(8)


@pytest.mark.parametrize("form", [dict, UserDict])
def test_a_batch_for_forward_may_have_any_form(make_ctx: Any, form: Any) -> None:
    """In strong mode each rank has its slice of every tensor in it."""
    forward: Any = {"loss": None, "forward": lambda model, batch: model(batch["x"]).mean()}
    given = workload(batch=lambda: form(x=torch.arange(8.0), names="kept"), **forward)
    whole, targets = batches(make_ctx(), given)()
    assert targets == ()
    assert whole["x"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    share, _ = batches(make_ctx(rank=1, world_size=2, mode="strong"), given)()
    assert (share["x"].tolist(), share["names"]) == ([4, 5, 6, 7], "kept")
    assert batches(make_ctx(), given).size == 8


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: load(0, 1), "returned a value of type DataLoader as a batch: return .* for many batches give"),
        (lambda: iter([eight()]), "returned a value of type list_iterator as a batch"),
        (lambda: None, "returned None as a batch"),
        (lambda: (torch.ones(0, 2), torch.ones(0)), "gave a batch of 0 samples .*: give at least one"),
        (
            lambda: (torch.ones(2, device="meta"), 0),
            "gave a tensor on the meta device, which has no values: make batches",
        ),
    ],
)
def test_a_value_that_is_no_batch_is_refused(make_ctx: Any, batch: Any, message: str) -> None:
    for changes in ({}, {"loss": None, "forward": lambda _, given: given[0]}):
        with pytest.raises(WorkloadError, match=message):
            batches(make_ctx(), workload(batch=batch, **changes))
    if batch() is not None:
        with pytest.raises(WorkloadError, match=message):
            batches(make_ctx(), workload(loader=lambda _rank, _world_size: [batch()]))


@pytest.mark.parametrize(
    ("shapes", "samples", "size"),
    [
        ([(32, 8), (32,)], 16, 32),
        ([(32, 8), (32,), ()], 32, None),
        ([(128, 16), (128, 16)], 16, None),  # samples along the second dimension
        ([(1, 4096)], 8, None),  # packed into one row
        ([(32, 8), (7,)], 16, None),
        ([], 16, None),
    ],
)
def test_a_batch_size_that_contradicts_the_samples_is_found(shapes: Any, samples: float, size: int | None) -> None:
    assert contradicting_size(shapes, samples) == size


def load(_rank: int, _world_size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*eight()), batch_size=4, shuffle=True)


def test_a_batch_is_made_once_and_needs_no_loading(make_ctx: Any) -> None:
    made = batches(make_ctx(), workload(batch=eight))
    assert made()[0] is made()[0]
    assert not made.loads
    made.close()


@pytest.mark.parametrize("pinned", [True, False])
def test_pinned_memory_is_recognised_by_the_first_batch(
    make_ctx: Any, monkeypatch: pytest.MonkeyPatch, *, pinned: bool
) -> None:
    """Which takes a while to find out. Nothing waits for the way of pinned memory to the device."""
    asked, moved = list[torch.Tensor](), list[bool]()

    def is_pinned(tensor: torch.Tensor) -> bool:
        asked.append(tensor)
        return pinned

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        assert device.type == "cuda"
        moved.append(non_blocking)
        return tensor

    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    monkeypatch.setattr(torch.Tensor, "to", to)
    on_gpu = replace(make_ctx(), device=torch.device("cuda", 0))
    given = batches(on_gpu, workload(loader=lambda _rank, _size: [eight(), eight()]))
    for _ in range(3):
        given()
    assert (len(asked), moved) == (2 if pinned else 1, [pinned] * 6)


def test_the_number_of_batches_is_known_of_a_loader_with_a_length(make_ctx: Any) -> None:
    """Eight samples in batches of four; neither a generator nor a single batch has an end that is known."""
    assert batches(make_ctx(), workload(loader=load)).length == 2

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            while True:
                yield torch.ones(1), torch.ones(1)

    stream = batches(make_ctx(), workload(loader=lambda _rank, _size: DataLoader(Endless(), batch_size=4)))
    assert (stream.length, batches(make_ctx(), workload(batch=eight)).length) == (None, None)


def test_settings_for_a_workload_without_a_loader_are_refused(make_ctx: Any) -> None:
    message = r"^loader=workers=2: this Workload uses one batch of eight \(.*test_data.py:\d+\) in all steps, .* give"
    message += r" Workload\(loader=...\) in place of batch=..., or remove the setting loader$"
    with pytest.raises(SettingError, match=message):
        batches(make_ctx(), workload(batch=eight), LoaderSettings(workers=2))


@pytest.mark.parametrize("settings", [LoaderSettings(workers=2), LoaderSettings(workers=2, persistent_workers=True)])
def test_batches_go_on_over_epochs_and_the_workers_end(make_ctx: Any, settings: LoaderSettings) -> None:
    torch.manual_seed(1)
    alone = batches(make_ctx(), workload(loader=load), LoaderSettings(workers=0))
    expected = [alone()[0].tolist() for _ in range(6)]
    alone.close()
    given = batches(make_ctx(), workload(loader=load), settings)
    assert [given()[0].tolist() for _ in range(5)] == expected[:5]
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    assert given()[0].tolist() == expected[5]
    given.close()
    assert not any(worker.is_alive() for worker in workers)


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(float(index)), torch.tensor(float(index * index))


@pytest.mark.parametrize("wrapped", [True, False])
def test_set_epoch_is_called_on_a_sampler_wherever_it_is(make_ctx: Any, *, wrapped: bool) -> None:
    def loader(rank: int, world_size: int) -> Iterable[Any]:
        sampler: Any = DistributedSampler(Squares(), world_size, rank)
        if wrapped:
            return DataLoader(Squares(), batch_sampler=BatchSampler(sampler, 3, drop_last=False))
        return DataLoader(Squares(), batch_size=3, sampler=sampler)

    given = batches(make_ctx(1, 2), workload(loader=loader), LoaderSettings(workers=1, persistent_workers=True))
    seen = [given()[0].tolist() for _ in range(4)]
    given.close()
    sampler: Any = DistributedSampler(Squares(), 2, 1)
    for epoch, drawn in enumerate((seen[0] + seen[1], seen[2] + seen[3])):
        sampler.set_epoch(epoch)
        assert drawn == [float(index) for index in sampler]


def test_the_picked_settings_are_put_in_place(make_ctx: Any) -> None:
    loader, picked = with_settings(
        make_ctx(), DataLoader(TensorDataset(*eight())), LoaderSettings(auto=True, sampler="rank"), "load"
    )
    assert picked is not None
    assert picked[0] == "workers=0,pin_memory=false,sampler=rank"
    assert isinstance(loader.sampler, DistributedSampler)
    loader, picked = with_settings(make_ctx(), DataLoader(TensorDataset(*eight())), LoaderSettings(workers=2), "load")
    assert (loader.num_workers, picked) == (2, None)
    told = batches(make_ctx(), workload(loader=load), LoaderSettings(auto=True)).picked
    assert told is not None
    assert told[1].startswith("data loading, picked by loader=auto: workers=0,pin_memory=false (")


def test_in_strong_mode_every_rank_reads_all_data(make_ctx: Any) -> None:
    asked = []

    def loader(rank: int, world_size: int) -> Any:
        asked.append((rank, world_size))
        return [eight()]

    assert batches(make_ctx(1, 2, "strong"), workload(loader=loader))()[0].tolist() == [4, 5, 6, 7]
    batches(make_ctx(1, 2), workload(loader=loader))
    assert asked == [(0, 1), (1, 2)]
    for mode, share in (("strong", (0, 1)), (None, (1, 2))):
        made, _ = with_settings(
            make_ctx(1, 2, mode), DataLoader(TensorDataset(*eight())), LoaderSettings(sampler="rank"), "load"
        )
        assert isinstance(made.sampler, DistributedSampler)
        assert (made.sampler.rank, made.sampler.num_replicas) == share
