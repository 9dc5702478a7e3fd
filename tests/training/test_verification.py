"""How a discrepancy reads."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_ddpperf.training.verification import Discrepancy, Extent, discrepancy_text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {
                "quantity": "gradients",
                "name": "layers.0.weight",
                "rank": 1,
                "step": 1,
                "error": 0.33333,
                "cause": "the rank kept its own gradient, which was not synchronised",
                "extent": Extent(differing=5, names=6, ranks=2, world_size=2),
            },
            (
                "gradients differ from a single process: layers.0.weight on rank 1 at step 1, relative error 0.333, "
                "tolerance 0.0001; likely cause: the rank kept its own gradient, which was not synchronised; "
                "5 of 6 parameters differ, on 2 of 2 ranks"
            ),
        ),
        (
            {"quantity": "clipped gradients", "rank": 0, "step": 3, "error": math.inf, "fault": "is not finite"},
            "gradients differ from a single process after clipping: w on rank 0 at step 3 is not finite",
        ),
        (
            {"quantity": "start buffers", "rank": 2, "extent": Extent(differing=1, names=2, ranks=3, world_size=4)},
            (
                "ranks start from different buffers: w on rank 2, relative error 1, tolerance 0.0001; "
                "1 of 2 buffers differ, on 3 of 4 ranks"
            ),
        ),
        (
            {"quantity": "losses", "name": "the mean loss", "step": 2, "fault": "is 3 instead of 2"},
            "losses differ from a single process: the mean loss at step 2 is 3 instead of 2",
        ),
        ({"quantity": "parameters", "fault": "is lost"}, "parameters differ from a single process: w is lost"),
        ({"quantity": "own parameters", "fault": "is lost"}, "parameters differ between ranks: w is lost"),
        ({"quantity": "start parameters", "fault": "is lost"}, "ranks start from different parameters: w is lost"),
    ],
)
def test_a_discrepancy_is_told_in_a_line(fields: dict[str, Any], text: str) -> None:
    assert discrepancy_text(Discrepancy(**{"name": "w", "error": 1.0, "tolerance": 1e-4, **fields})) == text
