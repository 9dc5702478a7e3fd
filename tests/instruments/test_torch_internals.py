from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pytest_ddpperf.instruments.torch_internals import activity_of, pci_id


def test_an_event_that_tells_is_believed() -> None:
    assert activity_of(SimpleNamespace(activity_type=lambda: "gpu_memset")) == "gpu_memset"


@pytest.mark.parametrize(
    ("name", "device", "annotation", "activity"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "CUDA", False, "gpu_memcpy"),
        ("Memset (Device)", "CUDA", False, "gpu_memset"),
        ("void at::native::reduce_kernel<512>", "CUDA", False, "kernel"),
        ("nccl:all_reduce", "CUDA", True, "gpu_user_annotation"),
        ("ddpperf_step", "CPU", True, "user_annotation"),
        ("aten::add", "CPU", False, "cpu_op"),
    ],
)
def test_an_older_torch_lets_it_be_inferred(name: str, device: str, annotation: bool, activity: str) -> None:  # noqa: FBT001  a case
    where = SimpleNamespace(name=device)
    event = SimpleNamespace(name=lambda: name, device_type=lambda: where, is_user_annotation=lambda: annotation)
    assert activity_of(event) == activity


PROPERTIES = SimpleNamespace(pci_domain_id=0x10, pci_bus_id=0xDC, pci_device_id=2)


def test_a_gpu_has_the_id_that_nvidias_tools_write() -> None:
    assert pci_id(PROPERTIES) == "0010:dc:02.0"


def test_where_torch_does_not_tell_or_nvidia_does_not_know_the_gpu_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pci_id(SimpleNamespace()) is None
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert pci_id(PROPERTIES) is None
