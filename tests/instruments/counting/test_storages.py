"""The memory behind tensors of several kinds, in bytes."""

from __future__ import annotations

import torch

from pytest_ddpperf.instruments.counting.storages import bytes_of, storages_of


def test_views_are_of_one_storage_and_count_once() -> None:
    tensor = torch.ones(10)
    assert bytes_of([tensor[:2], tensor.view(5, 2), tensor], known=set()) == 40


def test_what_is_known_already_does_not_count() -> None:
    tensor, known = torch.ones(10), set[int]()
    assert bytes_of([tensor], known) == 40
    assert bytes_of([tensor, torch.ones(1)], known) == 4


def test_a_sparse_tensor_has_the_storages_of_its_parts() -> None:
    """Two places of two dimensions, 4 indices of 8 bytes, and two values."""
    sparse = torch.ones(2).diag().to_sparse()
    assert sorted(storage.nbytes() for storage in storages_of(sparse)) == [8, 32]
