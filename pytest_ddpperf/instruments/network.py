"""Times collectives of many sizes, and messages between pairs of ranks, on each rank."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, cycle, islice
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddpperf.instruments.clock import settle
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.records.network import ELEMENT, CollectiveTimes, Overlap, RankSweep, SweepPlan

_CALL_BYTES = 2**22  # that the calls of a turn send together, unless their number is outside these limits
_CALLS = (3, 10)
_MESSAGES = 20  # of a pair in a turn: the first ones after the others' work take twice as long as the fastest
# Parts of a buffer are sent in turn, so that none is in a cache from the call before: gradients of a step are not.
_COLD_BYTES = {"cpu": 2**26, "cuda": 0}
_PLACES = 16
_ALL_PAIRS = 16  # ranks up to which every pair is timed; of more only neighbours
_BESIDE_BYTES = 2**22  # of the all-reduce during which ranks compute
_ROWS = {"cpu": 128, "cuda": 2048}  # of the matrices that they multiply
_TRIED, _MOST = 3, 10_000  # products that are timed to choose a number of products, and that run at most


def sweep(rank: int, ranks: int, device: torch.device, plan: SweepPlan) -> RankSweep:
    """Times a plan's collectives, messages and overlap with computing; all ``ranks`` ranks run the same plan."""
    cells = [(collective, size) for collective in plan.collectives for size in plan.sizes]
    largest = _elements(max(plan.sizes), ranks)  # all sizes are parts of the same buffers
    room = max(largest, _COLD_BYTES[device.type] // ELEMENT)
    buffers = tuple(torch.ones(room, device=device) for _ in range(2))
    calls = {cell: cycle(_calls(ranks, *cell, *buffers)) for cell in cells}
    times: dict[tuple[str, int], list[tuple[float, float, float]]] = {cell: [] for cell in cells}
    neighbours = [(each, (each + 1) % ranks) for each in range(ranks)]
    pairs = list(combinations(range(ranks), 2)) if ranks <= _ALL_PAIRS else neighbours
    messages: dict[int, list[float]] = {}
    message = torch.zeros(max(1, plan.pair_bytes // ELEMENT), device=device)
    beside, compute = list[Overlap](), _products(device)
    least_calls, most_calls = _CALLS
    order = random.Random(plan.seed)  # noqa: S311  the same on all ranks
    for turn in range(-1, plan.rounds):  # the first one, number -1, only warms up
        for cell in order.sample(cells, len(cells)):
            repeats = max(least_calls, min(most_calls, _CALL_BYTES // cell[1]))
            measured = list(_timed_calls(calls[cell], repeats, device))
            times[cell] += measured if turn >= 0 else []
        for pair in order.sample(pairs, len(pairs)):
            seconds = _fastest_message(rank, pair, message)
            if seconds is not None and turn >= 0:
                messages.setdefault(sum(pair) - rank, []).append(seconds)
        both = _beside(ranks, min(_BESIDE_BYTES, max(plan.sizes)), buffers[0], compute)
        beside += [both] if turn >= 0 else []
    found = []
    for (collective, size), measured in times.items():
        begun, waited, handed = zip(*measured, strict=True)
        sent = _elements(size, ranks) * ELEMENT
        found.append(CollectiveTimes(collective=collective, nbytes=sent, begun=begun, waited=waited, handed=handed))
    return RankSweep(
        times=tuple(found), pairs={other: tuple(seconds) for other, seconds in messages.items()}, beside=tuple(beside)
    )


def _elements(size: int, ranks: int) -> int:
    """Returns a number of elements that takes about ``size`` bytes and is divisible by the number of ranks."""
    return max(1, size // (ELEMENT * ranks)) * ranks


def _calls(
    ranks: int, collective: str, size: int, first: torch.Tensor, second: torch.Tensor
) -> list[Callable[[], Any]]:
    """Returns functions that start a collective; each uses another part of the buffers ``first`` and ``second``."""
    count = _elements(size, ranks)
    places = max(1, min(_PLACES, first.numel() // count))
    step = first.numel() // places
    return [
        _call(ranks, collective, first[place : place + count], second[place : place + count])
        for place in range(0, places * step, step)
    ]


def _call(ranks: int, collective: str, whole: torch.Tensor, other: torch.Tensor) -> Callable[[], Any]:
    part = other[: other.numel() // ranks]
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX, async_op=True),
        "broadcast": lambda: dist.broadcast(whole, 0, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.MAX, async_op=True),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, async_op=True),
    }
    return calls[collective]


def _timed_calls(
    calls: Iterator[Callable[[], Any]], repeats: int, device: torch.device
) -> Iterator[tuple[float, float, float]]:
    """Calls each collective after a barrier, waits for its result, and yields (begun, waited, handed).

    ``begun``: seconds until the call returned. ``waited``: seconds from the return to the result. ``handed``: the
    time of the return, on a clock that all ranks of a machine share.
    """
    for call in islice(calls, repeats):
        _meet(device)
        start = time.perf_counter()
        handle = call()
        handed = time.perf_counter()  # on Linux a clock of the machine
        handle.wait()
        settle(device)
        yield handed - start, time.perf_counter() - handed, handed


def _products(device: torch.device) -> Callable[[int], None]:
    rows = _ROWS[device.type]
    matrix = torch.ones((rows, rows), device=device)
    product = torch.empty_like(matrix)

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=product)

    return compute


def _beside(ranks: int, size: int, buffer: torch.Tensor, compute: Callable[[int], None]) -> Overlap:
    """Times an all-reduce, matrix products that take about twice as long, and both at the same time."""
    whole, device = buffer[: _elements(size, ranks)], buffer.device

    def timed(work: Callable[[], object]) -> float:
        _meet(device)
        start = time.perf_counter()
        work()
        settle(device)
        return time.perf_counter() - start

    def together(products: int) -> None:
        handle = dist.all_reduce(whole, op=dist.ReduceOp.MAX, async_op=True)
        compute(products)
        handle.wait()

    sending, one = timed(lambda: together(0)), timed(lambda: compute(_TRIED))
    wanted = torch.tensor(2 * sending / one * _TRIED, device=device)
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)  # as many on all ranks
    products = max(1, min(_MOST, round(wanted.item())))
    return Overlap(computing=timed(lambda: compute(products)), sending=sending, both=timed(lambda: together(products)))


def _meet(device: torch.device) -> None:
    dist.barrier()
    settle(device)


def _fastest_message(rank: int, pair: tuple[int, int], message: torch.Tensor) -> float | None:
    """Returns half the seconds of the fastest of several round trips of a message; None on ranks outside the pair."""
    _meet(message.device)
    if rank not in pair:
        return None
    other = sum(pair) - rank
    steps = (dist.send, dist.recv) if rank == min(pair) else (dist.recv, dist.send)
    found = []
    for _ in range(_MESSAGES):
        start = time.perf_counter()
        for step in steps:
            step(message, other)
        settle(message.device)
        found.append((time.perf_counter() - start) / 2)
    return min(found)
