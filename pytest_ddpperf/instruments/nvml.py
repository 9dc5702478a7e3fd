"""NVIDIA's management library (NVML), asked in the controller: ranks have no part in it."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from functools import cache
from typing import Any


@cache
def library() -> tuple[Any, str]:
    """``pynvml``, initialised once for the session; or None, and why not."""
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
    """The answer of a function of the library; None where library, driver or GPU do not have it."""
    function = getattr(nvml, name, None)
    try:
        return None if function is None else function(*arguments)
    except nvml.NVMLError:
        return None


def opened(nvml: Any, devices: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The handles of GPUs by their PCI ids, and in words which of them this process may not open, and why."""
    handles: dict[str, Any] = {}
    refused: list[str] = []
    for device in dict.fromkeys(devices):
        try:
            handles[device] = nvml.nvmlDeviceGetHandleByPciBusId(device)
        except nvml.NVMLError as error:  # noqa: PERF203  one that fails shall not hide the others
            refused.append(f"{device}: {error}")
    return handles, tuple(refused)


def uuids() -> tuple[str, ...]:
    """The UUIDs of the GPUs that the driver lets this process open; none where NVML is not there."""
    nvml, _ = library()
    number = 0 if nvml is None else ask(nvml, "nvmlDeviceGetCount") or 0
    handles = (ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(number))
    found = (ask(nvml, "nvmlDeviceGetUUID", handle) for handle in handles if handle is not None)
    return tuple(uuid for uuid in found if isinstance(uuid, str))


def in_mig_mode(nvml: Any, handle: Any) -> bool:
    """Returns whether a GPU is divided into instances (MIG)."""
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)  # now, and after the next reset
    return bool(mode and mode[0])
