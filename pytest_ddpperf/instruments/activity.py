"""What kind of event one of torch's profiler is."""

from __future__ import annotations

from typing import Any

HOST = "cpu_op"


def activity_of(event: Any) -> str:
    """Kineto's word for it: ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``cpu_op`` and others of the host.

    torch before 2.12 does not tell; there it follows from where the event ran and how it is called.
    """
    tell = getattr(event, "activity_type", None)
    if tell is not None:
        return str(tell())
    if getattr(event.device_type(), "name", "") != "CUDA" or event.is_user_annotation():
        return HOST
    name = event.name()
    return "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
