"""What follows from a machine's GPUs and torch; no GPU is needed to tell."""

from __future__ import annotations

import pickle
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest

from pytest_ddpperf.errors import LaunchError, RankSkipped, SettingError
from pytest_ddpperf.launch.context import Gpus, Placement, TorchMachine, place, versions
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import Call, Job

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
ADDRESSES = ("0000:17:00.0", "0000:c1:00.0")
CPU_BUILD = TorchMachine(torch="2.13.0+cpu", cuda=None, gpus=Gpus(), backends=("gloo",))
NO_GPU = replace(CPU_BUILD, torch="2.13.0+cu130", cuda="13.0", backends=("gloo", "nccl"))
TWO_GPUS = replace(NO_GPU, gpus=Gpus(names=(H200, H200), pci=ADDRESSES))
TOO_OLD = "The NVIDIA driver on your system is too old (found version 12020)."
TOOK_CPU = "device=auto chose the CPU, because torch 2.13.0+cu130 can use no GPU:"
UNUSABLE = replace(NO_GPU, gpus=Gpus(error=TOO_OLD))
ROCM = replace(NO_GPU, torch="2.13.0+rocm6.4", cuda="6.4.43484")
ONE_INSTANCE = replace(NO_GPU, gpus=Gpus(names=(A100,), pci=ADDRESSES[:1]))
INSTANCES = replace(NO_GPU, gpus=Gpus(names=(A100,) * 2, pci=ADDRESSES[:1] * 2, instances=("MIG-a", "MIG-b")))
OF_TWO_GPUS = replace(INSTANCES, gpus=replace(INSTANCES.gpus, pci=ADDRESSES))


@pytest.mark.parametrize(
    ("device", "backend", "world_size", "machine", "expected"),
    [
        ("auto", "auto", 4, CPU_BUILD, Placement("cpu", "gloo")),
        ("auto", "auto", 2, TWO_GPUS, Placement("cuda", "nccl")),
        ("auto", "auto", 3, TWO_GPUS, Placement("cuda", "gloo")),  # more ranks than GPUs: NCCL would refuse
        ("cuda", "gloo", 2, TWO_GPUS, Placement("cuda", "gloo")),
        ("cpu", "auto", 2, TWO_GPUS, Placement("cpu", "gloo")),
        ("auto", "nccl", 1, TWO_GPUS, Placement("cuda", "nccl")),
        ("auto", "auto", 2, UNUSABLE, Placement("cpu", "gloo", f"{TOOK_CPU} {TOO_OLD}")),
        ("cpu", "auto", 2, UNUSABLE, Placement("cpu", "gloo")),
        ("auto", "auto", 1, INSTANCES, Placement("cuda", "nccl")),
        ("auto", "auto", 2, INSTANCES, Placement("cuda", "gloo")),  # of one GPU: NCCL would refuse
        ("auto", "auto", 2, OF_TWO_GPUS, Placement("cuda", "nccl")),
    ],
)
def test_auto_takes_the_gpus_if_they_suffice(
    device: str, backend: str, world_size: int, machine: TorchMachine, expected: Placement
) -> None:
    assert place(device, backend, world_size, machine) == expected


@pytest.mark.parametrize(
    ("device", "backend", "world_size", "machine", "message"),
    [
        ("auto", "nccl", 2, CPU_BUILD, r"backend=nccl needs a GPU, and torch 2\.13\.0\+cpu was built without CUDA"),
        ("cuda", "auto", 2, NO_GPU, r"device=cuda needs a GPU, and torch 2\.13\.0\+cu130 sees none; .*=gloo"),
        ("cuda", "auto", 1, UNUSABLE, r"can use none \(The NVIDIA .* too old.*; nvidia-smi shows more\); .*=cpu"),
        ("cuda", "auto", 1, ROCM, r"needs a GPU, and torch 2\.13\.0\+rocm6\.4 sees none"),
    ],
)
def test_a_device_that_the_machine_lacks_is_named_in_one_line_with_a_cure(
    device: str, backend: str, world_size: int, machine: TorchMachine, message: str
) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        place(device, backend, world_size, machine)
    assert "\n" not in str(caught.value)
    with pytest.raises(SettingError, match="backend=nccl needs GPU tensors"):
        place("cpu", "nccl", 1, TWO_GPUS)


@pytest.mark.parametrize(
    ("world_size", "machine", "message"),
    [
        (3, TWO_GPUS, r"a GPU for each rank, and 3 ranks have 2; use fewer ranks, or backend=gloo, .* share GPUs"),
        (2, ONE_INSTANCE, r"2 ranks have 1 \(NCCL counts MIG instances of a GPU as one\); use fewer"),
        (2, INSTANCES, r"2 ranks have 2 \(NCCL counts MIG instances of a GPU as one\); use fewer"),
    ],
)
def test_more_ranks_than_nccl_has_gpus_for_skip(world_size: int, machine: TorchMachine, message: str) -> None:
    with pytest.raises(RankSkipped, match=message):
        place("cuda", "nccl", world_size, machine)


def test_the_machine_is_described_by_torch_itself(launcher: Launcher) -> None:
    import torch

    machine = launcher.machine(gpus=False)
    assert (machine.torch, machine.cuda) == (str(torch.__version__), torch.version.cuda or torch.version.hip)
    assert machine.gpus == Gpus()
    assert "gloo" in machine.backends


def answers(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, *machines: tuple[TorchMachine, ...]) -> list[object]:
    """Let probes of a launcher answer so, one after the other; gives what they were asked."""
    asked: list[object] = []

    def launch(job: Job, *_: object) -> LaunchResult[Any]:
        call: Call = pickle.loads(job.call)
        asked.append((call.arguments, job.local_world_size, job.gpus.instances))
        return LaunchResult(machines[len(asked) - 1], (), 1.0)

    monkeypatch.setattr(launcher, "_launch", launch)
    return asked


def test_ranks_on_the_cpu_touch_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher()
    asked = answers(launcher, monkeypatch, (CPU_BUILD,), (CPU_BUILD,))
    launcher.run(print, world_size=2, device="cpu", backend="auto")
    assert asked[0] == ((False,), 1, ())


@pytest.mark.parametrize("visible", ["MIG-a", "GPU-a,GPU-b", "0,1", ""])
def test_one_device_or_a_lone_instance_is_asked_once(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(environ={"CUDA_VISIBLE_DEVICES": visible})
    answers(launcher, monkeypatch, (ONE_INSTANCE,))
    assert launcher.machine() is ONE_INSTANCE


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_the_devices_of_the_machine_are_the_visible_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(environ={})
    asked = answers(launcher, monkeypatch, (TWO_GPUS,), (NO_GPU,))
    assert launcher.machine() is launcher.machine() is TWO_GPUS
    monkeypatch.setattr(launcher, "environ", {name: ""})
    assert launcher.machine() is NO_GPU
    assert Launcher(like=launcher).machine() is NO_GPU
    assert asked == [((True,), 1, ())] * 2


def test_each_named_mig_instance_is_inspected_by_a_separate_process(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(environ={"CUDA_VISIBLE_DEVICES": "MIG-a, MIG-b,MIG-broken"})
    other = replace(ONE_INSTANCE, gpus=Gpus(names=("B100 MIG 1g.24gb",), pci=ADDRESSES[1:]))
    asked = answers(launcher, monkeypatch, (ONE_INSTANCE,), (ONE_INSTANCE, other, NO_GPU))
    assert launcher.machine().gpus == Gpus(
        names=(A100, "B100 MIG 1g.24gb"), pci=ADDRESSES, instances=("MIG-a", "MIG-b")
    )
    assert asked == [((True,), 1, ()), ((True,), 3, ("MIG-a", "MIG-b", "MIG-broken"))]


def test_versions_are_read_of_installed_packages_only() -> None:
    """Torch is, and the other one is not."""
    assert versions(("torch", "no-such-package")) == {"torch": version("torch")}
