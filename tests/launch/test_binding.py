"""The cores that ranks are bound to: shares of machines that are made up, and real ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch import binding
from pytest_ddpperf.launch.binding import shares


def machine(root: Path, nodes: list[str], threads: dict[int, str] | None = None) -> Path:
    """A machine with these cores on its NUMA nodes; ``threads``: those of the core of each hardware thread."""
    for number, cores in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    (root / "sys/devices/system/node/online").write_text(f"0-{len(nodes) - 1}\n")
    for thread, siblings in (threads or {}).items():
        folder = root / f"sys/devices/system/cpu/cpu{thread}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return root


@pytest.mark.parametrize(
    ("nodes", "cores", "ranks", "expected"),
    [
        (["0-4"], range(5), 2, [[0, 1, 2], [3, 4]]),
        (["0-3", "4-7"], range(8), 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (["0,2,4,6", "1,3,5,7"], range(8), 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),  # numbers that alternate
        (["0-3", "4-7"], [0, 1, 2, 3, 4, 5], 3, [[0, 1], [2, 3], [4, 5]]),  # a part of the second node is allowed
        (["0-3", "4-7"], range(8), 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (["0-1", "2-3", "4-5", "6-7"], range(8), 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_each_rank_has_a_share_of_the_cores_of_a_node(
    tmp_path: Path, nodes: list[str], cores: list[int], ranks: int, expected: list[list[int]]
) -> None:
    assert shares(cores, ranks, machine(tmp_path, nodes)) == expected


def test_hardware_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0-7"], {thread: f"{thread % 4},{thread % 4 + 4}" for thread in range(8)})
    assert shares(range(8), 2, root) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert shares(range(8), 4, root) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert shares(range(8), 8, root) == [[0], [4], [1], [5], [2], [6], [3], [7]]  # there are too few cores


def test_a_machine_that_tells_no_nodes_is_one(tmp_path: Path) -> None:
    assert shares([3, 5, 8, 9], 2, tmp_path) == [[3, 5], [8, 9]]


def test_fewer_cores_than_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"3 ranks have 2 \(4-5\): use fewer ranks, or cpu_binding=none"):
        shares([4, 5], 3, tmp_path)


def test_ranks_near_one_gpu_share_its_cores_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binding, "near_cores", lambda _addresses, rank, *_: {4, 5, 6, 7} if rank % 2 else {0, 1})
    assert [binding.own_cores([None] * 4, rank, {}, tmp_path) for rank in range(4)] == [[0], [4, 5], [1], [6, 7]]
    monkeypatch.setattr(binding, "near_cores", lambda *_: set())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    assert [binding.own_cores([None] * 2, rank, {}, tmp_path) for rank in range(2)] == [[1, 2], [3]]
