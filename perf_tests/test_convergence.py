"""Does the image classifier reach the same accuracy with each strategy?"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from pytest_ddpperf import Ddpperf

from .digits import evaluated_digits

if find_spec("sklearn") is None:  # importing it would take a second
    pytest.skip("the pictures come with scikit-learn", allow_module_level=True)


def test_convergence(ddpperf: Ddpperf) -> None:
    strategies = ["ddp", "flat", "bucketed", "fsdp2"]
    found = ddpperf.converge(
        evaluated_digits(32), strategies=strategies, steps=24, every=24, metric="accuracy", launches=3
    )
    assert all(found.final(each).value > 0.5 for each in strategies)
