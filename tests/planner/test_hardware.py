from __future__ import annotations

import pytest

from pytest_ddpperf import settings
from pytest_ddpperf.planner.hardware import ACCELERATORS, CLUSTERS, HARDWARE, link_of


@pytest.mark.parametrize(
    ("device", "name", "link"),
    [
        ("cpu", "NVIDIA H100 80GB HBM3", None),
        ("cuda", "NVIDIA H100 80GB HBM3", "nvlink4"),
        ("cuda", "NVIDIA A100-SXM4-80GB", "nvlink3"),
        ("cuda", "NVIDIA H100 PCIe", "pcie5"),
        ("cuda", "NVIDIA H800 PCIe", "pcie5"),
        ("cuda", "NVIDIA L4", "pcie4"),
        ("cuda", "NVIDIA L40S", "pcie4"),  # its datasheet: PCIe Gen4 x16
        ("cuda", "NVIDIA H200", "nvlink4"),
        ("cuda", "NVIDIA GH200 480GB", "nvlink4"),
        ("cuda", "Tesla V100-SXM2-16GB", None),
    ],
)
def test_the_link_follows_from_the_gpu(device: str, name: str, link: str | None) -> None:
    assert link_of(device, [name]) == link


@pytest.mark.parametrize(
    ("words", "latency"), [(("nvlink",), 3.4e-6), (("pcie",), 5.7e-6), (("infiniband", "ethernet"), 14e-6)]
)
def test_the_latency_of_a_link_follows_nccls_model(words: tuple[str, ...], latency: float) -> None:
    """NCCL, src/graph/tuning.cc: hwLat of the ring with the protocol Simple, for NVLink, PCI and NET."""
    found = {link.latency for name, link in HARDWARE.items() if name.startswith(words)}
    assert found == {latency}


def test_links_and_clusters_have_the_bandwidths_of_their_standards() -> None:
    assert HARDWARE["infiniband400"].bandwidth == 400e9 / 8
    assert HARDWARE["ethernet100"].bandwidth == 100e9 / 8
    assert HARDWARE["ethernet10"].bandwidth == 10e9 / 8
    assert HARDWARE["ethernet1"].bandwidth == 1e9 / 8
    assert HARDWARE["pcie4"].bandwidth == pytest.approx(16e9 * 16 / 8 * 128 / 130, rel=1e-3)
    assert HARDWARE["pcie5"].bandwidth == pytest.approx(32e9 * 16 / 8 * 128 / 130, rel=1e-3)
    assert all({*links} <= HARDWARE.keys() for links in CLUSTERS.values())
    assert CLUSTERS["pcie-ethernet1"] == ("pcie4", "ethernet1")


def test_settings_list_all_known_clusters_and_accelerators() -> None:
    assert (tuple(CLUSTERS), tuple(ACCELERATORS)) == (settings.CLUSTERS, settings.ACCELERATORS)
