"""The environment variables of ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pytest_ddpperf.errors import LaunchError, SettingError

Variables: TypeAlias = "tuple[tuple[str, str], ...]"
"""Environment variables that ``env=`` gives the ranks of a call, as sorted pairs of name and value."""


def group_variables(
    rank: int, world_size: int, port: int, *, local: tuple[int, int], node: int = 0, nodes: int = 1
) -> dict[str, str]:
    """Returns the variables that torchrun would set on this rank; ``local`` has local rank and local world size."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local[0]),
        "LOCAL_WORLD_SIZE": str(local[1]),
        "MASTER_ADDR": "127.0.0.1",  # a node without rank 0 forwards connections to the node of rank 0
        "MASTER_PORT": str(port),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_RUN_ID": "ddpperf",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # a store listens at the port above, also for a group made anew
    }


LAUNCHER_VARIABLES = frozenset(group_variables(0, 1, 0, local=(0, 1)))
TASK_VARIABLES = re.compile(
    r"TORCHELASTIC_|OMPI_COMM_WORLD_|PMI_|PMIX_|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|TASK|STEP_)"
)
"""Matches variables with which torchrun, srun or mpirun number or count a job's tasks, but not the job's name."""
MARK = "PYTEST_DDPPERF_ZYGOTE"
"""The environment variable with the id of a process's fork server, by which processes that outlive it are found."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def pinned(environ: Mapping[str, str], mark: str) -> dict[str, str]:
    """Returns the variables that must be set before torch is imported; ``mark`` identifies the fork server.

    Unless the user sets another number, a rank has one thread, as with torchrun. Unless the user sets another hash
    seed, strings have the same hashes in all launches. Ranks of one machine talk over loopback, without a network.
    """
    threads = environ.get("OMP_NUM_THREADS") or "1"
    return {
        **{name: environ.get(name) or threads for name in THREADS},
        "PYTHONHASHSEED": environ.get("PYTHONHASHSEED") or "0",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        MARK: mark,
        **dict.fromkeys(INTERFACES, "lo"),  # also if the user's cluster sets another: these ranks are on one machine
    }


_READ_AT_IMPORT = re.compile(
    r"(?!\w+_CACHE_DIR$)(?:PYTORCH_(?!NVML_)|TORCH(?!ELASTIC_)|KINETO_|TRITON_|CUBLAS|CUDNN_|CUDA_LAUNCH_BLOCKING$"
    r"|(?:OMP|MKL|OPENBLAS)_(?!NUM_THREADS$)|KMP_|GOMP_|DNNL_|ONEDNN_|ATEN_|LD_|MALLOC_|GLIBC_TUNABLES$)"
)
"""Variables that torch and its libraries read when they are loaded, such as PYTORCH_CUDA_ALLOC_CONF."""

_OWNED = frozenset({*LAUNCHER_VARIABLES, *pinned({}, "").keys() - {*THREADS, "PYTHONHASHSEED"}, *VISIBLE})
"""Variables that ``env=`` may not set: the plugin sets them for ranks, or has chosen devices by them."""


def require_free(variables: Variables) -> None:
    """Raises SettingError if the user sets a variable that the plugin sets, or that Python reads before ranks fork."""
    for name, _ in variables:
        if name in _OWNED or TASK_VARIABLES.match(name):
            raise SettingError(f"env={{{name!r}: ...}}: the plugin sets {name} for ranks; leave {name} out")
        if name.startswith("PYTHON"):
            raise SettingError(f"env={{{name!r}: ...}}: Python reads {name} at start; set {name} before pytest starts")


def read_at_import(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables in ``environ`` that torch reads when it is imported, before ranks are forked."""
    return {name: text for name, text in environ.items() if _READ_AT_IMPORT.match(name)}


def inherited(environ: Mapping[str, str], fixed: Mapping[str, str], interface: str = "") -> dict[str, str]:
    """Returns the environment of ranks: ``environ`` without launchers' variables, plus NCCL's defaults and ``fixed``.

    Lightning, Accelerate and DeepSpeed would take the variables of a Slurm or MPI task for the rank's. ``interface`` is
    the network interface for ranks of several nodes, unless the user sets an interface.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in LAUNCHER_VARIABLES and not TASK_VARIABLES.match(name)
    }
    defaults = {"NCCL_DEBUG": "WARN"}  # it says what goes wrong
    if not interface:
        if not {"NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN"} & environ.keys():
            # On one machine NCCL then probes no InfiniBand and no plugin, unless the user asks for that.
            defaults |= {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
        return {**defaults, **kept, **fixed}
    chosen = {name: environ.get(name) or interface for name in INTERFACES}
    return {**defaults, **kept, **fixed, **chosen}


def thread_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables in ``environ`` that set the number of threads of a rank."""
    return {name: environ[name] for name in THREADS if name in environ}


def late_threads(environ: Mapping[str, str], threads: Mapping[str, str]) -> str:
    """Returns a warning if the thread counts in ``environ`` differ from the ranks' (``threads``); else empty."""
    late = [name for name in THREADS if environ.get(name) != threads.get(name)]
    if not late:
        return ""
    return (
        f"{late[0]} became {environ.get(late[0], 'unset')} after the first launch, but ranks keep its earlier value, "
        f"{threads.get(late[0], 'unset')}: set it before pytest starts, or give env= to the call"
    )


def thread_count(environ: Mapping[str, str]) -> int:
    """Returns the number of OpenMP threads of a rank, which is the first number in OMP_NUM_THREADS."""
    found = re.match(r"\s*(\d+)", environ.get("OMP_NUM_THREADS", ""))
    return max(1, int(found[1])) if found else 1


def search_path() -> tuple[str, ...]:
    """Returns this process's ``sys.path`` without entries that are not strings, because Python ignores them."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))


def current_folder() -> str:
    """Returns the current folder, in which ranks start; raises LaunchError if it was removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise LaunchError("the current folder was removed; run pytest in a folder that exists") from None
