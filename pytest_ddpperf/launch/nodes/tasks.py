"""Reads from the environment whether torchrun, srun or mpirun started this process as one of several tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One of several processes that torchrun, srun or mpirun started by one command; rank 0 is the controller."""

    launcher: str  # torchrun, srun or mpirun
    rank: int
    size: int
    local_rank: int  # the number among the tasks of a machine; the rank if unknown
    one_node: bool  # whether all tasks are known to be on one machine
    run: str  # a name that no other run of the user on this machine has
    restarts: int = 0

    @property
    def controls(self) -> bool:
        """Returns whether this task is the controller, which runs the tests and writes the files."""
        return self.rank == 0


def task_of(environ: Mapping[str, str], *, terminal: bool = False) -> Task | None:
    """Returns the task that this process is, or None if it is not one of several tasks.

    torchrun and mpirun take precedence over srun, because they may run inside of srun. ``terminal``: whether this
    process prints to a terminal. If so, srun is ignored, because an interactive shell (``--pty``) has the variables of
    a task although srun started only one process.
    """
    readers = (_torchrun, _open_mpi, _mpich, _srun)  # mpirun and torchrun run inside of a step of srun
    found = next(filter(None, (read(environ) for read in readers)), None)
    return None if found is None or (terminal and found.launcher == "srun") else found


def _number(environ: Mapping[str, str], name: str, otherwise: int = -1) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def _task(environ: Mapping[str, str], names: Sequence[str], launcher: str, run: str, restarts: int = 0) -> Task | None:
    """Reads rank, world size, local rank and local world size from the variables ``names``; None for a single task."""
    rank, size, local_rank, local_size = (_number(environ, name) for name in names)
    if size < 2 or not 0 <= rank < size:  # noqa: PLR2004  several
        return None
    return Task(
        launcher=launcher,
        rank=rank,
        size=size,
        local_rank=rank if local_rank < 0 else local_rank,
        one_node=local_size == size,
        run=run,
        restarts=restarts,
    )


def _torchrun(environ: Mapping[str, str]) -> Task | None:
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    # Runs of one machine may bear the same id; the port of the store is their own.
    run = f"{environ['TORCHELASTIC_RUN_ID']}-{environ.get('MASTER_PORT', '')}"
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return _task(environ, names, "torchrun", run, _number(environ, "TORCHELASTIC_RESTART_COUNT", 0))


def _srun(environ: Mapping[str, str]) -> Task | None:
    if "SLURM_STEP_ID" not in environ:
        return None
    run = f"{environ.get('SLURM_JOB_ID', '')}-{environ['SLURM_STEP_ID']}"
    tasks = "SLURM_STEP_NUM_TASKS"  # sbatch alone sets SLURM_NTASKS, too
    local = tasks if _number(environ, "SLURM_STEP_NUM_NODES") == 1 else ""
    return _task(environ, ("SLURM_PROCID", tasks, "SLURM_LOCALID", local), "srun", run)


def _open_mpi(environ: Mapping[str, str]) -> Task | None:
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    return _task(environ, names, "mpirun", environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", ""))


def _mpich(environ: Mapping[str, str]) -> Task | None:
    if "SLURM_STEP_ID" in environ and "MPI_LOCALRANKID" not in environ:  # srun sets the variables of PMI for MPI
        return None
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    one_node = environ.get("MPI_LOCALNRANKS") == environ.get("PMI_SIZE")
    parent = f"of-{os.getppid()}" if one_node else "several-nodes"  # of all tasks of a run on one node
    return _task(environ, names, "mpirun", environ.get("I_MPI_HYDRA_UUID") or environ.get("PMI_JOBID") or parent)
