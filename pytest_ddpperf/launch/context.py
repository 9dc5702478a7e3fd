"""The context that functions on ranks receive, and the choice of the ranks' device and backend."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError, RankSkipped, SettingError
from pytest_ddpperf.instruments.phases.recorder import Section
from pytest_ddpperf.instruments.torch_internals import gpu_software, pci_id

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_ddpperf.records.measurement import Mode


@dataclass(frozen=True)
class RankContext:
    """The first argument of every function that runs on a rank. The default process group is already initialised.

    The same function runs on the ranks of one node or of many.

    Attributes:
        rank: the global rank, from 0 to ``world_size`` - 1.
        world_size: the number of ranks.
        local_rank: the rank's number on its node.
        local_world_size: the number of ranks on its node.
        device: the device that this rank computes on; a CUDA device is also the current device.
        backend: ``gloo`` or ``nccl``.
        mesh: the device mesh that the setting ``mesh`` describes; None without that setting.
        mode: ``weak`` or ``strong`` in a benchmark of scaling to more ranks; None in any other benchmark.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    backend: str
    mode: Mode | None
    mesh: DeviceMesh | None = None

    def phase(self, name: str) -> Section:
        """Marks a part of the step, called a section: the report shows its time and memory under ``name``.

        Sections may be nested, and entered many times in a step. A section with the name of a phase (``data_wait``,
        ``forward``, ``backward``, ``gradient_sync``, ``optimizer``) marks that phase in code where the plugin does not
        recognise it. Times and memory come from separate steps: in timed steps a section does nothing.

        Args:
            name: the name of the section.

        Returns:
            A context manager.
        """
        return Section(name)


DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")
_AROUND = r"^CUDA initialization: |Unexpected error from .*\? (?=Error \d)|\s*\(Triggered internally.*|\n.*"
_INTERNALS = re.compile(_AROUND, re.DOTALL)  # matches what torch adds to the driver's message
PACKAGES = ("numpy", "triton", "transformers", "accelerate", "lightning")  # whose versions are recorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """The GPUs of a machine, in CUDA's order. If ``instances`` names MIG instances, each rank sees one instance."""

    names: tuple[str, ...] = ()
    pci: tuple[str | None, ...] = ()  # PCI ids, such as 0000:c1:00.0; None if torch does not say
    instances: tuple[str, ...] = ()
    error: str = ""  # why CUDA can use none of the GPUs that are present

    def has_one_each(self, ranks: int) -> bool:
        """Returns whether NCCL finds a separate GPU for each rank. Two MIG instances of one GPU count as one GPU."""
        known = [address for address in self.pci[:ranks] if address is not None]
        return ranks <= len(self.names) and len(set(known)) == len(known)


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchMachine:
    """The torch build and the GPUs of a machine. A rank finds them, because pytest's process does not import torch."""

    torch: str  # full version, e.g. 2.13.0+cpu
    cuda: str | None  # the version of CUDA, or of ROCm's HIP, that torch was built for; None for a CPU build
    gpus: Gpus  # none if the rank was not asked to look for them
    backends: tuple[str, ...]  # backends of process groups in this build of torch
    gpu_software: Mapping[str, str] = field(default_factory=dict)  # versions and the allocator, by name
    packages: Mapping[str, str] = field(default_factory=dict)  # versions of other packages that training may use


@dataclass(frozen=True)
class Placement:
    """The device and the backend of a launch's ranks, after ``auto`` was resolved."""

    device: str
    backend: str
    remark: str = ""  # why ranks are on the CPU although there is a GPU


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Returns the version of each installed package in ``packages``, by name, without importing the packages."""
    from importlib.metadata import distributions

    found = ((name, next(iter(distributions(name=name)), None)) for name in packages)
    return {name: package.version for name, package in found if package is not None}


def find_gpus() -> Gpus:
    """Returns the GPUs that CUDA can use. Initialises CUDA, so this process must not fork ranks later."""
    import torch

    count = getattr(torch._C, "_cuda_getDeviceCount", None)  # noqa: SLF001  device_count() asks NVML, which shows more
    if count is None:
        return Gpus()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = [torch.cuda.get_device_properties(number) for number in range(count())]
        except Exception as error:  # noqa: BLE001  the report has the words of the driver
            return Gpus(error=_INTERNALS.sub("", str(error)))
    if not found:  # without a warning, there is none
        return Gpus(error="; ".join(_INTERNALS.sub("", str(warning.message)) for warning in said))
    return Gpus(names=tuple(str(one.name) for one in found), pci=tuple(map(pci_id, found)))


def probe(_: RankContext, gpus: bool) -> TorchMachine:  # noqa: FBT001  ranks take no keywords
    """Returns this machine's torch build; with ``gpus`` also its GPUs, which loads the driver. Runs on a rank."""
    import torch
    import torch.distributed as dist

    shown = find_gpus() if gpus else Gpus()
    found = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    return TorchMachine(
        torch=str(torch.__version__),
        cuda=torch.version.cuda or torch.version.hip,
        gpus=shown,
        backends=tuple(name for name, available in found.items() if available),
        gpu_software=gpu_software() if shown.names else {},
        packages=versions(PACKAGES),
    )


def find_machine(environ: Mapping[str, str], ask: Callable[[Gpus, int], Sequence[TorchMachine]]) -> TorchMachine:
    """Returns this machine's torch build and GPUs. ``ask`` starts one rank, or one per MIG instance, to find them."""
    (found,) = ask(Gpus(), 1)
    names = tuple(name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    if len(found.gpus.names) != 1 or len(names) == 1 or not all(name.startswith("MIG-") for name in names):
        return found
    each = zip(names, ask(Gpus(instances=names), len(names)), strict=True)
    usable = [(name, one.gpus.names[0], one.gpus.pci[0]) for name, one in each if one.gpus.names]
    instances, models, addresses = zip(*(usable or [(names[0], found.gpus.names[0], found.gpus.pci[0])]), strict=True)
    return replace(found, gpus=Gpus(names=models, pci=addresses, instances=instances))


def place(device: str, backend: str, world_size: int, machine: TorchMachine) -> Placement:
    """Resolves ``auto``: the device is CUDA if there is a GPU; the backend is NCCL if each rank has a separate GPU.

    Raises:
        LaunchError: torch can use no GPU, or was built without the backend.
        RankSkipped: the user chose NCCL, and there are fewer GPUs than ranks.
        SettingError: the user chose NCCL on the CPU.
    """
    if device == "cpu" and backend == "nccl":
        raise SettingError("backend=nccl needs GPU tensors, and device=cpu makes none; use backend=gloo")
    gpus, count, remark = machine.gpus, len(machine.gpus.names), ""
    if device == "auto" and gpus.error:
        remark = f"device=auto chose the CPU, because torch {machine.torch} can use no GPU: {gpus.error}"
    if device == "auto":
        device = "cuda" if count or backend == "nccl" else "cpu"
    if device == "cuda" and not count:
        asked = "backend=nccl" if backend == "nccl" else "device=cuda"
        built = f"can use none ({gpus.error}; nvidia-smi shows more)" if gpus.error else "sees none"
        built = built if machine.cuda else "was built without CUDA"
        cure = "to run without a GPU, use backend=gloo and device=cpu"
        raise LaunchError(f"{asked} needs a GPU, and torch {machine.torch} {built}; {cure}")
    if backend == "auto":
        one_each = device == "cuda" and gpus.has_one_each(world_size)
        backend = "nccl" if one_each and "nccl" in machine.backends else "gloo"
    if backend == "nccl" and not gpus.has_one_each(world_size):
        mig = " (NCCL counts MIG instances of a GPU as one)" * any(" MIG " in name for name in gpus.names)
        reason = f"backend=nccl needs a GPU for each rank, and {world_size} ranks have {count}{mig}"
        raise RankSkipped(f"{reason}; use fewer ranks, or backend=gloo, with which ranks share GPUs")
    if backend not in machine.backends:
        raise LaunchError(f"torch {machine.torch} was built without {backend}; it has {', '.join(machine.backends)}")
    return Placement(device, backend, remark)
