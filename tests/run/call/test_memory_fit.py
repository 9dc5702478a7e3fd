"""What does not fit is left out, and what ran out of memory for once is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_ddpperf.errors import RankFailed, extended
from pytest_ddpperf.run.call.memory_fit import MemoryFit, under_limit_of
from tests.factories import make_variant

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


def test_what_ran_out_of_memory_once_is_tried_again() -> None:
    found, reasons, tried = run({"b": 1})
    assert (found, reasons, len(tried)) == (["a", "b", "c"], {}, 2)


def test_what_runs_out_of_memory_again_is_left_out() -> None:
    found, reasons, tried = run({"b": 2})
    assert found == ["a", "c"]
    assert list(reasons.values()) == ["b ran out (train.py:7)"]
    assert tried[-1] == ["a", "c"]


def test_where_others_use_the_memory_it_is_no_fault_of_the_benchmark() -> None:
    with pytest.raises(RankFailed, match=r"^b ran out$"):
        run({"b": 2}, shared=True)


def test_where_nothing_fits_all_are_named() -> None:
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
