from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.session.sides import Sides
from pytest_ddpperf.settings import Settings


@pytest.mark.parametrize(
    ("of_launchers", "parents"),
    [
        pytest.param((4711, 4712), (4711, 4712), id="both run"),
        pytest.param((4711, None), (4711,), id="one has ended, and what others use of the cores is known"),
        pytest.param((None, None), (None,), id="none runs"),
    ],
)
def test_the_parents_of_ranks_are_the_fork_servers_that_run(
    tmp_path: Path, of_launchers: tuple[int | None, ...], parents: tuple[int | None, ...]
) -> None:
    sides = Sides(Settings(), tmp_path, LiveLine(None, None), revision=None, probe=None, before_start=lambda: None)
    vars(sides)["_launchers"] = SimpleNamespace(parents=of_launchers)
    assert sides.parents == parents
