"""Searches for the largest batch, a line each."""

from __future__ import annotations

from pytest_ddpperf.records.batch_size import BatchSize, Search, Trial
from pytest_ddpperf.reports.batch_sizes import batch_size_lines
from tests.factories import make_environment

MIB = 2**20
CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def search(found: BatchSize, memory_limit: int | None = 64 * MIB) -> Search:
    return Search(
        test="p/t.py::test_size[a]",
        training="ddp precision=bf16",
        environment=CPU,
        limit=8,
        memory_limit=memory_limit,
        found=found,
    )


def test_a_line_says_what_fits_what_it_takes_and_what_was_tried() -> None:
    """5 fit, and of 6 and 8, which do not, 6 is told."""
    fits = dict.fromkeys((1, 2, 4, 5), True) | dict.fromkeys((6, 8), False)
    tried = tuple(Trial(size, fits[size], 1.0) for size in (1, 2, 4, 8, 6, 5))
    assert batch_size_lines([search(BatchSize(size=5, peak=48.0 * MIB, tried=tried))]) == [
        (
            "test_size[a] ddp precision=bf16, 2 ranks: batch size 5 fits, 6 does not; "
            "a rank's peak is 48.0 MiB of 64.0 MiB; tried 1, 2, 4, 8, 6, 5"
        )
    ]


def test_a_search_may_end_at_its_limit() -> None:
    tried = tuple(Trial(size, fits=True, peak=None) for size in (4, 8))
    (line,) = batch_size_lines([search(BatchSize(size=8, peak=None, tried=tried))])
    assert line.endswith(": batch size 8 fits, and is the limit; tried 4, 8")


def test_without_a_memory_limit_the_peak_stands_alone() -> None:
    tried = (Trial(8, fits=True, peak=48.0 * MIB),)
    (line,) = batch_size_lines([search(BatchSize(size=8, peak=48.0 * MIB, tried=tried), memory_limit=None)])
    assert "; a rank's peak is 48.0 MiB; tried 8" in line
