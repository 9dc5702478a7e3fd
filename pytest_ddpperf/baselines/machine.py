"""Facts about this machine that the controller can tell without torch: processor, usable cores, host."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
# What vendors put around the model: "Intel(R) Xeon(R) CPU @ 2.20GHz", "AMD EPYC 7B13 64-Core Processor".
_DECORATION = re.compile(r"\((?:R|TM)\)|\bCPU\b|@.*$|\b\d+-Core\b|\bProcessor\b", re.IGNORECASE)


@dataclass(frozen=True)
class MachineFacts:
    """What is known of the machine before torch is asked."""

    cpu_model: str
    cores: int  # usable by this process
    host: str
    kernel: str
    python: str


def machine_facts(root: Path = _ROOT) -> MachineFacts:
    """The facts of this machine.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    return MachineFacts(
        cpu_model=cpu_model(root),
        cores=usable_cores(root),
        host=platform.node() or "unknown",
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def cpu_model(root: Path = _ROOT) -> str:
    """The processor's name without the vendor's marks, e.g. ``AMD EPYC 7B13``.

    ARM kernels give numbers instead of a name: then those, e.g. ``aarch64 0x41 0xd40``; at worst the architecture.
    """
    facts: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        field, _, value = line.partition(":")
        facts.setdefault(field.strip().lower(), value.strip())
    name = facts.get("model name") or facts.get("cpu") or ""
    if name:
        return " ".join(_DECORATION.sub(" ", name).split()) or name
    parts = (platform.machine() or "unknown", facts.get("cpu implementer", ""), facts.get("cpu part", ""))
    return " ".join(filter(None, parts))


def usable_cores(root: Path = _ROOT) -> int:
    """The cores that this process may keep busy: its affinity, or the control groups' CPU quota if that is lower.

    A quota is rounded down, to 1 at least: with 1.5 CPUs two busy ranks get in each other's way.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *map(int, _quotas(root))]))


def cpu_group_folders(root: Path = _ROOT) -> Iterator[Path]:
    """Folders of the control groups that can limit CPU time: this process's own and those around it, cgroup v1 and v2.

    Args:
        root: the folder that holds ``proc`` and ``sys``.
    """
    for mount, group in _cpu_groups(root):
        folder = mount / group
        while True:
            yield folder
            if folder == mount:
                break
            folder = folder.parent


def _quotas(root: Path) -> Iterator[float]:
    """CPUs allowed by each control group from this process's own up to the root."""
    quotas = map(_quota, cpu_group_folders(root))
    return (quota for quota in quotas if quota is not None)


def _quota(folder: Path) -> float | None:
    limit, _, period = _read(folder / "cpu.max").strip().partition(" ")  # v2: "200000 100000" or "max 100000"
    if not limit:
        limit = _read(folder / "cpu.cfs_quota_us").strip()  # v1: -1 for none
        period = _read(folder / "cpu.cfs_period_us").strip()
    if not limit.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(limit) / int(period)


def _cpu_groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Mount point of each hierarchy that can limit CPU time, and this process's group below it."""
    groups = dict(_own_groups(root))
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        kind, *_, options = source.split() or ("", "")
        if kind == "cgroup2":
            group = groups.get("")
        elif kind == "cgroup" and "cpu" in options.split(","):
            group = groups.get("cpu")
        else:
            continue
        _, _, _, top, point, *_ = mount.split()
        yield root / point.lstrip("/"), _below(group or "/", top)


def _own_groups(root: Path) -> Iterator[tuple[str, str]]:
    """Controller ("" for v2) and group of each line ``id:controllers:group``."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, group


def _below(group: str, top: str) -> Path:
    """The group's path below a mount that shows the hierarchy from ``top`` on; the mount itself for one elsewhere."""
    path = Path(group)
    if ".." in path.parts or not path.is_relative_to(top):
        return Path()
    return path.relative_to(top)


def _read(file: Path) -> str:
    """The text of a kernel file; empty where the system has none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
