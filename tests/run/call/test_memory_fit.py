"""What fits into memory: benchmarks that do not are tried again and left out; the largest batch that does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ddpperf.errors import RankFailed, WorkloadError, extended
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.verbs import BatchSize, Trial
from pytest_ddpperf.run.call import memory_fit
from pytest_ddpperf.run.call.memory_fit import MemoryFit, largest, under_limit_of
from tests.factories import make_rank_launch, make_variant

if TYPE_CHECKING:
    from pytest_ddpperf.records.results import BaselineRecord

VARIANTS = [make_variant(name) for name in ("a", "b", "c")]


def out_of_memory(name: str, *, shared: bool = False) -> RankFailed:
    error = RankFailed(f"{name} ran out", out_of_memory=True, where="train.py:7 in step")
    error = extended(error, benchmark=(name, VARIANTS[0].world_size))
    error.shared = shared
    return error


def run(failures: dict[str, int], *, shared: bool = False) -> tuple[list[str], dict[Any, str], list[list[str]]]:
    """What is measured of variants that run out of memory so often, the reasons, and the variants of each try."""
    fit, tried = MemoryFit(VARIANTS, []), list[list[str]]()
    while True:
        names = [variant.name for variant in fit.left]
        tried.append(names)
        failed = next((name for name in names if failures.get(name, 0) > 0), None)
        if failed is None:
            return names, fit.reasons, tried
        failures[failed] -= 1
        error = out_of_memory(failed, shared=shared)
        if not fit.tries_again(error):
            raise error


def test_a_variant_that_ran_out_of_memory_once_is_tried_again() -> None:
    found, reasons, tried = run({"b": 1})
    assert (found, reasons, len(tried)) == (["a", "b", "c"], {}, 2)


def test_a_variant_that_runs_out_of_memory_again_is_omitted() -> None:
    found, reasons, tried = run({"b": 2})
    assert found == ["a", "c"]
    assert list(reasons.values()) == ["b ran out (train.py:7)"]
    assert tried[-1] == ["a", "c"]


def test_if_other_processes_use_the_memory_running_out_is_an_error() -> None:
    with pytest.raises(RankFailed, match=r"^b ran out$"):
        run({"b": 2}, shared=True)


def test_if_no_variant_fits_all_are_named() -> None:
    with pytest.raises(
        RankFailed,
        match=r"^nothing fits into memory\na: a ran out \(train.py:7\)\nb: b ran out \(train.py:7\)\nc: c ran out$",
    ):
        run({"a": 2, "b": 2, "c": 2})


@pytest.mark.parametrize(("stored", "recipe"), [({}, {}), ({"memory_limit": "1MiB"}, {"memory_limit": "1MiB"})])
def test_a_baseline_is_found_under_its_own_limit(stored: dict[str, str], recipe: dict[str, str]) -> None:
    bf16 = {"precision": "bf16"}
    variant = make_variant("a", recipe={**bf16, "memory_limit": "9MiB"})
    record = SimpleNamespace(recipe={"precision": "fp16", **stored})
    assert under_limit_of(cast("BaselineRecord", record), variant).recipe == {**bf16, **recipe}


GIB = 2**30
search = partial(memory_fit.search, device="cuda")


class UpTo:
    """Whether a number fits, up to ``most``; keeps which were tried."""

    def __init__(self, most: int) -> None:
        self.tried: list[int] = []
        self._most = most

    def __call__(self, number: int) -> bool:
        self.tried.append(number)
        return number <= self._most


@pytest.mark.parametrize(
    ("most", "start", "limit", "tried"),
    [
        # doubled until 16 fails, then between 8 and 16, between 8 and 12, between 10 and 12
        (11, 1, None, [1, 2, 4, 8, 16, 12, 10, 11]),
        (13, 3, None, [3, 6, 12, 24, 18, 15, 13, 14]),
        # the limit is tried in place of what would be above it, and where it fits there is nothing to bisect
        (100, 1, 6, [1, 2, 4, 6]),
        (5, 1, 6, [1, 2, 4, 6, 5]),
        (100, 4, 4, [4]),
    ],
)
def test_sizes_are_doubled_then_bisected(most: int, start: int, limit: int | None, tried: list[int]) -> None:
    fits = UpTo(most)
    assert largest(fits, start, limit) == min(most, limit or most)
    assert fits.tried == tried


def test_a_search_with_a_resolution_ends_before_single_samples() -> None:
    """Between 960 and 976 lies less than 2 % of 960, and less than one sample between 40 and 41."""
    fits = UpTo(970)
    assert largest(fits, resolution=0.02) == 960
    assert fits.tried == [*(2**i for i in range(11)), 768, 896, 960, 992, 976]
    assert largest(UpTo(40), resolution=0.02) == 40


def test_every_border_is_found_and_no_size_tried_twice() -> None:
    for most in range(1, 200):
        fits = UpTo(most)
        assert largest(fits) == most
        assert len(set(fits.tried)) == len(fits.tried) <= 2 * most.bit_length() + 1


def rank(number: int, **memory: float) -> RankLaunch:
    return make_rank_launch(number, step_times=(0.1, 0.1), memory=memory, loss=0.5)


def test_a_size_fits_if_no_rank_runs_out_of_memory() -> None:
    """5 samples fit: 1, 2, 4 do, 8 and 6 do not, 5 does."""

    def probe(size: int) -> list[RankLaunch]:
        if size > 5:
            raise RankFailed("rank 0 of 1 ran out of memory: MemoryError", rank=0, out_of_memory=True)
        return [rank(0, peak_allocated=size * 60.0, peak_reserved=size * 100.0)]

    tried = ((1, True, 100.0), (2, True, 200.0), (4, True, 400.0), (8, False, None), (6, False, None), (5, True, 500.0))
    assert search(probe) == BatchSize(size=5, peak=500.0, tried=tuple(Trial(*trial) for trial in tried))


def test_with_a_limit_every_ranks_peak_has_to_be_below_it() -> None:
    """Rank 1 takes 100 bytes a sample: 3 of them are 300, 4 are 400."""

    def probe(size: int) -> list[RankLaunch]:
        return [rank(0, peak_resident=size * 10.0), rank(1, peak_resident=size * 100.0)]

    found = search(probe, memory_limit=300)
    assert (found.size, found.peak) == (3, 300.0)
    assert [(one.size, one.fits) for one in found.tried] == [(1, True), (2, True), (4, False), (3, True)]


def test_without_a_known_peak_a_size_fits_if_its_steps_end() -> None:
    assert search(lambda _: [rank(0)], limit=4, memory_limit=10) == BatchSize(
        size=4,
        peak=None,
        tried=(Trial(1, fits=True, peak=None), Trial(2, fits=True, peak=None), Trial(4, fits=True, peak=None)),
    )


def growing(per_sample: float) -> Callable[[int], list[RankLaunch]]:
    """Launches of a model whose state takes 1.6 GB; readings of the same memory lie up to 600 kB apart."""
    noise = (300e3, 600e3, 0.0)
    return lambda size: [rank(0, peak_resident=1.6e9 + size * per_sample + noise[size.bit_length() % 3])]


def test_a_search_with_a_limit_goes_up_to_it_however_little_memory_grows() -> None:
    assert search(growing(0), limit=4096).size == 4096
    assert search(growing(10e3), limit=4096, memory_limit=2 * GIB).size == 4096


def test_memory_growth_counts_although_it_is_small_compared_with_the_model_state() -> None:
    """A thousand samples of 10 kB add less than a hundredth; (1.7e9 - 1.6e9) / 10e3 of them are 10 000."""
    assert search(growing(10e3), memory_limit=1_700_000_000).size in range(9940, 10_001)


def test_without_a_limit_a_function_whose_memory_does_not_grow_is_refused() -> None:
    """1 to 1024 have bit lengths of 1 to 11: 1, 8, 64 and 512 (1, 4, 7, 10) read the most, 1024 the least."""
    with pytest.raises(WorkloadError) as raised:
        search(growing(0), memory_limit=2 * GIB)
    assert str(raised.value) == (
        "find_batch_size: batch size 1024 takes no more memory than 1 (1.49 GiB): let the function use its argument, "
        "or, if memory is not the limit, give limit=LARGEST_SIZE"
    )


def test_any_other_failure_is_raised_as_it_is() -> None:
    failed = RankFailed("rank 0 of 1 raised ValueError: boom", rank=0)

    def probe(size: int) -> list[RankLaunch]:
        if size > 2:
            raise failed
        return [rank(0)]

    with pytest.raises(RankFailed) as raised:
        search(probe)
    assert raised.value is failed


def test_if_no_size_fits_the_message_has_the_memory_that_the_smallest_needs() -> None:
    def out_of_memory(_: int) -> list[RankLaunch]:
        raise RankFailed("rank 1 of 2 ran out of memory: MemoryError: 12 GiB\n\nTraceback", out_of_memory=True)

    with pytest.raises(WorkloadError) as raised:
        search(lambda _: [rank(0, peak_resident=3 * GIB)], start=4, memory_limit=2 * GIB)
    assert str(raised.value) == (
        "batch size 4, the smallest one to be tried, does not fit into 2.00 GiB for each rank: a rank used 3.00 GiB; "
        "begin with a smaller one (start=...), or raise memory_limit"
    )
    with pytest.raises(WorkloadError) as raised:
        search(out_of_memory)
    assert str(raised.value) == (
        "batch size 1, the smallest one to be tried, does not fit into memory: "
        "rank 1 of 2 ran out of memory: MemoryError: 12 GiB; train a smaller model"
    )
