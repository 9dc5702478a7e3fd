"""Room for copies of what is trained: worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pytest_ddpperf.communication import Room
from pytest_ddpperf.training import room
from pytest_ddpperf.training.room import available_memory, least_room, machine_number, room_for


def test_the_ranks_of_a_machine_share_its_memory() -> None:
    """Two machines: 10 + 20 of 100 (75 that may be used), and 90 of 100."""
    assert least_room([(1, 10, 100), (1, 20, 104)]) == Room(30, 75)
    assert least_room([(1, 10, 100), (2, 90, 100), (1, 20, 100)]) == Room(90, 75)
    assert not Room(90, 75).enough
    assert Room(75, 75).enough


def test_what_is_available_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 2**60
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemFree:   100 kB\nMemAvailable:    2000 kB\n")
    assert available_memory(tmp_path) == 2000 * 1024
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\n")
    assert available_memory(tmp_path) > 2**60


def test_a_machine_is_known_by_its_start(tmp_path: Path) -> None:
    assert machine_number(tmp_path) == 0
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    boot = tmp_path / "sys/kernel/random/boot_id"
    boot.write_text("ffffffff-ffff-ffff-ffff-ffffffffffff\n")
    assert machine_number(tmp_path) == 2**62 - 1
    boot.write_text("00000000-0000-0004-0000-000000000000\n")
    assert machine_number(tmp_path) == 1


def test_all_ranks_are_asked(make_ctx: Any, monkeypatch: Any) -> None:
    make_ctx()
    monkeypatch.setattr(room, "available_memory", lambda: 100)
    assert room_for(76, torch.device("cpu")) == Room(76, 75)
