"""What torch finds in this machine, and the device and backend that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError, SettingError

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext

DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")


@dataclass(frozen=True)
class TorchMachine:
    """Facts found by a rank, so that the controller needs no torch and no CUDA context.

    Attributes:
        torch: full version, e.g. ``2.13.0+cpu``.
        cuda: the CUDA version that torch was built for; None for a CPU build.
        gpus: names of the visible GPUs, in order.
        nccl: whether this torch has the NCCL backend.
        backends: the process group backends that this torch was built with.
    """

    torch: str
    cuda: str | None
    gpus: tuple[str, ...]
    nccl: bool
    backends: tuple[str, ...]


@dataclass(frozen=True)
class Placement:
    """Where ranks compute and how they talk: nothing is ``auto`` any more."""

    device: str
    backend: str


def probe(_: RankContext) -> TorchMachine:
    """The facts of this machine, found on a rank."""
    import torch
    import torch.distributed as dist

    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    found = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    backends = tuple(name for name, available in found.items() if available)
    return TorchMachine(str(torch.__version__), torch.version.cuda, gpus, found["nccl"], backends)


def check_names(device: str, backend: str, world_size: int) -> None:
    """Refuse what no machine could do.

    Raises:
        SettingError: an unknown device or backend, a combination that does not exist, or no rank at all.
    """
    if device not in DEVICES:
        raise SettingError(f"device {device!r} is not known; it takes one of {', '.join(DEVICES)}")
    if backend not in BACKENDS:
        raise SettingError(f"backend {backend!r} is not known; it takes one of {', '.join(BACKENDS)}")
    if device == "cpu" and backend == "nccl":
        raise SettingError("backend 'nccl' moves GPU tensors only; with device 'cpu' use backend 'gloo'")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise SettingError(f"world_size {world_size!r} is no number of ranks; it takes an integer of at least 1")


def place(device: str, backend: str, world_size: int, machine: TorchMachine) -> Placement:
    """The device and backend of ``world_size`` ranks: CUDA where there is a GPU, NCCL where each has its own.

    Raises:
        SettingError: see ``check_names``.
        LaunchError: the machine has not what was asked for; the message says what to ask instead.
    """
    check_names(device, backend, world_size)
    count = len(machine.gpus)
    if device == "auto":
        device = "cuda" if count or backend == "nccl" else "cpu"
    if device == "cuda" and not count:
        asked = "backend 'nccl'" if backend == "nccl" else "device 'cuda'"
        built = "sees none" if machine.cuda else "was built without CUDA"
        cure = "backend 'gloo' and device 'cpu' run anywhere"
        raise LaunchError(f"{asked} needs a GPU, and torch {machine.torch} {built}; {cure}")
    if backend == "auto":
        backend = "nccl" if device == "cuda" and machine.nccl and world_size <= count else "gloo"
    if backend == "nccl" and world_size > count:
        raise LaunchError(
            f"backend 'nccl' needs a GPU for each rank, and {world_size} ranks have {count}; "
            "use fewer ranks, or backend 'gloo'"
        )
    if backend not in machine.backends:
        raise LaunchError(f"torch {machine.torch} was built without {backend}; it has {', '.join(machine.backends)}")
    return Placement(device, backend)
