"""What kind of event an event of torch's profiler is."""

from __future__ import annotations

from typing import Any

HOST = "cpu_op"


def activity_of(event: Any) -> str:
    """Kineto's word for an event: ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``user_annotation``, ``cpu_op`` ...

    torch before 2.12 does not say; there it follows from where the event ran and its name.
    """
    tell = getattr(event, "activity_type", None)
    if tell is not None:
        return str(tell())
    on_host = getattr(event.device_type(), "name", "") != "CUDA"
    if event.is_user_annotation():
        return "user_annotation" if on_host else "gpu_user_annotation"
    if on_host:
        return HOST
    name = event.name()
    return "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
