"""The peak FLOP/s of GPUs: dense matrix products, as the vendors state them."""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Peak FLOP/s of one device of torch, without sparsity and at boost clocks; None for a precision that it lacks.

    ``half`` is the peak of fp16 as torch computes it, with sums in fp32, and of bf16 if ``bf16`` is true.
    """

    fp32: float
    tf32: float | None
    half: float
    bf16: bool = True


_T = 1e12
# By the whole name of the device in torch. Some data sheets state only peaks with sparsity, which are twice these.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    # NVIDIA Tesla V100 data sheet (2020) and V100S's: 15.7, 14 and 16.4 in fp32; 125, 112 and 130 on tensor cores
    (r"Tesla V100-SXM2-\d+GB", Peak(15.7 * _T, None, 125 * _T, bf16=False)),
    (r"Tesla V100-PCIE-\d+GB", Peak(14 * _T, None, 112 * _T, bf16=False)),
    (r"Tesla V100S-PCIE-\d+GB", Peak(16.4 * _T, None, 130 * _T, bf16=False)),
    # NVIDIA T4 data sheet (2019): 8.1 in fp32, 65 in mixed precision
    (r"Tesla T4", Peak(8.1 * _T, None, 65 * _T, bf16=False)),
    # NVIDIA A100 data sheet (2022): 19.5, TF32 156 | 312 with sparsity, 312 | 624; the same for SXM and PCIe
    (r"(NVIDIA )?A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe", Peak(19.5 * _T, 156 * _T, 312 * _T)),
    # NVIDIA A30 data sheet (2022): 10.3, TF32 82 | 165, 165 | 330
    (r"NVIDIA A30", Peak(10.3 * _T, 82 * _T, 165 * _T)),
    # NVIDIA A40 data sheet (2022): 37.4, TF32 74.8 | 149.6, 149.7 | 299.4
    (r"NVIDIA A40", Peak(37.4 * _T, 74.8 * _T, 149.7 * _T)),
    # NVIDIA A10 data sheet (2021): 31.2, TF32 62.5 | 125, 125 | 250
    (r"NVIDIA A10", Peak(31.2 * _T, 62.5 * _T, 125 * _T)),
    # NVIDIA A10G data sheet for AWS (2022): 35, TF32 35 | 70, 70 | 140
    (r"NVIDIA A10G", Peak(35 * _T, 35 * _T, 70 * _T)),
    # NVIDIA GA102 white paper, appendix A: RTX 3090 has 35.6, TF32 35.6 | 71, 71 | 142 with sums in fp32
    (r"NVIDIA GeForce RTX 3090", Peak(35.6 * _T, 35.6 * _T, 71 * _T)),
    # NVIDIA Ada white paper, appendix A: RTX 4090 has 82.6, TF32 82.6 | 165.2, 165.2 | 330.4 with sums in fp32
    (r"NVIDIA GeForce RTX 4090", Peak(82.6 * _T, 82.6 * _T, 165.2 * _T)),
    # NVIDIA L4 data sheet (2023), with sparsity: 30.3, TF32 120, 242
    (r"NVIDIA L4", Peak(30.3 * _T, 60 * _T, 121 * _T)),
    # NVIDIA L40 data sheet (2023): 90.5, TF32 90.5 | 181, 181 | 362
    (r"NVIDIA L40", Peak(90.5 * _T, 90.5 * _T, 181 * _T)),
    # NVIDIA L40S data sheet (2023): 91.6, TF32 183 | 366, 362 | 733
    (r"NVIDIA L40S", Peak(91.6 * _T, 183 * _T, 362 * _T)),
    # NVIDIA H100 white paper (1.04), table 2: SXM5 66.9, TF32 494.7, 989.4; PCIe 51.2, TF32 378, 756
    # NVIDIA H200 data sheet (2024): the figures of the H100 SXM, rounded
    (r"NVIDIA H100 80GB HBM3|NVIDIA H200", Peak(66.9 * _T, 494.7 * _T, 989.4 * _T)),
    (r"NVIDIA H100 PCIe", Peak(51.2 * _T, 378 * _T, 756 * _T)),
    # NVIDIA H100 and H200 data sheets (2024), with sparsity except for fp32: 60, TF32 835, 1671
    (r"NVIDIA H[12]00 NVL", Peak(60 * _T, 417.5 * _T, 835.5 * _T)),
    # NVIDIA HGX B200 data sheet (2024), eight GPUs with sparsity: 600 without, TF32 18 000, 36 000
    (r"NVIDIA B200", Peak(75 * _T, 1125 * _T, 2250 * _T)),
    # AMD Instinct MI250X data sheet (2021): matrix 95.7 in fp32, 383; torch sees its two dies as a device each
    (r"AMD Instinct MI250X", Peak(95.7 / 2 * _T, None, 383 / 2 * _T)),
    # AMD Instinct MI300X data sheet (2023): matrix 163.4 in fp32, 1307.4; torch multiplies no TF32 there by itself
    (r"AMD Instinct MI300X", Peak(163.4 * _T, None, 1307.4 * _T)),
)


def peak_flops(model: str, precision: str) -> float | None:
    """Returns the peak FLOP/s of a device of this model in a precision; None if it is unknown.

    ``model`` is torch's name of the device. A part of a GPU (MIG) and devices of several models have no peak.
    """
    peak = next((peak for name, peak in _PEAKS if re.fullmatch(name, model)), None)
    if peak is None:
        return None
    return {"fp32": peak.fp32, "tf32": peak.tf32, "fp16": peak.half, "bf16": peak.half if peak.bf16 else None}[
        precision
    ]
