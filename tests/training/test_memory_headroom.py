"""Room for copies of what is trained: worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.communication import MemoryHeadroom
from pytest_ddpperf.training import memory_headroom as room
from pytest_ddpperf.training.memory_headroom import headroom_for, least_headroom, machine_number


def test_the_ranks_of_a_machine_share_its_memory() -> None:
    """Two machines: 10 + 20 of 100 (75 that may be used), and 90 of 100."""
    assert least_headroom([(1, 10, 100), (1, 20, 104)]) == MemoryHeadroom(needed=30, free=75)
    assert least_headroom([(1, 10, 100), (2, 90, 100), (1, 20, 100)]) == MemoryHeadroom(needed=90, free=75)
    assert not MemoryHeadroom(needed=90, free=75).enough
    assert MemoryHeadroom(needed=75, free=75).enough


def test_a_machine_is_known_by_its_start(tmp_path: Path) -> None:
    assert machine_number(tmp_path) == 0
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.write_text("ffffffff-ffff-ffff-ffff-ffffffffffff\n")
    assert machine_number(tmp_path) == 2**62 - 1
    boot.write_text("00000000-0000-0004-0000-000000000000\n")
    assert machine_number(tmp_path) == 1


def asked(ctx: RankContext) -> MemoryHeadroom:
    """Rank 0 needs 30 bytes and reads that 100 are available, rank 1 needs 31 and reads 104."""
    with patch("pytest_ddpperf.training.memory_headroom.available_memory", lambda: 100 + 4 * ctx.rank):
        return headroom_for(30 + ctx.rank, ctx.device)


def test_all_ranks_are_asked_and_know_the_same(launcher: Launcher) -> None:
    assert launcher.run(asked, world_size=2, backend="gloo", device="cpu").values == (
        MemoryHeadroom(needed=61, free=75),
        MemoryHeadroom(needed=61, free=75),
    )


def test_where_nothing_is_told_there_is_room(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_memory", lambda: None)
    assert headroom_for(2**50, make_ctx().device).enough
