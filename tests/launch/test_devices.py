"""Which GPUs ranks have, what the driver says, and near which cores ranks run; fewer cores than ranks are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch import devices
from pytest_ddpperf.launch.context import Gpus, RankContext, find_gpus
from pytest_ddpperf.launch.devices import near_cores, settled_memory, shares
from pytest_ddpperf.launch.messages import Job
from pytest_ddpperf.launch.rank import _join

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020). "
    "(Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
)
MISMATCH = (  # recorded from torch 2.11.0+cu130
    "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda "
    "driver combination (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
)
UNSUPPORTED = "Error 803: system has unsupported display driver / cuda driver combination"
BUSY = (
    "CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be asynchronously reported"
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets torch find devices; a text is the driver's complaint, as a warning or as an exception."""

    def play(devices: list[SimpleNamespace], *, warns: str = "", raises: str = "") -> None:
        import torch

        def count() -> int:
            if warns:
                warnings.warn(warns, stacklevel=2)
            return len(devices)

        def properties(number: int) -> Any:
            if raises:
                raise RuntimeError(raises)
            return devices[number]

        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", count, raising=False)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)  # as NVML counts

    return play


def device(name: str, **address: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, **address)


A100 = device("NVIDIA A100 MIG 1g.5gb", pci_domain_id=1, pci_bus_id=0xC1, pci_device_id=2)


@pytest.mark.parametrize(
    ("devices", "complaint", "expected"),
    [
        ([A100], {}, Gpus(names=("NVIDIA A100 MIG 1g.5gb",), pci=("0001:c1:02.0",))),  # whatever NVML counts
        ([device("old")], {}, Gpus(names=("old",), pci=(None,))),  # torch does not tell its address
        ([], {}, Gpus()),
        ([], {"warns": TOO_OLD}, Gpus(error="The NVIDIA driver on your system is too old (found version 12020).")),
        ([], {"warns": MISMATCH}, Gpus(error=UNSUPPORTED)),
        ([A100], {"raises": BUSY}, Gpus(error="CUDA error: all CUDA-capable devices are busy or unavailable")),
    ],
)
def test_devices_are_those_that_cuda_can_use_and_a_driver_that_fails_says_why(
    driver: Callable[..., None], devices: list[SimpleNamespace], complaint: dict[str, str], expected: Gpus
) -> None:
    driver(devices, **complaint)
    assert find_gpus() == expected


def joined(monkeypatch: pytest.MonkeyPatch, rank: int, gpus: Gpus, **of_job: Any) -> tuple[str | None, list[str]]:
    """What a rank on CUDA is shown, and the device that it makes its own, computes on, and whose memory it looks at."""
    import torch

    used: list[str] = []

    def looks(_: object) -> str:
        used.append("looks")
        return ""

    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: used.append(str(one)))
    monkeypatch.setattr(devices, "settled_memory", looks)
    job = Job(
        call=b"", world_size=4, device="cuda", group=None, mode=None, timeout=1.0, environ={}, path=(*sys.path,),
        directory=".", gpus=gpus,
    )  # fmt: skip
    context, _, _ = _join(replace(job, **of_job), rank, None)
    assert isinstance(context, RankContext)
    used.append(str(context.device))
    return os.environ.get("CUDA_VISIBLE_DEVICES"), used


def test_ranks_are_assigned_to_the_devices_that_the_controller_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other ranks may be at work already, none looks for memory that others have taken."""
    gpus = Gpus(names=("H200",) * 3, pci=(None,) * 3)
    assert joined(monkeypatch, 2, gpus) == (None, ["cuda:2", "looks", "cuda:2"])
    assert joined(monkeypatch, 3, gpus) == (None, ["cuda:0", "looks", "cuda:0"])
    assert joined(monkeypatch, 3, gpus, interleaved=True) == (None, ["cuda:0", "cuda:0"])
    assert joined(monkeypatch, 3, gpus, own_group=True) == (None, ["cuda:0", "cuda:0"])


def test_a_rank_is_shown_its_own_instance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(names=("A100 MIG",) * 2, pci=(None,) * 2, instances=("MIG-a", "MIG-b"))
    assert joined(monkeypatch, 1, gpus) == ("MIG-b", ["cuda:0", "looks", "cuda:0"])
    assert joined(monkeypatch, 2, gpus) == ("MIG-a", ["cuda:0", "looks", "cuda:0"])


def test_a_rank_is_bound_near_its_gpu_and_notes_memory_taken_by_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    done: list[object] = []
    monkeypatch.setattr(devices, "near_cores", lambda addresses, _: [{len(addresses), rank} for rank in range(8)])
    monkeypatch.setattr(devices, "settled_memory", lambda _: "41 GiB of 80 GiB")
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: done.append(cores))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(str(device)))
    remark = devices.claim_gpu(torch.device("cuda", 1), [None] * 8, 3, check_memory=True)
    assert remark == "GPU 1 of rank 3: other processes took 41 GiB of 80 GiB before it began"
    assert capsys.readouterr().err == f"{remark}\n"
    assert devices.claim_gpu(torch.device("cuda", 1), [None] * 8, 3, check_memory=False) == ""
    assert done == [{8, 3}, "cuda:1"] * 2


@pytest.mark.parametrize(
    ("taken", "told", "looks", "seconds"),
    [
        ([20], "", 1, 0.0),
        (range(70, 19, -1), "", 51, 50 / 16),  # a process that ends gets time to free its memory
        ([30, 25], "25 B of 80 B", 10, 0.5625),  # it stays taken
        (range(10**6, 10**6 - 200, -1), "976 KiB of 80 B", 81, 5.0),  # it is freed for ever
    ],
)
def test_memory_is_waited_for_while_it_is_freed(taken: Sequence[int], told: str, looks: int, seconds: float) -> None:
    """Of a GPU of 80 bytes others take ``taken``, one number for each look; time passes with each wait of 1/16 s."""
    looked, now = list[int](), 0.0

    def read() -> tuple[int, int]:
        looked.append(taken[min(len(looked), len(taken) - 1)])
        return 80 - looked[-1], 80

    def wait(by: float) -> None:
        nonlocal now
        now += by

    assert settled_memory(read, lambda: now, wait) == told
    assert (len(looked), now) == (looks, seconds)


ADDRESSES = ("0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0")
NODES = {
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/cpu/online": "0-15\n",
    "sys/bus/pci/devices/0000:17:00.0/local_cpulist": "0-3,8-11\n",
    "sys/bus/pci/devices/0000:65:00.0/local_cpulist": "0-3,8-11\n",
    "sys/bus/pci/devices/0000:ca:00.0/local_cpulist": "4-7,12-15\n",
    "sys/bus/pci/devices/0000:e3:00.0/local_cpulist": "4-7,12-15\n",
}
FIRST, SECOND = {0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}
IN_CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup rw\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-7\n",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[set[int]]]:
    """The cores of each of four ranks, of a process that may use ``allowed`` of a machine with these files."""

    def cores(files: dict[str, str], allowed: range = range(16), **environ: str) -> list[set[int]]:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*allowed})
        return near_cores(ADDRESSES, environ, tmp_path)

    return cores


def test_ranks_are_bound_to_the_cores_near_their_gpus(machine: Callable[..., list[set[int]]]) -> None:
    assert machine(NODES) == [FIRST, FIRST, SECOND, SECOND]
    in_container = machine({**NODES, **IN_CONTAINER}, range(8))
    assert in_container == [{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5, 6, 7}, {4, 5, 6, 7}]


@pytest.mark.parametrize(
    ("files", "allowed", "environ"),
    [
        pytest.param({"sys/devices/system/node/online": "0\n"}, range(16), {}, id="a machine of one node"),
        pytest.param({}, range(8), {}, id="a process that somebody has bound"),
        pytest.param({}, range(16), {"OMP_PROC_BIND": "close"}, id="threads that somebody binds"),
        pytest.param({}, range(16), {"OMP_NUM_THREADS": "5"}, id="more threads than cores"),
        pytest.param(dict.fromkeys(NODES, ""), range(16), {}, id="a system that tells nothing"),
    ],
)
def test_ranks_are_not_bound_if_that_is_impossible_or_already_done(
    machine: Callable[..., list[set[int]]], files: dict[str, str], allowed: range, environ: dict[str, str]
) -> None:
    assert machine({**NODES, **files}, allowed, **environ) == [set()] * 4


def test_a_line_printed_by_c_is_kept_however_the_process_ends() -> None:
    """NCCL warns so."""
    code = "import ctypes, os\nfrom pytest_ddpperf.launch.devices import _print_by_line\n_print_by_line()\n"
    code += "ctypes.CDLL(None).puts(b'NCCL WARN so and so')\nos._exit(0)"
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert ended.stdout == "NCCL WARN so and so\n"


def machine_with(root: Path, nodes: list[str], threads: dict[int, str] | None = None) -> Path:
    """A machine with these cores on its NUMA nodes; ``threads``: those of the core of each hardware thread."""
    for number, cores in enumerate(nodes):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    (root / "sys/devices/system/node/online").write_text(f"0-{len(nodes) - 1}\n")
    for thread, siblings in (threads or {}).items():
        folder = root / f"sys/devices/system/cpu/cpu{thread}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return root


@pytest.mark.parametrize(
    ("nodes", "cores", "ranks", "expected"),
    [
        (["0-4"], range(5), 2, [[0, 1, 2], [3, 4]]),
        (["0-3", "4-7"], range(8), 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (["0,2,4,6", "1,3,5,7"], range(8), 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),  # numbers that alternate
        (["0-3", "4-7"], [0, 1, 2, 3, 4, 5], 3, [[0, 1], [2, 3], [4, 5]]),  # a part of the second node is allowed
        (["0-3", "4-7"], range(8), 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (["0-1", "2-3", "4-5", "6-7"], range(8), 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_each_rank_has_a_share_of_the_cores_of_a_node(
    tmp_path: Path, nodes: list[str], cores: list[int], ranks: int, expected: list[list[int]]
) -> None:
    assert shares(cores, ranks, machine_with(tmp_path, nodes)) == expected


def test_hardware_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = machine_with(tmp_path, ["0-7"], {thread: f"{thread % 4},{thread % 4 + 4}" for thread in range(8)})
    assert shares(range(8), 2, root) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert shares(range(8), 4, root) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert shares(range(8), 8, root) == [[0], [4], [1], [5], [2], [6], [3], [7]]  # there are too few cores


def test_a_machine_that_reports_no_numa_nodes_is_one_node(tmp_path: Path) -> None:
    assert shares([3, 5, 8, 9], 2, tmp_path) == [[3, 5], [8, 9]]


def test_fewer_cores_than_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"3 ranks have 2 \(4-5\): use fewer ranks, or cpu_binding=none"):
        shares([4, 5], 3, tmp_path)


def test_ranks_near_one_gpu_divide_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "near_cores", lambda *_: [{0, 1}, {4, 5, 6, 7}] * 2)
    assert [devices.own_cores([None] * 4, rank, {}, tmp_path) for rank in range(4)] == [[0], [4, 5], [1], [6, 7]]
    monkeypatch.setattr(devices, "near_cores", lambda *_: [set(), set()])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    assert [devices.own_cores([None] * 2, rank, {}, tmp_path) for rank in range(2)] == [[1, 2], [3]]
