"""The live tensors by purpose."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from pytest_ddpperf.instruments.counting.storages import bytes_of
from pytest_ddpperf.instruments.counting.tensors import TensorTracker


def test_bytes_count_each_storage_once() -> None:
    """A sparse tensor has 4 indices of 8 bytes, at two places of two dimensions, and two values."""
    tensor, sparse, known = torch.ones(10), torch.ones(2).diag().to_sparse(), set[int]()
    assert bytes_of([tensor[:2], tensor.view(5, 2), tensor, sparse], known) == 40 + 32 + 8
    assert bytes_of([tensor, torch.ones(1)], known) == 4


@pytest.fixture
def tracker() -> TensorTracker:
    tracker = TensorTracker("cpu")
    tracker.begin_step()
    return tracker


def live(tracker: TensorTracker) -> dict[str, int]:
    tracker.settle()
    return {category: nbytes for category, nbytes in tracker.live.items() if nbytes}


def peak(tracker: TensorTracker) -> dict[str, int]:
    return {category: nbytes for category, nbytes in tracker.peak().items() if nbytes}


def test_a_tensor_counts_until_its_last_view_dies(tracker: TensorTracker) -> None:
    tensor = torch.ones(10)
    view = tensor[2:4]
    for one in (tensor, view, tensor.view(5, 2)):
        tracker.see(one, "activations")
    assert live(tracker) == {"activations": 40}
    del tensor, one
    assert live(tracker) == {"activations": 40}
    del view
    assert live(tracker) == {}


def test_a_tensor_that_only_autograd_holds_is_alive(tracker: TensorTracker) -> None:
    source = torch.ones(10, requires_grad=True)
    hidden = source.exp()  # saves its result
    tracker.see(hidden, "activations")
    loss = hidden.sum()
    del hidden
    assert live(tracker) == {"activations": 40}
    loss.backward()  # type: ignore[no-untyped-call]  # torch
    assert live(tracker) == {}


def test_the_peak_is_of_one_moment_and_of_one_step(tracker: TensorTracker) -> None:
    first = torch.ones(10)
    tracker.see(first, "activations")
    del first
    second = torch.ones(8)
    tracker.see(second, "temporaries")
    assert peak(tracker) == {"activations": 40}
    tracker.begin_step()
    assert peak(tracker) == {"temporaries": 32}


def test_a_temporary_of_the_peak_that_turns_out_to_be_a_gradient_is_one(tracker: TensorTracker) -> None:
    gradient, other = torch.ones(10), torch.ones(5)
    tracker.see(gradient, "temporaries")
    tracker.see(other, "temporaries")
    del other
    tracker.mark([gradient], "gradients")
    assert peak(tracker) == {"gradients": 40, "temporaries": 20}
    assert live(tracker) == {"gradients": 40}


def test_resizing_in_place_is_followed_without_an_operator(tracker: TensorTracker) -> None:
    tensor = torch.ones(10)
    tracker.see(tensor, "parameters")
    with tracker.resizes_seen():
        tensor.untyped_storage().resize_(0)
        assert live(tracker) == {}
        tensor.untyped_storage().resize_(80)
        assert live(tracker) == {"parameters": 80}
    assert "resize_" not in vars(torch.UntypedStorage)
    assert peak(tracker) == {"parameters": 80}


def test_operators_that_resize_are_followed_when_they_are_seen(tracker: TensorTracker) -> None:
    tensor = torch.ones(10)
    tracker.see(tensor, "temporaries")
    tensor.resize_(30)
    tracker.see(tensor, "temporaries")
    assert live(tracker) == {"temporaries": 120}


def test_memory_of_another_device_does_not_count() -> None:
    tracker = TensorTracker("cuda")
    tracker.see(torch.ones(10), "activations")
    assert live(tracker) == {}


class Backend:
    """Holds what it is handed, and a view of its own, in C++ alone, as gloo's threads do: the graph does it here."""

    def __init__(self, tracker: TensorTracker, tensor: torch.Tensor) -> None:
        lent = tracker.lend(tensor)
        assert lent.data_ptr() == tensor.data_ptr()
        factor = torch.ones(10, requires_grad=True)
        self.handed = weakref.ref(lent)
        self.held: Any = (factor * lent).sum() + (factor[5:] * lent[5:]).sum()

    def let_go(self) -> None:
        del self.held


def test_a_tensor_that_only_a_backend_holds_counts_as_freed(tracker: TensorTracker) -> None:
    sent = torch.ones(10)
    tracker.see(sent, "temporaries")
    backend = Backend(tracker, sent)
    assert live(tracker) == {"temporaries": 40}
    del sent
    assert backend.handed() is not None
    assert live(tracker) == {}
    after = torch.ones(10)
    tracker.see(after, "activations")
    assert peak(tracker) == {"temporaries": 40}  # at no moment did the two count together
    backend.let_go()
    assert live(tracker) == {"activations": 40}


def test_the_result_of_a_backend_is_the_memory_that_it_was_given(tracker: TensorTracker) -> None:
    sent = torch.ones(10)
    tracker.see(sent, "temporaries")
    backend = Backend(tracker, sent)
    result = backend.handed()
    assert result is not None
    tracker.see(result, "activations")
    tracker.meet(result)
    assert live(tracker) == {"temporaries": 40}
    tracker.mark([result], "gradients")
    assert live(tracker) == {"gradients": 40}


def test_a_tensor_is_alive_until_only_backends_hold_it(tracker: TensorTracker) -> None:
    sent = torch.ones(10)
    tracker.see(sent, "temporaries")
    backends = [Backend(tracker, sent), Backend(tracker, sent)]
    backends.pop().let_go()
    view = sent[:2]
    del sent
    assert live(tracker) == {"temporaries": 40}
    del view
    assert live(tracker) == {}
    backends.pop().let_go()


def test_an_optimizer_state_is_recognised(tracker: TensorTracker) -> None:
    state, other = torch.zeros(()), torch.zeros(())
    tracker.mark([state], "optimizer_state")
    tracker.see(other, "temporaries")
    assert tracker.is_state(state)
    assert not tracker.is_state(other)
