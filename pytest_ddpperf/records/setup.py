"""The names of what training is set up with, and of settings: parts of ``SETTINGS`` among the sites of counts."""

from __future__ import annotations

SETTINGS = "settings"  # the name of such sites; their values are numbers of wrappers, of optimizers, of calls in a step
RECORDED_LINES = "recorded_lines"  # the name of sites that record operators, in place of those that call models
CHECKPOINT, BACKWARD = "activation checkpointing", "backward"


def part_of(kind: str, name: str, value: object) -> str:
    """The name of a setting of a kind: ``DistributedDataParallel: static_graph=True``."""
    return f"{kind}: {name}={value}"


def setting_of(part: str) -> tuple[str, str, str]:
    """Returns kind, setting and value of a name; the latter are empty if it is that of a kind."""
    kind, _, setting = part.partition(": ")
    name, _, value = setting.partition("=")
    return kind, name, value
