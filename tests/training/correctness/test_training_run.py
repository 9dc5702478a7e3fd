"""Names, copies, state that is written over, and micro-batches, which both sides of a comparison have in common."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.records.loader_settings import loader_settings
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.replicas import whole
from pytest_ddpperf.training.correctness import training_run
from pytest_ddpperf.training.correctness.training_run import MicroBatches, own_batches
from tests.training.workloads import workload


@pytest.mark.parametrize(
    ("known", "found", "expected"),
    [
        (["a", "b"], ["a", "b"], ["a", "b"]),
        (["a", "b"], ["module.a", "module.b"], ["a", "b"]),
        (["a", "b"], ["module.module._orig_mod.a", "module.module._orig_mod.b"], ["a", "b"]),
        (["module.weight"], ["module.weight"], ["module.weight"]),  # a part of the model
        (["module.weight"], ["module.module.weight"], ["module.weight"]),
        (["c"], ["module.a", "b"], ["module.a", "b"]),  # strangers
        (["c"], ["module.a"], ["a"]),
        (["c"], [], []),
    ],
)
def test_names_lose_the_prefixes_of_wrappers(known: list[str], found: list[str], expected: list[str]) -> None:
    assert [*training_run.unwrapped(dict.fromkeys(found, 1), known)] == expected


def test_a_tied_weight_goes_by_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert training_run.first_names(model) == {"0.weight": "0.weight", "1.weight": "0.weight"}


def test_state_is_written_over_but_for_expanded_constants() -> None:
    constant = torch.zeros(1).expand(3)
    parameter = nn.Parameter(torch.zeros(1, 2))
    training_run.fill([constant, parameter], [torch.ones(3), torch.ones(1, 2)])
    assert constant.tolist() == [0, 0, 0]
    assert parameter.tolist() == [[1, 1]]


def test_copied_tensors_are_dense_and_independent() -> None:
    dense = torch.tensor([[0.0, 2.0]])
    copy = whole(dense)
    dense.zero_()
    assert copy.tolist() == [[0, 2]]
    assert whole(torch.tensor([[0.0, 2.0]]).to_sparse()).tolist() == [[0, 2]]


def test_settings_that_count_steps_are_omitted_in_fp16_only() -> None:
    given = Settings(clip_steps=1, lr_warmup_steps=5)
    assert training_run.without_step_counts(given) is given
    fp16 = training_run.without_step_counts(Settings(clip_steps=1, lr_warmup_steps=5, precision="fp16"))
    assert (fp16.clip_steps, fp16.lr_warmup_steps) == (None, None)


CPU = torch.device("cpu")


def eight() -> tuple[Tensor, Tensor]:
    return torch.rand(8), torch.rand(8)


def pair(value: float) -> tuple[Tensor, Tensor]:
    return torch.tensor([value]), torch.tensor([-value])


# Two ranks, two micro-batches in a step, two steps.
DATA = MicroBatches([[pair(value) for value in shard] for shard in ((1, 2, 3, 4), (10, 20, 30, 40))], in_step=2)


def test_each_rank_has_different_micro_batches_in_a_step() -> None:
    seen = []
    for rank in range(2):
        feed = DATA.feed(DATA.places(rank), 1, CPU)
        for _ in range(2):
            inputs, (targets, _) = feed()
            assert targets == -inputs
            seen.append(inputs.item())
    assert seen == [3, 4, 30, 40]


def test_a_micro_batch_meets_the_same_random_numbers_on_both_sides() -> None:
    def drawn(places: list[tuple[int, int]], step: int) -> list[float]:
        feed = DATA.feed(places, step, CPU)
        numbers = []
        for _ in places:
            feed()
            numbers.append(torch.rand(1).item())
            torch.rand(3)  # whatever else is drawn does not matter
        return numbers

    together = [drawn(DATA.places(0) + DATA.places(1), step) for step in (0, 1)]
    apart = [drawn(DATA.places(0), step) + drawn(DATA.places(1), step) for step in (0, 1)]
    assert together == apart
    assert len(set(together[0] + together[1])) == 8


def test_weights_of_micro_batches_differ_and_have_a_mean_of_one() -> None:
    weights = [DATA.weight(place) for rank in range(2) for place in DATA.places(rank)]
    assert weights == pytest.approx([0.5, 5 / 6, 7 / 6, 1.5])
    assert MicroBatches([[pair(1)]], in_step=1).weight((0, 0)) == 1.0


def test_batches_are_cut_down_to_a_few_samples_that_hold_nothing_else() -> None:
    whole = {"text": torch.arange(20.0).view(10, 2)}, torch.arange(10)
    inputs, targets = training_run.cut_down(whole)
    assert torch.equal(inputs["text"], whole[0]["text"][: training_run.MAX_SAMPLES])
    assert targets.tolist() == [0, 1, 2, 3]
    assert targets.untyped_storage().nbytes() == 4 * 8


@pytest.mark.parametrize(
    "kept",
    [
        (torch.ones(6, 2), torch.ones(5)),  # of other lengths: which dimension the samples are along, nobody knows
        (torch.ones(6), torch.tensor(1.0)),
        (torch.ones(6), ["a", "b", "c", "d", "e", "f"]),  # the words would stay behind
        (torch.ones(2), torch.ones(2)),  # few already
    ],
)
def test_a_batch_that_cannot_be_cut_is_taken_whole(kept: tuple[Any, Any]) -> None:
    inputs, targets = training_run.cut_down(kept)
    assert torch.equal(inputs, kept[0])
    assert inputs.data_ptr() != kept[0].data_ptr()
    assert len(targets) == len(kept[1]) if isinstance(kept[1], list) else torch.equal(targets, kept[1])


def test_a_rank_has_the_batches_of_its_timed_steps(make_ctx: Any) -> None:
    def loader(rank: int, world_size: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.full((8,), float(rank)), torch.rand(8)), (torch.full((8,), rank + 0.5), torch.rand(8))]

    found = own_batches(make_ctx(1, 2), workload(loader=loader), 3)
    assert [inputs.tolist() for inputs, _ in found] == [[1.0] * 4, [1.5] * 4, [1.0] * 4]
    ranks = [own_batches(make_ctx(rank, 2), workload(batch=eight), 1)[0][0] for rank in (0, 1, 1)]
    assert not torch.equal(ranks[0], ranks[1])
    assert torch.equal(ranks[1], ranks[2])


def test_in_strong_mode_a_rank_has_its_share_of_the_same_batch(make_ctx: Any) -> None:
    shares = [own_batches(make_ctx(rank, 2, "strong"), workload(batch=eight), 1)[0][0] for rank in (0, 1)]
    torch.manual_seed(1)
    assert torch.equal(torch.cat(shares), torch.rand(8))


def numbers(_rank: int, _world_size: int) -> DataLoader[Any]:
    """The same for every rank."""
    return DataLoader(TensorDataset(torch.arange(16.0), torch.arange(16.0)), batch_size=2)


@pytest.mark.parametrize("given", ["sampler=rank", "sampler=rank,workers=2,prefetch_factor=4,persistent_workers=true"])
def test_the_loaders_settings_decide_which_samples_a_rank_has(make_ctx: Any, given: str) -> None:
    """Shared out without shuffling, every second sample: 0, 2, 4 ... and 1, 3, 5 ..."""
    found = [own_batches(make_ctx(rank, 2), workload(loader=numbers), 2, loader_settings(given)) for rank in (0, 1)]
    assert [[inputs.tolist() for inputs, _ in shard] for shard in found] == [
        [[0.0, 2.0], [4.0, 6.0]],
        [[1.0, 3.0], [5.0, 7.0]],
    ]


@pytest.mark.parametrize("given", ["workers=2", "auto", None])
def test_settings_that_are_only_of_speed_change_nothing(make_ctx: Any, given: str | None) -> None:
    settings = None if given is None else loader_settings(given)
    found = own_batches(make_ctx(1, 2), workload(loader=numbers), 1, settings)
    assert found[0][0].tolist() == [0.0, 1.0]
    assert not multiprocessing.active_children()


def test_one_batch_for_all_steps_has_no_loader_to_be_set(make_ctx: Any) -> None:
    assert len(own_batches(make_ctx(), workload(), 1, loader_settings("workers=2"))) == 1
