"""Does the image classifier train as fast as the baseline says?"""

from __future__ import annotations

import pytest

from pytest_ddpperf import Ddpperf

from .digits import digits

pytest.importorskip("sklearn", reason="the pictures come with scikit-learn")


def test_digits(ddpperf: Ddpperf) -> None:
    ddpperf.check(digits(batch_size=64), strategy="ddp")
