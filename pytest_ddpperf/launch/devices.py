"""The GPUs that CUDA can use, and what a rank looks at before it uses its own."""

from __future__ import annotations

import re
import warnings
from typing import Any

_INTERNALS = re.compile(r"^CUDA initialization: |\s*\(Triggered internally.*|\n.*", re.DOTALL)


def find_gpus() -> dict[str, Any]:
    """Names, PCI addresses and error of ``context.Gpus``; it initialises CUDA, so this process must fork no rank."""
    import torch

    count = getattr(torch._C, "_cuda_getDeviceCount", None)  # noqa: SLF001  device_count() asks NVML, which shows more
    if count is None:
        return {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = [torch.cuda.get_device_properties(number) for number in range(count())]
        except Exception as error:  # noqa: BLE001  whatever the driver says is told
            return {"error": _INTERNALS.sub("", str(error))}
    if not found:  # without a warning, there is none
        return {"error": "; ".join(_INTERNALS.sub("", str(warning.message)) for warning in said)}
    return {"names": tuple(str(one.name) for one in found), "pci": tuple(map(_address, found))}


def _address(properties: Any) -> str | None:
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = [part for part in parts if part is not None]
    return "{:08X}:{:02X}:{:02X}.0".format(*known) if known == parts else None
