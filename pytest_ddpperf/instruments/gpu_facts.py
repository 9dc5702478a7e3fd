"""What times on GPUs depend on besides their model: how they are linked, set up, and what computes on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pytest_ddpperf.instruments.nvml import ask, in_mig_mode, library, opened

VARIABLES = re.compile(
    r"(TORCH_)?NCCL_\w+|CUDA_\w+|CUBLAS\w+|CUDNN_\w+|PYTORCH_(CUDA_)?ALLOC_CONF|NVIDIA_TF32_OVERRIDE"
)
"""The environment variables that change what GPUs do."""
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
_SWITCH = {0: "off", 1: "on"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """What is known of the GPUs that ranks compute on, and of what computes there."""

    setup: str | None  # links, power limit and MIG: ``nvlink 700w``; None if the driver does not tell
    recorded: Mapping[str, str]  # more, by name


def gpu_facts(devices: Sequence[str], software: Mapping[str, str], environ: Mapping[str, str]) -> GpuFacts:
    """The facts of GPUs, by their PCI ids, with the ``software`` and the variables that change what GPUs do."""
    nvml, _ = library() if devices else (None, "")
    handles = [] if nvml is None else [*opened(nvml, devices)[0].values()]
    known = {**software, **{name: value for name, value in sorted(environ.items()) if VARIABLES.fullmatch(name)}}
    if not handles:
        return GpuFacts(setup=None, recorded=known)
    watts = (ask(nvml, "nvmlDeviceGetPowerManagementLimit", handle) for handle in handles)
    parts = [
        _joined(_link(nvml, *pair) for pair in combinations(handles, 2)),
        _joined(None if milliwatts is None else f"{milliwatts / 1000:.0f}w" for milliwatts in watts),
        _joined("mig" if in_mig_mode(nvml, handle) else None for handle in handles),
    ]
    ecc = [ask(nvml, "nvmlDeviceGetEccMode", handle) for handle in handles]  # now, and after the next reset
    recorded = {
        "gpu_clocks": _joined(_clock(nvml, handle) for handle in handles),
        "gpu_driver": ask(nvml, "nvmlSystemGetDriverVersion"),
        "gpu_persistence": _joined(_SWITCH.get(ask(nvml, "nvmlDeviceGetPersistenceMode", each)) for each in handles),
        "gpu_ecc": _joined(None if modes is None else _SWITCH.get(modes[0]) for modes in ecc),
        "gpu_compute_mode": _joined(
            _COMPUTE_MODES.get(ask(nvml, "nvmlDeviceGetComputeMode", handle)) for handle in handles
        ),
    }
    return GpuFacts(
        setup=" ".join(filter(None, parts)) or None,
        recorded={**known, **{name: str(value) for name, value in recorded.items() if value}},
    )


def _clock(nvml: Any, handle: Any) -> str | None:
    """The clock of the multiprocessors that applications get by the driver's setting (``nvidia-smi -ac``)."""
    clock = ask(nvml, "nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_SM)
    return None if clock is None else f"{clock}mhz"


def _link(nvml: Any, one: Any, other: Any) -> str | None:
    """Returns how two GPUs exchange data: over NVLink, directly over PCIe (``p2p``), or through the host's memory."""
    nvlink, direct = (
        ask(nvml, "nvmlDeviceGetP2PStatus", one, other, getattr(nvml, f"NVML_P2P_CAPS_INDEX_{name}"))
        for name in ("NVLINK", "WRITE")  # READ is a tuple in pynvml, by mistake
    )
    if nvlink == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    return None if direct is None else "p2p" if direct == nvml.NVML_P2P_STATUS_OK else "nop2p"


def _joined(words: Any) -> str:
    """Each word once, in order; GPUs that differ have several: ``400w 700w``."""
    return " ".join(sorted({word for word in words if word}))
