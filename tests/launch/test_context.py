"""What follows from a machine's GPUs and torch; no GPU is needed to tell."""

from __future__ import annotations

import re

import pytest

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.launch.context import Placement, TorchMachine, place
from pytest_ddpperf.launch.launcher import Launcher

CPU_BUILD = TorchMachine(torch="2.13.0+cpu", cuda=None, gpus=(), nccl=False, backends=("gloo",))
NO_GPU = TorchMachine(torch="2.13.0+cu130", cuda="13.0", gpus=(), nccl=True, backends=("gloo", "nccl"))
TWO_GPUS = TorchMachine(torch="2.13.0+cu130", cuda="13.0", gpus=("H200", "H200"), nccl=True, backends=("gloo", "nccl"))


@pytest.mark.parametrize(
    ("device", "backend", "world_size", "machine", "expected"),
    [
        ("auto", "auto", 4, CPU_BUILD, Placement("cpu", "gloo")),
        ("auto", "auto", 4, NO_GPU, Placement("cpu", "gloo")),
        ("auto", "auto", 2, TWO_GPUS, Placement("cuda", "nccl")),
        ("auto", "auto", 3, TWO_GPUS, Placement("cuda", "gloo")),  # more ranks than GPUs: NCCL would refuse
        ("cuda", "gloo", 2, TWO_GPUS, Placement("cuda", "gloo")),
        ("cpu", "auto", 2, TWO_GPUS, Placement("cpu", "gloo")),
        ("auto", "nccl", 1, TWO_GPUS, Placement("cuda", "nccl")),
    ],
)
def test_auto_takes_the_gpus_where_they_suffice(
    device: str, backend: str, world_size: int, machine: TorchMachine, expected: Placement
) -> None:
    assert place(device, backend, world_size, machine) == expected


@pytest.mark.parametrize(
    ("device", "backend", "world_size", "machine", "message"),
    [
        ("auto", "nccl", 2, CPU_BUILD, r"backend 'nccl' needs a GPU, and torch 2\.13\.0\+cpu was built without CUDA"),
        ("cuda", "auto", 2, NO_GPU, r"device 'cuda' needs a GPU, and torch 2\.13\.0\+cu130 sees none; .*'gloo'"),
        ("cuda", "nccl", 3, TWO_GPUS, r"a GPU for each rank, and 3 ranks have 2; use fewer ranks, or backend 'gloo'"),
    ],
)
def test_what_the_machine_lacks_is_one_line_with_a_cure(
    device: str, backend: str, world_size: int, machine: TorchMachine, message: str
) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        place(device, backend, world_size, machine)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "backend", "world_size", "message"),
    [
        ("tpu", "auto", 1, "device 'tpu' is not known; it takes one of auto, cpu, cuda"),
        ("auto", "mpi", 1, "backend 'mpi' is not known; it takes one of auto, gloo, nccl"),
        ("cpu", "nccl", 1, "'nccl' moves GPU tensors only"),
        ("auto", "auto", 0, "world_size 0 is no number of ranks; it takes an integer of at least 1"),
        ("auto", "auto", True, "world_size True"),
    ],
)
def test_what_no_machine_could_do_is_a_setting_error(device: str, backend: str, world_size: int, message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)), Launcher() as launcher:
        launcher.run(print, device=device, backend=backend, world_size=world_size)


def test_the_machine_is_described_by_torch_itself(launcher: Launcher) -> None:
    import torch

    machine = launcher.machine()
    assert (machine.torch, machine.cuda) == (str(torch.__version__), torch.version.cuda)
    assert len(machine.gpus) == torch.cuda.device_count()
    assert "gloo" in machine.backends
