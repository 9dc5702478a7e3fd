from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_ddpperf.instruments import host


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"


def grouped(groups: str, mounts: str, files: dict[str, str]) -> dict[str, str]:
    """The files of a process in these control groups; those of the groups are named from where these are mounted."""
    of_groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return {"proc/self/cgroup": f"{groups}\n", "proc/self/mountinfo": mounts, **of_groups}


def quota(folder: str, quota: int) -> dict[str, str]:
    """The files of a group of version 1 that has so many microseconds in each tenth of a second."""
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("AMD EPYC", "AMD EPYC"),
        ("AMD EPYC 7B13 64-Core Processor", "AMD EPYC 7B13"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel Xeon"),
        ("Processor", "Processor"),  # nothing would be left
    ],
)
def test_cpu_model_is_without_the_vendors_marks(tmp_path: Path, name: str, model: str) -> None:
    lay(tmp_path, {"proc/cpuinfo": f"processor\t: 0\nmodel\t\t: 2\nmodel name\t: {name}\n\nprocessor\t: 1\n"})
    assert host.cpu_model(tmp_path) == model


def test_cpu_model_without_a_name_is_the_architecture_with_arms_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert host.cpu_model(tmp_path) == "aarch64"
    lay(tmp_path, {"proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n"})
    assert host.cpu_model(tmp_path) == "aarch64 0x41 0xd40"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/cpuinfo": "processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"}, "virtual"),
        ({"proc/cpuinfo": "flags : fpu vme\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "physical"),
        ({"proc/cpuinfo": "Features : fp\n", "sys/class/dmi/id/product_name": "KVM Virtual Machine\n"}, "virtual"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "c7g.large\n"}, "virtual"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "c7g.metal\n"}, "physical"),
        ({"proc/device-tree/hypervisor/compatible": "xen"}, "virtual"),
        (grouped("0::/job", V2, {"job/cpu.max": "350000 100000"}), "shared"),
    ],
)
def test_a_machine_that_others_use_is_recognised(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    assert host.machine_facts(lay(tmp_path, files)).machine == kind


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (grouped("0::/job", V2, {"job/cpu.max": "max 100000\n"}), 8),
        (grouped("0::/job", V2, {"job/cpu.max": "350000 100000"}), 3),  # 3.5 CPUs are rounded down
        (grouped("0::/pod/job", V2, {"pod/cpu.max": "200000 100000", "pod/job/cpu.max": "max 100000"}), 2),
        (grouped("0::/../x", V2, {"cpu.max": "400000 100000"}), 4),  # seen from another namespace
        (grouped("0::/", V2, {"cpu.max": "50000 100000"}), 1),
        (grouped("0::/", V2, {"cpu.max": "900000 0\n"}), 8),  # garbled figures are no limit
        (grouped("4:cpu,cpuacct:/docker/a", V1, quota("cpu,cpuacct/docker/a", 200_000)), 2),
        # In a container the process's group is the mount's root.
        (grouped("4:cpu,cpuacct:/docker/a", V1.replace("0:29 /", "0:29 /docker/a"), quota("cpu,cpuacct", 600_000)), 6),
        (grouped("4:cpu,cpuacct:/", V1, quota("cpu,cpuacct", -1)), 8),
    ],
)
def test_usable_cores_respect_affinity_and_quota(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert host.usable_cores(lay(tmp_path, files)) == cores


def test_the_affinity_of_another_process_may_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8 if pid == 42 else 4)))
    assert (host.usable_cores(tmp_path), host.usable_cores(tmp_path, of=42)) == (4, 8)


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemFree:   100 kB\nMemAvailable:    2000 kB\nHugePages_Total:  0\n"}
V1_MEMORY = "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def of_v2(folder: str, most: str, used: str, stat: str = "") -> dict[str, str]:
    """The memory of a group of version 2."""
    files = {"max": f"{most}\n", "current": f"{used}\n", "stat": stat}
    return {f"{folder}memory.{name}": text for name, text in files.items()}


def of_v1(folder: str, most: str, used: str, stat: str = "") -> dict[str, str]:
    files = {"limit_in_bytes": f"{most}\n", "usage_in_bytes": f"{used}\n", "stat": stat}
    return {f"{folder}memory.{name}": text for name, text in files.items()}


# Pages of files that are not in use can be taken.
TIGHT = of_v2("pod/", "1000000", "700000", "file 200000\ninactive_file 50000\nactive_file 150000\n")
TIGHT_V1 = of_v1("memory/docker/a/", "1000000", "700000", "inactive_file 1\ntotal_inactive_file 100000\n")


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"proc/meminfo": "MemTotal:  9000 kB\n"}, None),  # this kernel does not say what is available
        (MEMINFO, 2000 * 1024),
        (MEMINFO | grouped("0::/job", V2, of_v2("job/", "max", "500000")), 2000 * 1024),
        (grouped("0::/pod/job", V2, TIGHT | of_v2("pod/job/", "900000", "100000")), 350_000),
        (MEMINFO | grouped("0::/", V2, of_v2("", "1000000", "1000100")), 0),
        (
            grouped(
                "4:cpu,cpuacct:/\n5:memory:/docker/a",
                V1 + V1_MEMORY,
                TIGHT_V1 | of_v1("memory/", "9223372036854771712", "5000000"),  # the root has no limit
            ),
            400_000,
        ),
    ],
)
def test_available_memory_respects_the_control_group(
    tmp_path: Path, files: dict[str, str], available: int | None
) -> None:
    assert host.available_memory(lay(tmp_path, files)) == available


def test_facts_of_this_machine_are_complete() -> None:
    facts = host.machine_facts()
    assert 1 <= facts.cores <= len(os.sched_getaffinity(0))
    assert all((facts.cpu_model, facts.host, facts.kernel, facts.python))


@pytest.mark.parametrize(
    ("cores", "told"),
    [
        ({0: ("performance\n", "3500000\n"), 1: ("performance\n", "3500000\n")}, "performance 3.50 GHz"),
        ({0: ("powersave", "2400000"), 1: ("powersave", "3500000")}, "powersave 2.40 GHz, powersave 3.50 GHz"),
        ({0: ("powersave", "")}, ""),
        ({}, ""),
    ],
)
def test_the_limits_of_clocks_come_from_the_usable_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: dict[int, tuple[str, str]], told: str
) -> None:
    """Core 2 is not usable."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    files = {
        f"sys/devices/system/cpu/cpu{core}/cpufreq/{file}": text
        for core, texts in {**cores, 2: ("ondemand", "1000000")}.items()
        for file, text in zip(("scaling_governor", "scaling_max_freq"), texts, strict=True)
    }
    assert host.clock_limits(lay(tmp_path, files)) == told


def test_shared_memory_is_as_large_as_its_file_system(tmp_path: Path) -> None:
    assert host.shared_memory(tmp_path) is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    held = os.statvfs(tmp_path)
    assert host.shared_memory(tmp_path) == held.f_blocks * held.f_frsize


def test_interfaces_that_are_up_have_their_speed(tmp_path: Path) -> None:
    told = {"eth0": ("up", "10000"), "eth1": ("down", "1000"), "lo": ("unknown", ""), "veth": ("up", "-1")}
    for name, (state, speed) in told.items():
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")
        (folder / "speed").write_text(f"{speed}\n")
    assert host.interface_speeds(tmp_path) == {"eth0": 10e9, "lo": None, "veth": None}
