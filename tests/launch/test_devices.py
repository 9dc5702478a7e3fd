"""What CUDA can use, by a torch that plays the driver's part."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.launch.context import Gpus, RankContext
from pytest_ddpperf.launch.devices import find_gpus
from pytest_ddpperf.launch.messages import Job
from pytest_ddpperf.launch.rank import _join

if TYPE_CHECKING:
    from collections.abc import Callable

TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020). "
    "(Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
)
BUSY = (
    "CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be asynchronously reported"
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets torch find devices; a text is the driver's complaint, as a warning or as an exception."""

    def play(devices: list[SimpleNamespace], *, warns: str = "", raises: str = "") -> None:
        import torch

        def count() -> int:
            if warns:
                warnings.warn(warns, stacklevel=2)
            return len(devices)

        def properties(number: int) -> Any:
            if raises:
                raise RuntimeError(raises)
            return devices[number]

        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", count, raising=False)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)  # as NVML counts

    return play


def device(name: str, **address: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, **address)


def test_devices_are_those_that_cuda_can_use_whatever_nvml_counts(driver: Callable[..., None]) -> None:
    driver([device("NVIDIA A100 MIG 1g.5gb", pci_domain_id=1, pci_bus_id=0xC1, pci_device_id=2)])
    assert Gpus(**find_gpus()) == Gpus(names=("NVIDIA A100 MIG 1g.5gb",), pci=("00000001:C1:02.0",))


def test_an_address_that_torch_does_not_tell_is_unknown(driver: Callable[..., None]) -> None:
    driver([device("old")])
    assert Gpus(**find_gpus()) == Gpus(names=("old",), pci=(None,))


def test_a_machine_without_a_gpu_has_no_error(driver: Callable[..., None]) -> None:
    driver([])
    assert Gpus(**find_gpus()) == Gpus()


def test_a_driver_that_fails_says_why(driver: Callable[..., None]) -> None:
    driver([], warns=TOO_OLD)
    assert Gpus(**find_gpus()) == Gpus(error="The NVIDIA driver on your system is too old (found version 12020).")


def test_a_device_that_fails_says_why(driver: Callable[..., None]) -> None:
    driver([device("H200")], raises=BUSY)
    assert Gpus(**find_gpus()) == Gpus(error="CUDA error: all CUDA-capable devices are busy or unavailable")


def joined(monkeypatch: pytest.MonkeyPatch, rank: int, gpus: Gpus) -> tuple[str | None, list[str]]:
    """What a rank on CUDA is shown, and the devices that it makes its own."""
    import os
    import sys

    import torch

    used: list[str] = []
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: used.append(str(one)))
    job = Job(
        call=b"", world_size=4, device="cuda", group=None, mode=None, timeout=1.0, environ={}, path=(*sys.path,),
        directory=".", gpus=gpus,
    )  # fmt: skip
    context, _ = _join(job, rank, None)
    assert isinstance(context, RankContext)
    used.append(str(context.device))
    return os.environ.get("CUDA_VISIBLE_DEVICES"), used


def test_ranks_are_dealt_out_on_the_devices_that_the_controller_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(names=("H200",) * 3)
    assert joined(monkeypatch, 2, gpus) == (None, ["cuda:2", "cuda:2"])
    assert joined(monkeypatch, 3, gpus) == (None, ["cuda:0", "cuda:0"])


def test_a_rank_is_shown_its_own_instance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(names=("A100 MIG",) * 2, instances=("MIG-a", "MIG-b"))
    assert joined(monkeypatch, 1, gpus) == ("MIG-b", ["cuda:0", "cuda:0"])
    assert joined(monkeypatch, 2, gpus) == ("MIG-a", ["cuda:0", "cuda:0"])
