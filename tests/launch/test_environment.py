"""Which variables ranks see, as pure functions of the controller's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddpperf.launch.environment import (
    group_variables,
    inherited,
    pinned,
    read_at_import,
    search_path,
    thread_count,
)


def test_a_rank_has_one_thread_unless_the_user_sets_more_and_its_interface_is_loopback() -> None:
    fixed = pinned({}, "m")
    assert {fixed[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"1"}
    fixed = pinned({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "eth0"}, "m")
    assert (fixed["OMP_NUM_THREADS"], fixed["MKL_NUM_THREADS"], fixed["OPENBLAS_NUM_THREADS"]) == ("4", "2", "4")
    assert (fixed["GLOO_SOCKET_IFNAME"], fixed["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


def ranks(outer: dict[str, str], fixed: dict[str, str]) -> dict[str, str]:
    """The variables of ranks but those of NCCL."""
    return {name: text for name, text in inherited(outer, fixed).items() if not name.startswith("NCCL_")}


def test_nothing_of_an_outer_launcher_reaches_the_ranks() -> None:
    outer = {"RANK": "3", "MASTER_ADDR": "far", "TORCHELASTIC_RUN_ID": "x", "HOME": "/root", "OMP_NUM_THREADS": "8"}
    assert ranks(outer, {"OMP_NUM_THREADS": "1"}) == {"HOME": "/root", "OMP_NUM_THREADS": "1"}


def test_no_task_of_slurm_or_mpi_reaches_the_ranks() -> None:
    of_slurm = ("PROCID", "LOCALID", "NODEID", "NTASKS", "STEP_ID", "TASKS_PER_NODE", "TASK_PID", "NPROCS")
    task = [*(f"SLURM_{name}" for name in of_slurm), "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"]
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}
    assert ranks({**dict.fromkeys(task, "0"), **job}, {}) == job


def test_ranks_have_the_variables_that_torchrun_would_set() -> None:
    found = group_variables(5, 8, 2900, local=(1, 4), node=1, nodes=2)
    place = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "ROLE_RANK": "5"}
    group = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "8", "ROLE_NAME": "default"}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2900"}
    elastic = {"RUN_ID": "ddpperf", "RESTART_COUNT": "0", "MAX_RESTARTS": "0", "USE_AGENT_STORE": "True"}
    assert found == place | group | store | {f"TORCHELASTIC_{name}": text for name, text in elastic.items()}


@pytest.mark.parametrize(("value", "threads"), [("4", 4), ("4,2", 4), (" 3 ", 3), ("0", 1), ("many", 1), ("", 1)])
def test_threads_are_read_as_openmp_reads_them(value: str, threads: int) -> None:
    assert thread_count({"OMP_NUM_THREADS": value}) == threads


def test_only_path_entries_that_python_searches_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", Path("/b"), ""])
    assert search_path() == ("/a", "")


def test_nccl_prints_warnings_and_uses_no_network_unless_the_user_asks_for_one() -> None:
    assert inherited({}, {}) == {"NCCL_DEBUG": "WARN", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
    for name in ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN"):
        assert inherited({name: "x", "NCCL_DEBUG": "INFO"}, {}) == {name: "x", "NCCL_DEBUG": "INFO"}


def test_variables_that_count_when_torch_is_loaded_are_known() -> None:
    early = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "TORCH_CUDNN_V8_API_DISABLED"]
    early += ["TORCHINDUCTOR_COMPILE_THREADS", "TORCHDYNAMO_VERBOSE", "KINETO_USE_DAEMON"]
    late = ("TORCHELASTIC_RUN_ID", "TORCHINDUCTOR_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "OMP_NUM_THREADS")
    found = read_at_import({**dict.fromkeys((*early, *late, "PATH"), "x"), **pinned({}, "m")})
    assert found == dict.fromkeys(early, "x")
