"""Known links, clusters and accelerators, with the highest rates that they can reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpperf.metrics.figures import peak_flops
from pytest_ddpperf.planner.costs import Network

GB = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware(Network):
    """A type of link between ranks, such as NVLink; ``source`` cites where bandwidth and latency come from."""

    source: str


_NCCL = "latency of NCCL's model (src/graph/tuning.cc, hwLat, ring, Simple)"
HARDWARE: Mapping[str, Hardware] = {
    "nvlink4": Hardware(bandwidth=450e9, latency=3.4e-6, source=f"H100 SXM datasheet: 900 GB/s both ways; {_NCCL}"),
    "nvlink3": Hardware(bandwidth=300e9, latency=3.4e-6, source=f"A100 SXM datasheet: 600 GB/s both ways; {_NCCL}"),
    "pcie5": Hardware(bandwidth=63e9, latency=5.7e-6, source=f"PCI-SIG: 32 GT/s x 16 lanes x 128/130; {_NCCL}"),
    "pcie4": Hardware(bandwidth=31.5e9, latency=5.7e-6, source=f"PCI-SIG: 16 GT/s x 16 lanes x 128/130; {_NCCL}"),
    "infiniband400": Hardware(bandwidth=50e9, latency=14e-6, source=f"InfiniBand NDR: 400 Gbit/s; {_NCCL}"),
    "ethernet100": Hardware(bandwidth=12.5e9, latency=14e-6, source=f"IEEE 802.3ba: 100 Gbit/s; {_NCCL}"),
    "ethernet10": Hardware(bandwidth=1.25e9, latency=14e-6, source=f"IEEE 802.3ae: 10 Gbit/s; {_NCCL}"),
    "ethernet1": Hardware(bandwidth=0.125e9, latency=14e-6, source=f"IEEE 802.3ab: 1 Gbit/s; {_NCCL}"),
}
"""Links by name, with the largest bandwidth and the least latency that they can reach."""
CLUSTERS: Mapping[str, tuple[str, str]] = {
    "nvlink-infiniband400": ("nvlink4", "infiniband400"),
    "pcie-ethernet100": ("pcie4", "ethernet100"),
    "pcie-ethernet10": ("pcie4", "ethernet10"),
    "pcie-ethernet1": ("pcie4", "ethernet1"),
}
"""Clusters by name: the links inside a node, and between nodes."""


# Words of a GPU's name, in capitals, and its link to its neighbours; the first that fits counts.
_LINKS = (
    (("H100 PCIE", "H800 PCIE", "H100 NVL", "H200 NVL"), "pcie5"),
    (("H100", "H200", "H800", "GH200"), "nvlink4"),
    (("A100-SXM4", "A100 SXM4", "A800-SXM4"), "nvlink3"),
    (("A100-PCIE", "A100 PCIE", " L4", " T4", " A10", " A30", " A40", "RTX A"), "pcie4"),
)


def link_of(device: str, names: Sequence[str]) -> str | None:
    """Returns the kind of link between the GPUs of one machine, by the GPUs' ``names``; None on CPU, or if unknown."""
    if device != "cuda" or not names:
        return None
    name = names[0].upper()
    return next((link for words, link in _LINKS if any(word in name for word in words)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """The highest rates that a device can reach, and their source."""

    products: float  # FLOP/s of matrix products in fp32, as torch computes them by default: without TF32
    tf32_products: float  # FLOP/s of the same with TF32, dense
    low_products: float  # FLOP/s in bf16 and fp16, dense
    bandwidth: float  # bytes/s of its memory
    memory: float  # bytes
    source: str  # of its memory and bandwidth; ``peak_flops`` has those of products
    operator: float = 3e-6  # seconds that an operator takes at least

    def seconds(self, flops: float, moved: float, *, low: bool = False, tf32: bool = False) -> float:
        """Returns the seconds of an operator, by the roofline model (Williams, Waterman and Patterson 2009).

        The operator reads and writes ``moved`` bytes. ``low``: it computes in bf16 or fp16. ``tf32``: it may use TF32.
        """
        products = self.low_products if low else self.tf32_products if tf32 else self.products
        return max(self.operator, flops / products, moved / self.bandwidth)


def _known(model: str, bandwidth: float, memory: float, source: str) -> Accelerator:
    """Returns the accelerator that torch calls ``model``; ``source`` cites the document with bandwidth and memory."""
    fp32, tf32, half = (peak_flops(model, precision) for precision in ("fp32", "tf32", "bf16"))
    assert fp32 is not None and tf32 is not None and half is not None  # noqa: S101, PT018  all of them have these
    return Accelerator(
        products=fp32, tf32_products=tf32, low_products=half, bandwidth=bandwidth, memory=memory, source=source
    )


ACCELERATORS: Mapping[str, Accelerator] = {
    "h200": _known("NVIDIA H200", 4.8e12, 141 * GB, "H200 SXM datasheet"),
    "h100": _known("NVIDIA H100 80GB HBM3", 3.35e12, 80 * GB, "H100 SXM datasheet"),
    "a100": _known("NVIDIA A100-SXM4-80GB", 2.039e12, 80 * GB, "A100 80GB SXM datasheet"),
    "l4": _known("NVIDIA L4", 300e9, 24 * GB, "L4 datasheet"),
}
"""Accelerators by name, with their highest rates."""
