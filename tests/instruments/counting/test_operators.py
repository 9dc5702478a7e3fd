"""Which operators count, which of them wait for a device; other devices stand in their arguments only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import flop_registry, register_flop_formula

from pytest_ddpperf.instruments.counting import operators
from pytest_ddpperf.instruments.counting.dispatch import OperatorCounter
from pytest_ddpperf.instruments.counting.module_tracker import OUTSIDE, Running
from pytest_ddpperf.instruments.counting.tensors import TensorTracker

aten = torch.ops.aten


def on(device: str, dtype: torch.dtype = torch.float32, numel: int = 10) -> Any:
    """What is asked of a tensor, without a GPU to put one on."""
    return SimpleNamespace(
        device=torch.device(device), dtype=dtype, numel=lambda: numel, element_size=lambda: dtype.itemsize
    )


MASK, NUMBER = on("cuda", torch.bool), on("cpu", numel=1)


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (aten.mm.default, "aten.mm"),
        (aten.add_.Tensor, "aten.add_"),
        (aten.mul.out, "aten.mul"),  # all overloads are one
        (aten.view.default, None),
        (aten._unsafe_view.default, None),
        (aten.empty.memory_format, None),
        (aten.zeros.default, "aten.zeros"),
        (torch.ops.profiler._record_function_enter_new.default, None),
        (torch.ops.c10d.allreduce_.default, None),  # counted as a collective
        (torch.ops.higher_order.cond, "higher_order.cond"),
    ],
)
def test_operators_that_do_work_have_names(func: Any, name: str | None) -> None:
    assert operators.operator_name(func) == name


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "device", "expected"),
    [
        (aten._local_scalar_dense.default, (on("cuda"),), {}, "cuda", "item"),
        (aten._local_scalar_dense.default, (on("cpu"),), {}, "cuda", None),  # Adam's count of steps lies on the host
        (aten._local_scalar_dense.default, (on("cpu"),), {}, "cpu", "item"),  # as if it were a GPU
        (aten.repeat_interleave.Tensor, (on("cuda"),), {}, "cuda", "repeat_interleave"),
        (aten.repeat_interleave.Tensor, (on("cuda"),), {"output_size": 9}, "cuda", None),
        (aten.index.Tensor, (on("cuda"), [None, on("cuda", torch.bool)]), {}, "cuda", "index by mask"),
        (aten.index.Tensor, (on("cuda"), [on("cuda", torch.int64)]), {}, "cuda", None),
        (aten.index_put_.default, (on("cuda"), [MASK], on("cuda")), {}, "cuda", "index by mask"),
        (aten.index_put_.default, (on("cuda"), [MASK], NUMBER), {}, "cuda", None),  # tensor[mask] = 0.0
        (aten.index_put_.default, (on("cpu"), [on("cpu", torch.bool)], NUMBER), {}, "cpu", None),
        (aten.index_put_.default, (on("cuda"), [MASK], NUMBER, True), {}, "cuda", "index by mask"),  # accumulates
        (aten.index_put_.default, (on("cuda"), [MASK, MASK], NUMBER), {}, "cuda", "index by mask"),
        (aten.index_put_.default, (on("cuda"), [MASK], on("cuda", numel=1)), {}, "cuda", "index by mask"),
        (aten._to_copy.default, (on("cuda"),), {"device": torch.device("cpu")}, "cuda", "copy to host"),
        (aten._to_copy.default, (on("cuda"),), {"device": "cpu", "non_blocking": True}, "cuda", None),
        (aten.copy_.default, (on("cpu"), on("cuda")), {}, "cuda", "copy to host"),
        (aten.copy_.default, (on("cpu"), on("cuda"), True), {}, "cuda", None),
        (aten.mm.default, (on("cuda"), on("cuda")), {}, "cuda", None),
    ],
)
def test_operators_that_wait_for_the_device_are_known(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, expected: str | None
) -> None:
    assert operators.synchronisation(func, args, kwargs, device) == expected


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "device", "expected"),
    [
        (aten._to_copy.default, (on("cpu"),), {"device": torch.device("cuda", 0)}, "cuda", 40),
        (aten.copy_.default, (on("cuda"), on("cpu", torch.int64)), {}, "cuda", 80),
        (aten.copy_.default, (on("cpu"), on("cuda")), {}, "cuda", 0),
        (aten._to_copy.default, (on("cpu"),), {"dtype": torch.bfloat16}, "cpu", 0),
        (aten.mm.default, (on("cuda"), on("cuda")), {}, "cuda", 0),
    ],
)
def test_bytes_that_go_to_the_device_are_counted(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, expected: int
) -> None:
    assert operators.host_to_device_bytes(func, args, kwargs, device) == expected


def test_moved_bytes_count_each_element_once() -> None:
    rows = torch.ones(4, 6)
    assert operators.moved_bytes([rows]) == 96
    assert operators.moved_bytes([rows, rows]) == 96  # in place: read and written
    assert operators.moved_bytes([rows, torch.ones(4, 6, dtype=torch.bfloat16)]) == 96 + 48
    assert operators.moved_bytes([torch.ones(1, 6).expand(1000, 6)]) == 24
    assert operators.moved_bytes([rows.t()[:2]]) == 32
    assert operators.moved_bytes([torch.ones(0, 5), torch.tensor(1.0)]) == 4
    assert operators.moved_bytes([torch.eye(3).to_sparse()]) == 3 * 4 + 6 * 8  # three numbers, each with two indices


def test_operators_that_an_operator_of_the_user_calls_are_counted() -> None:
    @torch.library.custom_op("ddpperf_test::product", mutates_args=())
    def product(rows: Tensor) -> Tensor:
        dist.all_reduce(rows.clone())
        return (rows @ rows.T).relu()

    @torch.library.custom_op("ddpperf_test::known", mutates_args=())
    def known(rows: Tensor) -> Tensor:
        return rows @ rows.T

    register_flop_formula(torch.ops.ddpperf_test.known)(lambda *_, **__: 7)
    counter = OperatorCounter(TensorTracker("cpu"), "cpu", lambda: Running(OUTSIDE))
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with counter:
            found = product(torch.ones(2, 3))
            known(torch.ones(2, 3))
    finally:
        dist.destroy_process_group()
        flop_registry.pop(torch.ops.ddpperf_test.known)
    assert found.tolist() == [[3.0, 3.0]] * 2
    counts = counter.details()
    assert counts["collective_calls"] == {"all_reduce": 1}
    assert sum(counts["flops"].values()) == 2 * 2 * 3 * 2 + 7
    assert counts["operators"]["aten.mm"] == counts["operators"]["ddpperf_test.product"] == 1
