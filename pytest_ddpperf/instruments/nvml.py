"""NVIDIA's management library (NVML), used in the controller: what GPUs do now, and facts that times depend on."""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

VARIABLES = re.compile(
    r"(TORCH_)?NCCL_\w+|CUDA_\w+|CUBLAS\w+|CUDNN_\w+|PYTORCH_(CUDA_)?ALLOC_CONF|NVIDIA_TF32_OVERRIDE"
)
"""The environment variables that change the work of GPUs."""
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
_SWITCH = {0: "off", 1: "on"}
# Bits of nvmlClocksEventReasons (nvml.h), without idle, and without limits that an administrator has set.
REASONS: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
# Numbers of nvmlPerfPolicyType (nvml.h), which count how long each reason held.
POLICIES: Mapping[int, str] = {0: "power cap", 1: "temperature", 2: "sync boost", 3: "board limit", 5: "reliability"}

GpuReading = Mapping[str, int]
"""The driver's report on a GPU at one moment, in its own units: ``utilisation`` (percent), ``sm_clock``
(MHz), ``power`` (mW), ``reasons`` (bits of REASONS), ``energy`` (mJ since the driver was loaded), ``held by`` one of
POLICIES (ns for which clocks were held back). Unreported values are missing.
"""


@cache
def library() -> tuple[Any, str]:
    """Returns ``pynvml`` (initialised once for the session) and an empty text; or None and an explanation."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, str(error)
    atexit.register(pynvml.nvmlShutdown)
    return pynvml, ""


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Calls a function of NVML and returns the result; None if library, driver or GPU do not support it."""
    function = getattr(nvml, name, None)
    try:
        return None if function is None else function(*arguments)
    except nvml.NVMLError:
        return None


def opened(nvml: Any, devices: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the handles of GPUs by PCI id, and a reason for each GPU that cannot be opened."""
    handles: dict[str, Any] = {}
    refused: list[str] = []
    for device in dict.fromkeys(devices):
        try:
            handles[device] = nvml.nvmlDeviceGetHandleByPciBusId(device)
        except nvml.NVMLError as error:  # noqa: PERF203  one that fails shall not hide the others
            refused.append(f"{device}: {error}")
    return handles, tuple(refused)


def uuids() -> tuple[str, ...]:
    """Returns the UUIDs of the GPUs that the driver lets this process open; none without NVML."""
    nvml, _ = library()
    number = 0 if nvml is None else ask(nvml, "nvmlDeviceGetCount") or 0
    handles = (ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(number))
    found = (ask(nvml, "nvmlDeviceGetUUID", handle) for handle in handles if handle is not None)
    return tuple(uuid for uuid in found if isinstance(uuid, str))


def in_mig_mode(nvml: Any, handle: Any) -> bool:
    """Returns whether a GPU is divided into instances (MIG)."""
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)  # now, and after the next reset
    return bool(mode and mode[0])


def read_gpu(nvml: Any, handle: Any) -> GpuReading:
    """Returns the present clocks, power, load and memory of a GPU as the driver reports them."""
    utilisation = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    held = {text: ask(nvml, "nvmlDeviceGetViolationStatus", handle, policy) for policy, text in POLICIES.items()}
    # Libraries of newer drivers have another name for why clocks are held back.
    newer, older = (f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle"))
    found = {
        "utilisation": None if utilisation is None else utilisation.gpu,
        "sm_clock": ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "power": ask(nvml, "nvmlDeviceGetPowerUsage", handle),
        "reasons": ask(nvml, newer if hasattr(nvml, newer) else older, handle),
        "energy": ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle),
        **{f"held by {text}": None if status is None else status.violationTime for text, status in held.items()},
    }
    return {name: value for name, value in found.items() if value is not None}


def processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Returns the bytes that each process uses of a GPU's memory, by pid; in a container the pids may be the host's."""
    found = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return {process.pid: process.usedGpuMemory for process in found}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """The facts about the GPUs that ranks compute on, and about the software of these GPUs."""

    setup: str | None  # links, power limit and MIG: ``nvlink 700w``; None if the driver does not report them
    recorded: Mapping[str, str]  # more, by name


def gpu_facts(devices: Sequence[str], software: Mapping[str, str], environ: Mapping[str, str]) -> GpuFacts:
    """Returns facts about the GPUs with these PCI ids, including ``software`` and variables that affect GPUs."""
    nvml: Any = library()[0] if devices else None
    handles = [] if nvml is None else [*opened(nvml, devices)[0].values()]
    known = {**software, **{name: value for name, value in sorted(environ.items()) if VARIABLES.fullmatch(name)}}
    if nvml is None or not handles:
        return GpuFacts(setup=None, recorded=known)
    watts = (ask(nvml, "nvmlDeviceGetPowerManagementLimit", handle) for handle in handles)
    parts = [
        _joined(_link(nvml, *pair) for pair in combinations(handles, 2)),
        _joined(None if milliwatts is None else f"{milliwatts / 1000:.0f}w" for milliwatts in watts),
        _joined("mig" if in_mig_mode(nvml, handle) else None for handle in handles),
    ]
    # Of the multiprocessors, that applications get by the driver's setting (``nvidia-smi -ac``).
    clocks = (ask(nvml, "nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_SM) for handle in handles)
    ecc = [ask(nvml, "nvmlDeviceGetEccMode", handle) for handle in handles]  # now, and after the next reset
    recorded = {
        "gpu_clocks": _joined(None if clock is None else f"{clock}mhz" for clock in clocks),
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
    """Returns the different words in alphabetical order, such as ``400w 700w`` for two kinds of GPUs."""
    return " ".join(sorted({word for word in words if word}))
