"""How long operators take on accelerators that are not there, by what they could reach at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """What a device could reach at most, and who says so.

    Attributes:
        products: FLOP/s of matrix products in fp32, as torch computes them by default: without TF32.
        tf32_products: FLOP/s of the same with TF32, dense.
        low_products: FLOP/s in bf16 and fp16, dense.
        bandwidth: bytes/s of its memory.
        memory: bytes of it.
        operator: seconds that an operator takes at least.
        source: of these figures.
    """

    products: float
    tf32_products: float
    low_products: float
    bandwidth: float
    memory: float
    source: str
    operator: float = 3e-6

    def seconds(self, flops: float, moved: float, *, low: bool = False, tf32: bool = False) -> float:
        """Seconds of an operator, by the roofline model (Williams, Waterman and Patterson 2009).

        Args:
            flops: of it.
            moved: bytes that it reads and writes.
            low: whether it computes in bf16 or fp16.
            tf32: whether it may compute products of fp32 with TF32.
        """
        products = self.low_products if low else self.tf32_products if tf32 else self.products
        return max(self.operator, flops / products, moved / self.bandwidth)


GB = 1e9
ACCELERATORS: Mapping[str, Accelerator] = {
    "h200": Accelerator(
        products=67e12,
        tf32_products=494.7e12,
        low_products=989e12,
        bandwidth=4.8e12,
        memory=141 * GB,
        source="H200 SXM datasheet; TF32 by the H100 white paper",
    ),
    "h100": Accelerator(
        products=67e12,
        tf32_products=494.7e12,
        low_products=989e12,
        bandwidth=3.35e12,
        memory=80 * GB,
        source="H100 SXM datasheet; TF32 by the H100 white paper",
    ),
    "a100": Accelerator(
        products=19.5e12,
        tf32_products=156e12,
        low_products=312e12,
        bandwidth=2.039e12,
        memory=80 * GB,
        source="A100 80GB SXM datasheet",
    ),
    "l4": Accelerator(
        products=30.3e12,
        tf32_products=60e12,
        low_products=121e12,
        bandwidth=300e9,
        memory=24 * GB,
        source="L4 datasheet; dense products are half of those with sparsity",
    ),
}
"""Accelerators by name; what they could reach at most."""
