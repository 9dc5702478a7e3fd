"""How a discrepancy reads."""

from __future__ import annotations

import math

from pytest_ddpperf.training.verification import Discrepancy, Extent, discrepancy_text


def test_a_gradient_that_differs() -> None:
    found = Discrepancy(
        quantity="gradients",
        name="layers.0.weight",
        rank=1,
        step=1,
        error=0.33333,
        tolerance=1e-4,
        cause="it is this rank's own gradient: it was not synchronised",
        extent=Extent(differing=5, names=6, ranks=2, world_size=2),
    )
    assert discrepancy_text(found) == (
        "gradients differ from a single process: layers.0.weight on rank 1 at step 1, relative error 0.333, "
        "tolerance 0.0001; likely cause: it is this rank's own gradient: it was not synchronised; "
        "5 of 6 parameters differ, on 2 of 2 ranks"
    )


def test_a_fault_stands_for_numbers() -> None:
    found = Discrepancy(
        quantity="clipped gradients",
        name="weight",
        rank=0,
        step=3,
        error=math.inf,
        tolerance=1e-4,
        fault="is not finite",
    )
    assert discrepancy_text(found) == (
        "gradients differ from a single process after clipping: weight on rank 0 at step 3 is not finite"
    )


def test_before_the_first_step() -> None:
    extent = Extent(differing=1, names=2, ranks=3, world_size=4)
    found = Discrepancy(
        quantity="start buffers", name="running_mean", rank=2, step=0, error=1.0, tolerance=1e-4, extent=extent
    )
    assert discrepancy_text(found) == (
        "ranks start from different buffers: running_mean on rank 2, relative error 1, tolerance 0.0001; "
        "1 of 2 buffers differ, on 3 of 4 ranks"
    )


def test_no_single_rank_is_to_blame() -> None:
    found = Discrepancy(
        quantity="losses", name="the mean loss", rank=None, step=2, error=0.5, tolerance=1e-4, fault="is 3 instead of 2"
    )
    assert discrepancy_text(found) == ("losses differ from a single process: the mean loss at step 2 is 3 instead of 2")


def test_every_quantity_has_its_words() -> None:
    def head(quantity: str) -> str:
        found = Discrepancy(quantity=quantity, name="w", rank=0, step=0, error=1.0, tolerance=1.0)  # type: ignore[arg-type]  # all of them, one by one
        return discrepancy_text(found).partition(": w on rank 0")[0]

    assert head("parameters") == "parameters differ from a single process"
    assert head("own parameters") == "parameters differ between ranks"
    assert head("start parameters") == "ranks start from different parameters"
