"""The device and backend that ranks get, and the context that functions on ranks see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.instruments.phases.recorder import Section

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.records.measurement import Mode


@dataclass(frozen=True)
class RankContext:
    """The first argument of every function on a rank. The default process group is already initialised.

    The same function runs on the ranks of one controller or of many.

    Attributes:
        rank: the global rank, from 0 to ``world_size`` - 1.
        world_size: the number of ranks.
        local_rank: the rank's number among those of its controller.
        local_world_size: the number of ranks of its controller.
        device: the device that this rank computes on; a CUDA device is also the current device.
        backend: ``gloo`` or ``nccl``.
        mode: ``weak`` or ``strong`` at a point of a scaling curve; None for a plain benchmark.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    backend: str
    mode: Mode | None

    def phase(self, name: str) -> Section:
        """Mark a part of the step: the report shows its time and memory under ``name``.

        Sections may be nested, and entered many times in a step. A section with the name of a phase (``data_wait``,
        ``forward``, ``backward``, ``gradient_sync``, ``optimizer``) marks that phase in code where the plugin does not
        recognise it. In timed steps a section does nothing, at no measurable cost.

        Args:
            name: the name of the section.

        Returns:
            A context manager.
        """
        return Section(name)


DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchMachine:
    """Facts that a rank has found, so that the controller needs no torch and no CUDA context."""

    torch: str  # full version, e.g. 2.13.0+cpu
    cuda: str | None  # the version that torch was built for; None for a CPU build
    gpus: tuple[str, ...]  # names of the visible ones, in order
    nccl: bool
    backends: tuple[str, ...]  # of process groups, that this torch was built with


@dataclass(frozen=True)
class Placement:
    """The device and backend of ranks; neither is ``auto``."""

    device: str
    backend: str


def probe(_: RankContext) -> TorchMachine:
    """Ask torch, on a rank, for the facts of this machine."""
    import torch
    import torch.distributed as dist

    gpus = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    found = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    backends = tuple(name for name, available in found.items() if available)
    return TorchMachine(
        torch=str(torch.__version__), cuda=torch.version.cuda, gpus=gpus, nccl=found["nccl"], backends=backends
    )


def check_names(device: str, backend: str, world_size: int) -> None:
    """Raise SettingError for a device, backend or world size that no machine could have."""
    if device not in DEVICES:
        raise SettingError(f"device {device!r} is not known; it takes one of {', '.join(DEVICES)}")
    if backend not in BACKENDS:
        raise SettingError(f"backend {backend!r} is not known; it takes one of {', '.join(BACKENDS)}")
    if device == "cpu" and backend == "nccl":
        raise SettingError("backend 'nccl' moves GPU tensors only; with device 'cpu' use backend 'gloo'")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise SettingError(f"world_size {world_size!r} is no number of ranks; it takes an integer of at least 1")


def place(device: str, backend: str, world_size: int, machine: TorchMachine) -> Placement:
    """Choose CUDA where there is a GPU, and NCCL where each rank has its own."""
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
