"""Facts about this machine without torch: processor, cores, free memory, host name, temporary folders.

psutil does not know the processor's name, or the control groups that limit cores and memory in containers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from pytest_ddpperf.instruments.clock import system_time as time

_ROOT = Path("/")
_OTHERS = 0o077  # the rights of group and others
_ABANDONED_SECONDS = 24 * 3600.0
_SPARED = 0.25  # of the available memory: left to other processes
# The vendors' words around the model: "Intel(R) Xeon(R) CPU @ 2.20GHz", "AMD EPYC 7B13 64-Core Processor".
_DECORATION = re.compile(r"\((?:R|TM)\)|\bCPU\b|@.*$|\b\d+-Core\b|\bProcessor\b", re.IGNORECASE)

# Of firmware on processors without the flag; Amazon calls machines of one's own "c7g.metal".
_VIRTUAL = re.compile(r"KVM|QEMU|VMware|VirtualBox|Xen|Virtual Machine|Google Compute Engine|Amazon EC2 (?!\S*metal)")


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """The facts about the machine that are known without torch."""

    cpu_model: str
    cores: int  # usable by this process
    machine: str  # as ``machine_kind`` returns it
    host: str
    kernel: str
    python: str
    clocks: str = ""  # as ``clock_limits`` returns it
    affinity: str = ""  # the cores that this process may use, such as 0-3,8
    numa_nodes: str = ""  # the NUMA nodes of these cores


def machine_facts(root: Path = _ROOT) -> MachineFacts:
    """Returns the facts of this machine; ``root`` is the folder that holds ``proc`` and ``sys``."""
    return MachineFacts(
        cpu_model=cpu_model(root),
        cores=usable_cores(root),
        machine=machine_kind(root),
        host=platform.node() or "unknown",
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        clocks=clock_limits(root),
        affinity=core_list(os.sched_getaffinity(0)),
        numa_nodes=core_list(nodes_of_cores(os.sched_getaffinity(0), root)),
    )


def clock_limits(root: Path = _ROOT) -> str:
    """Returns the governors and highest frequencies of usable cores, as ``performance 3.50 GHz``; empty if unknown."""
    folders = [root / f"sys/devices/system/cpu/cpu{core}/cpufreq" for core in sorted(os.sched_getaffinity(0))]
    told = (
        (kernel_text(each / "scaling_governor").strip(), kernel_text(each / "scaling_max_freq")) for each in folders
    )
    return ", ".join(sorted({f"{governor} {int(most) / 1e6:.2f} GHz" for governor, most in told if governor and most}))


def cpu_model(root: Path = _ROOT) -> str:
    """Returns the processor's name without the vendor's marks, e.g. ``AMD EPYC 7B13``, or else the architecture."""
    facts: dict[str, str] = {}
    for line in kernel_text(root / "proc/cpuinfo").splitlines():
        field, _, value = line.partition(":")
        facts.setdefault(field.strip().lower(), value.strip())
    name = facts.get("model name") or facts.get("cpu") or ""
    if name:
        return " ".join(_DECORATION.sub(" ", name).split()) or name
    # ARM kernels report numbers.
    parts = (platform.machine() or "unknown", facts.get("cpu implementer", ""), facts.get("cpu part", ""))
    return " ".join(filter(None, parts))


def machine_kind(root: Path = _ROOT) -> str:
    """Returns ``virtual`` for a virtual machine, ``shared`` for a machine with a CPU quota, and else ``physical``."""
    processor = kernel_text(root / "proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", processor, re.MULTILINE)
    if flags is not None:
        virtual = "hypervisor" in flags[1].split()
    else:
        names = " ".join(kernel_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
        virtual = bool(_VIRTUAL.search(" ".join(names.split()))) or (root / "proc/device-tree/hypervisor").exists()
    return "virtual" if virtual else "shared" if _quotas(root) else "physical"


def usable_cores(root: Path = _ROOT, *, of: int = 0) -> int:
    """Returns how many cores a process may keep busy: the cores of its affinity, or a lower quota of control groups.

    ``of``: the pid, 0 for this process. A quota is rounded down, but not below 1: 1.5 CPUs are too few for two ranks.
    """
    return max(1, min([len(os.sched_getaffinity(of)), *map(int, _quotas(root))]))


def _quotas(root: Path) -> list[float]:
    return [quota for quota in map(_quota, group_folders("cpu", root)) if quota is not None]


def group_folders(controller: str, root: Path = _ROOT) -> Iterator[Path]:
    """Yields the folders of the control groups that can limit ``controller`` (``cpu``, ``memory``), innermost first."""
    lines = (line.split(":", 2) for line in kernel_text(root / "proc/self/cgroup").splitlines())  # id:controllers:group
    groups = {controller: group for _, controllers, group in lines for controller in controllers.split(",")}
    for line in kernel_text(root / "proc/self/mountinfo").splitlines():
        hierarchy, _, source = line.partition(" - ")
        kind, *_, options = source.split() or ("", "")
        if kind == "cgroup2":
            group = groups.get("")  # v2 names no controllers
        elif kind == "cgroup" and controller in options.split(","):
            group = groups.get(controller)
        else:
            continue
        _, _, _, top, point, *_ = hierarchy.split()
        mount = root / point.lstrip("/")
        path = PurePath(group or "/")
        shown = ".." not in path.parts and path.is_relative_to(top)  # the mount shows the hierarchy from ``top`` on
        folder = mount / path.relative_to(top) if shown else mount
        while True:
            yield folder
            if folder == mount:
                break
            folder = folder.parent


def available_memory(root: Path = _ROOT) -> int | None:
    """Returns the bytes that this process can take without swapping, within its control groups; None if unknown."""
    fields = kernel_table(kernel_text(root / "proc/meminfo").replace(":", ""))
    machine = [fields["MemAvailable"] * 1024] if "MemAvailable" in fields else []
    groups = map(_memory_left, group_folders("memory", root))
    return min([*machine, *(left for left in groups if left is not None)], default=None)


def shared_memory(root: Path = _ROOT) -> int | None:
    """Returns the size of /dev/shm in bytes, 64 MiB in most containers; None without /dev/shm."""
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def free_memory() -> int | None:
    """Returns the available bytes of memory minus a reserve for other processes; None if these bytes are unknown."""
    available = available_memory()
    return None if available is None else int((1 - _SPARED) * available)


def _memory_left(folder: Path) -> int | None:
    """Returns the bytes that a control group may still take, including cached file pages that the kernel can drop."""
    limit, used = (kernel_text(folder / f"memory.{name}").strip() for name in ("max", "current"))  # v2: "max" for none
    kept = "inactive_file"
    if not limit:
        limit, used = (kernel_text(folder / f"memory.{name}_in_bytes").strip() for name in ("limit", "usage"))  # v1
        kept = "total_inactive_file"
    if not limit.isdecimal() or not used.isdecimal():
        return None
    return max(0, int(limit) - int(used) + kernel_table(kernel_text(folder / "memory.stat")).get(kept, 0))


def _quota(folder: Path) -> float | None:
    limit, _, period = kernel_text(folder / "cpu.max").strip().partition(" ")  # v2: "200000 100000" or "max 100000"
    if not limit:
        limit = kernel_text(folder / "cpu.cfs_quota_us").strip()  # v1: -1 for none
        period = kernel_text(folder / "cpu.cfs_period_us").strip()
    if not limit.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(limit) / int(period)


def kernel_table(text: str) -> dict[str, int]:
    """Returns, by name, the number that follows the name in each line of a kernel file's text."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def nodes_of_cores(cores: Iterable[int], root: Path = _ROOT) -> dict[int, set[int]]:
    """Returns these cores by NUMA node; all cores are in node 0 if the system reports no nodes."""
    allowed, folder = set(cores), root / "sys/devices/system/node"
    nodes = sorted(kernel_numbers(kernel_text(folder / "online")))
    found = {node: allowed & kernel_numbers(kernel_text(folder / f"node{node}/cpulist")) for node in nodes}
    known = {node: of_node for node, of_node in found.items() if of_node}
    return known if set().union(*known.values()) == allowed else {0: allowed}


def kernel_numbers(text: str) -> set[int]:
    """Returns the numbers of a list in the kernel's notation, such as ``0-3,8``."""
    spans = [tuple(map(int, part.split("-"))) for part in text.split(",") if part.strip()]
    return {number for span in spans for number in range(span[0], span[-1] + 1)}


def core_list(numbers: Iterable[int]) -> str:
    """Returns numbers in the kernel's notation: ``0-3,8``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)


def kernel_text(file: Path) -> str:
    """Returns the text of a file in /proc or /sys; empty if there is no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def kernel_number(file: Path) -> int | None:
    """Returns the number in a file in /proc or /sys; None if the file does not exist or has no number."""
    text = kernel_text(file).strip()
    return int(text) if text.isdecimal() else None


def from_here(file: str) -> str:
    """Returns a path relative to the current folder; unchanged if it is empty or outside, or the folder is gone."""
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # compile(source, "", "exec") makes an empty one
        return file
    return file if relative.startswith("..") else relative


def open_shared(file: Path, flags: int = 0) -> int:
    """Opens a file in a folder that other users may write to; raises OSError for a link, a pipe or another device."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o444)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENXIO, "this is not a regular file", str(file))


def abandoned(prefix: str) -> Iterator[Path]:
    """Yields this user's temporary folders whose names begin with ``prefix``, if nobody has used them for a day."""
    for folder in Path(os.path.realpath(tempfile.gettempdir())).glob(f"{prefix}{'[a-z0-9_]' * 8}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if ours and time.time() - found.st_mtime > _ABANDONED_SECONDS:
                yield folder


def private_folder() -> Path:
    """Returns a folder that only this user can access, for files that several processes share; makes it if necessary.

    The folder is in the temporary directory, or else it is ``XDG_RUNTIME_DIR``. Raises OSError if neither is private.
    """
    folder = Path(tempfile.gettempdir(), f"pytest-ddpperf-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    for place in (folder, Path(os.environ.get("XDG_RUNTIME_DIR") or folder)):
        with contextlib.suppress(FileNotFoundError):
            found = place.lstat()
            alone = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & _OTHERS
            if alone and stat.S_ISDIR(found.st_mode):
                return place
    raise OSError(errno.EPERM, "this is not a folder that only you can access", str(folder))


def interface_speeds(root: Path = _ROOT) -> dict[str, float | None]:
    """Returns the bits per second of each network interface that is up; None if unknown, as for virtual interfaces."""
    found: dict[str, float | None] = {}
    for folder in sorted((root / "sys/class/net").glob("*")):
        if kernel_text(folder / "operstate").strip() in {"up", "unknown"}:  # the loopback does not know
            megabits = kernel_number(folder / "speed")
            found[folder.name] = 1e6 * megabits if megabits else None
    return found
