"""What the verbs refuse before anything is launched."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.fixture import Ddpperf
from pytest_ddpperf.settings import Settings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"world_sizes": 2}, r"scaling\(world_sizes=2\): expected a list of numbers of ranks, such as \[1, 2\]"),
        ({"world_sizes": [2]}, r"scaling\(world_sizes=\[2\]\): expected two or more numbers of ranks"),
        ({"world_sizes": [2, 2]}, r"scaling\(world_sizes=\[2, 2\]\): expected two or more numbers of ranks"),
        ({"world_sizes": "12"}, r"scaling\(world_sizes='12'\): expected a list of numbers of ranks, such as \[1, 2\]"),
        ({"mode": "wide"}, r"scaling\(mode='wide'\): expected one of strong, weak"),
    ],
)
def test_a_curve_needs_world_sizes_and_a_mode(words: dict[str, Any], said: str) -> None:
    session: Any = None  # nothing of it is asked for
    with pytest.raises(SettingError, match=said):
        Ddpperf(session, "test_x.py::test_a", Settings(), []).scaling(lambda _ctx: None, **words)
