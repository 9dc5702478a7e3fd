"""Which launcher has started a process, and as which of its tasks."""

from __future__ import annotations

import pytest

from pytest_ddpperf.launch.nodes.tasks import task_of

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_PORT": "29500",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}
SRUN = {
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "PMIX_NAMESPACE": "77",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}
MPICH = {"PMI_JOBID": "kvs_1", "PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


def told(variables: dict[str, str], *, terminal: bool = False) -> tuple[object, ...] | None:
    task = task_of(variables, terminal=terminal)
    return None if task is None else (task.launcher, task.rank, task.size, task.local_rank, task.one_node, task.run)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, ("torchrun", 3, 4, 1, False, "none-29500")),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}, ("torchrun", 3, 4, 3, True, "none-29500")),
        (SRUN, ("srun", 2, 4, 0, False, "9-1")),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, ("srun", 2, 4, 0, True, "9-1")),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, ("srun", 2, 4, 0, False, "9-1")),
        (OPEN_MPI, ("mpirun", 1, 3, 1, True, "77")),
        (MPICH, ("mpirun", 0, 2, 0, True, "kvs_1")),
        (SRUN | TORCHRUN, ("torchrun", 3, 4, 1, False, "none-29500")),  # the innermost launcher counts
        (SRUN | OPEN_MPI, ("mpirun", 1, 3, 1, True, "77")),
        (OPEN_MPI | TORCHRUN, ("torchrun", 3, 4, 1, False, "none-29500")),
    ],
)
def test_a_task_is_read_from_its_launchers_variables(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    assert told(variables) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "2"},  # of a pod, which is one process on one machine
        {"SLURM_JOB_ID": "9", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # sbatch without srun
        {**MPICH, "PMI_SIZE": "many"},
        {**TORCHRUN, "RANK": "4"},
    ],
)
def test_a_process_that_is_alone_is_no_task(variables: dict[str, str]) -> None:
    assert task_of(variables) is None


def test_a_shell_of_srun_is_alone_and_a_restart_is_seen() -> None:
    """``srun --ntasks=4 --pty bash`` has one shell, with the variables of all tasks."""
    assert told(SRUN, terminal=True) is None
    task = task_of({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}, terminal=True)
    assert task is not None
    assert task.restarts == 2


def test_tasks_of_mpich_without_a_run_name_are_grouped_by_their_parent() -> None:
    nameless = {name: value for name, value in MPICH.items() if name != "PMI_JOBID"}
    first, second = task_of(nameless), task_of({**nameless, "PMI_RANK": "1"})
    assert first is not None
    assert second is not None
    assert first.run == second.run != ""
