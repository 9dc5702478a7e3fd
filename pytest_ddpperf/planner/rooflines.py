"""Least times of operators on accelerators that this machine need not have, by the roofline model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpperf.metrics.figures import peak_flops


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """The highest rates that a device can reach, and their source."""

    products: float  # FLOP/s of matrix products in fp32, as torch computes them by default: without TF32
    tf32_products: float  # FLOP/s of the same with TF32, dense
    low_products: float  # FLOP/s in bf16 and fp16, dense
    bandwidth: float  # bytes/s of its memory
    memory: float  # bytes
    source: str  # of its memory and bandwidth; metrics/figures.py has those of products
    operator: float = 3e-6  # seconds that an operator takes at least

    def seconds(self, flops: float, moved: float, *, low: bool = False, tf32: bool = False) -> float:
        """Returns the seconds of an operator, by the roofline model (Williams, Waterman and Patterson 2009).

        ``moved`` is the number of bytes that the operator reads and writes. ``low``: the operator computes in bf16 or
        fp16; ``tf32``: it may use TF32 for products of fp32.
        """
        products = self.low_products if low else self.tf32_products if tf32 else self.products
        return max(self.operator, flops / products, moved / self.bandwidth)


GB = 1e9


def _known(model: str, bandwidth: float, memory: float, source: str) -> Accelerator:
    """Returns the accelerator with torch's name ``model``, with its peak FLOP/s; ``source``: of memory figures."""
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
