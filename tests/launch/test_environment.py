"""Which variables ranks see, as pure functions of the controller's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddpperf.launch.environment import group_variables, inherited, pinned, search_path, thread_count


def test_a_rank_gets_one_thread_like_under_torchrun() -> None:
    fixed = pinned({}, "m")
    assert {fixed[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"1"}


def test_the_users_threads_win_and_the_interface_is_loopback() -> None:
    fixed = pinned({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "eth0"}, "m")
    assert (fixed["OMP_NUM_THREADS"], fixed["MKL_NUM_THREADS"], fixed["OPENBLAS_NUM_THREADS"]) == ("4", "2", "4")
    assert (fixed["GLOO_SOCKET_IFNAME"], fixed["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


def test_nothing_of_an_outer_launcher_reaches_the_ranks() -> None:
    outer = {"RANK": "3", "MASTER_ADDR": "far", "TORCHELASTIC_RUN_ID": "x", "HOME": "/root", "OMP_NUM_THREADS": "8"}
    assert inherited(outer, {"OMP_NUM_THREADS": "1"}) == {"HOME": "/root", "OMP_NUM_THREADS": "1"}


def test_ranks_find_what_torchrun_would_have_set() -> None:
    assert group_variables(5, 8, 1, 4, 2900) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "2900",
    }


@pytest.mark.parametrize(("value", "threads"), [("4", 4), ("4,2", 4), (" 3 ", 3), ("0", 1), ("many", 1), ("", 1)])
def test_threads_are_read_as_openmp_reads_them(value: str, threads: int) -> None:
    assert thread_count({"OMP_NUM_THREADS": value}) == threads


def test_only_what_python_searches_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", Path("/b"), ""])
    assert search_path() == ("/a", "")
