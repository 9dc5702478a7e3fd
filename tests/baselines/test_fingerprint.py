from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.baselines import fingerprint
from pytest_ddpperf.baselines.fingerprint import differences, environment, environment_key, recorded_differences
from pytest_ddpperf.instruments.host import MachineFacts
from pytest_ddpperf.instruments.nvml import GpuFacts
from pytest_ddpperf.launch.context import Gpus, Placement, TorchMachine
from pytest_ddpperf.records.measurement import Environment
from tests.baselines.made_records import make_environment
from tests.factories import make_baseline_record

MACHINE = MachineFacts(
    cpu_model="AMD EPYC", cores=2, machine="virtual", host="runner-1", kernel="Linux 6.1", python="3.11.7"
)
LINKED = GpuFacts(setup="nvlink 400w", recorded={"gpu_driver": "580.65", "nccl": "2.28.9"})


def torch_machine(torch: str, cuda: str | None, *gpus: str) -> TorchMachine:
    return TorchMachine(torch=torch, cuda=cuda, gpus=Gpus(names=gpus), backends=("gloo",))


def test_environment_on_cpu_leaves_the_gpus_out() -> None:
    torch = torch_machine("2.13.0+cpu", None, "NVIDIA H200")
    env = environment(MACHINE, torch, Placement("cpu", "gloo"), 2, threads=1)
    assert (env.device_model, env.device_count, env.torch, env.cuda) == ("AMD EPYC", 0, "2.13", None)
    assert env.recorded == {
        "machine": "virtual",
        "host": "runner-1",
        "kernel": "Linux 6.1",
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "binding": "none",
    }
    assert environment_key(env) == "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13"
    told = replace(torch, packages={"numpy": "2.3.0"}), replace(MACHINE, clocks="performance 3.50 GHz")
    more = environment(told[1], told[0], Placement("cpu", "gloo"), 2, threads=1).recorded
    assert more.items() - env.recorded.items() == {("numpy", "2.3.0"), ("clocks", "performance 3.50 GHz")}


def test_the_environment_of_simulated_ranks_has_no_machine() -> None:
    env = fingerprint.simulated_environment("3.11.7", torch_machine("2.13.0+cu130", "13.0", "NVIDIA H200"), 1024)
    assert environment_key(env) == "simulated-w1024-torch2.13"
    assert env.simulated
    assert not env.oversubscribed
    assert (env.cuda, env.device_count) == (None, 0)


def test_the_environment_of_gpus_has_model_number_and_setup() -> None:
    torch = torch_machine("2.11.0a0+git12", "13.0.1", *["NVIDIA A100-SXM4-80GB"] * 8)
    env = environment(MACHINE, torch, Placement("cuda", "nccl"), 8, threads=4, nodes=2)
    assert (env.device_model, env.device_count, env.torch, env.cuda) == ("NVIDIA A100-SXM4-80GB", 8, "2.11", "13.0")
    key = "cuda-nvidia-a100_sxm4_80gb-x8-amd-epyc-2c-t4-n2-nccl-w8-torch2.11-cuda13.0"
    assert environment_key(env) == key
    told = environment(MACHINE, torch, Placement("cuda", "nccl"), 8, threads=4, nodes=2, gpus=LINKED)
    assert environment_key(told) == f"{key}-gpu-nvlink-400w"
    assert (told.gpu_setup, told.recorded["cuda"]) == ("nvlink 400w", "13.0.1")
    assert told.recorded.items() >= {"gpu_driver": "580.65", "nccl": "2.28.9", "host": "runner-1"}.items()
    assert differences(env, told) == ("GPU setup unknown -> nvlink 400w",)


def test_recorded_facts_are_named_if_both_sides_have_them_and_they_differ() -> None:
    """Not hosts, nor what an older baseline lacks; a version whose minor differs is told by the key's fact alone."""
    old = {"host": "a", "torch": "2.13.0+cpu", "python": "3.11.7", "kernel": "Linux 6.1", "libc": "glibc 2.36"}
    new = {**old, "host": "b", "torch": "2.13.1+cpu", "numpy": "2.3.0", "libc": "glibc 2.41"}
    then, now = (make_environment(recorded=recorded) for recorded in (old, new))
    assert recorded_differences(then, now) == ("torch 2.13.0+cpu -> 2.13.1+cpu", "libc glibc 2.36 -> glibc 2.41")
    assert recorded_differences(replace(then, torch="2.12"), now) == ("libc glibc 2.36 -> glibc 2.41",)
    assert recorded_differences(then, then) == ()
    packages = replace(now, recorded={**new, "numpy": "2.3.1", "python": "3.12.1"})
    assert recorded_differences(now, packages) == ("Python 3.11.7 -> 3.12.1", "numpy 2.3.0 -> 2.3.1")


def test_recorded_facts_of_gpus_are_named_if_they_differ() -> None:
    """A variable that is missing was not set, unless nothing is recorded of GPUs; nor is it told which were visible."""
    old, new = (
        make_environment(device="cuda", recorded=recorded)
        for recorded in (
            {"nccl": "2.27.5", "cudnn": "91002", "NCCL_ALGO": "Ring", "host": "a", "CUDA_VISIBLE_DEVICES": "3"},
            {"nccl": "2.28.9", "cudnn": "91002", "CUDA_LAUNCH_BLOCKING": "1", "host": "b"},
        )
    )
    assert recorded_differences(old, new) == (
        "NCCL 2.27.5 -> 2.28.9",
        "CUDA_LAUNCH_BLOCKING none -> 1",
        "NCCL_ALGO Ring -> none",
    )
    assert recorded_differences(make_environment(device="cuda", recorded={"host": "a"}), new) == ()


def test_keys_of_before_gpus_had_a_setup_still_hold() -> None:
    """Though it takes a hash to tell them apart."""
    hashed = make_environment(cpu_model="x" * 60, device_model="x" * 60, cores=8)
    assert environment_key(hashed) == f"cpu-{'x' * 48}-8c-t1-gloo-w2-torch2.13~3f2e40ae"


CHANGES: dict[str, Any] = {
    "device": "cuda",
    "device_model": "NVIDIA H200",
    "device_count": 1,
    "cpu_model": "Intel Xeon",
    "cores": 4,
    "threads": 2,
    "nodes": 2,
    "backend": "nccl",
    "world_size": 4,
    "torch": "2.14",
    "cuda": "13.0",
    "gpu_setup": "nvlink 700w",
}


def test_every_keyed_fact_changes_the_key_and_is_a_difference() -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Environment)} - {"recorded"}
    base = make_environment()
    for name, value in CHANGES.items():
        other = make_environment(**{name: value})
        assert environment_key(other) != environment_key(base), name
        assert differences(base, other), name


AWKWARD = ["a b", "a-b", "a_b", "a/b", "a  2c", "a 2c t1", "a x1 b", "", "-", "ä", "A B", "x" * 60, "x" * 61, "日本"]


def test_keys_are_equal_only_for_equal_facts() -> None:
    """Names made to be mistaken for others, or for other parts of a key; "A B" is "a b" in another case."""
    cpus = [make_environment(cpu_model=name, device_model=name) for name in AWKWARD]
    gpus = [
        make_environment(device="cuda", device_model=gpu, device_count=count, cpu_model=cpu)
        for gpu, cpu, count in itertools.product(
            ["a", "a x1 b", "a-x1-b"], ["b", "c", "b x1 c", "b 2c t1 gloo"], [0, 1]
        )
    ]
    odd = [make_environment(backend=name) for name in ("cpu:gloo,cuda:nccl", "cpu-gloo-cuda-nccl", "gloo-w2")]
    odd += [make_environment(torch=name) for name in ("2.13-cuda13.0", "2.13 ", "nightly", "2.13-gpu-a")]
    odd += [make_environment(gpu_setup=name) for name in ("a", "a-b", "a b", "../a")]
    environments = [*cpus, *gpus, *odd, make_environment(cuda="13.0")]
    for a, b in itertools.combinations(environments, 2):
        assert (environment_key(a) == environment_key(b)) == (differences(a, b) == ()), (a, b)
    assert sum(differences(a, b) == () for a, b in itertools.combinations(environments, 2)) == 1


def test_key_is_a_plain_file_name() -> None:
    for name in AWKWARD:
        key = environment_key(make_environment(cpu_model=name, device="cuda", device_model=name))
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-~")
        assert key.startswith("cuda-")
        assert len(key) < 200


def test_differences_of_machines_are_listed() -> None:
    gpu = make_environment(device="cuda", device_model="NVIDIA H200", device_count=1, backend="nccl", cuda="13.0")
    assert differences(make_environment(), gpu) == (
        "device cpu -> cuda",
        "GPU none -> NVIDIA H200",
        "GPUs 0 -> 1",
        "backend gloo -> nccl",
        "CUDA none -> 13.0",
    )
    xeon = make_environment(cpu_model="Intel Xeon", device_model="Intel Xeon")
    assert differences(make_environment(), xeon) == ("CPU AMD EPYC -> Intel Xeon",)


def test_counts_depend_on_no_machine_and_kernels_on_the_gpu() -> None:
    gpu = make_environment(device="cuda", device_model="NVIDIA H200", device_count=1, backend="nccl", cuda="13.0")
    other = replace(gpu, device_model="NVIDIA A100", device_count=4, cpu_model="Intel", cores=64, cuda="12.8")
    assert fingerprint.counted_differences(gpu, other) == ()
    assert fingerprint.kernel_differences(gpu, other) == ("GPU NVIDIA H200 -> NVIDIA A100", "CUDA 13.0 -> 12.8")
    assert fingerprint.kernel_differences(gpu, replace(other, device_model="Nvidia  H200", cuda="13.0")) == ()
    assert fingerprint.counted_differences(gpu, replace(other, backend="gloo", world_size=4, torch="2.14")) == (
        "backend nccl -> gloo",
        "world size 2 -> 4",
        "torch 2.13 -> 2.14",
    )
    cpu = make_environment(cuda="13.0")  # torch was built for it, and there is no GPU
    assert fingerprint.kernel_differences(make_environment(cpu_model="Intel"), cpu) == ()
    assert fingerprint.kernel_differences(cpu, gpu) == ()  # that the device is another one says enough


@pytest.mark.parametrize(
    ("then", "now", "told", "counted"),
    [
        ("NCCL_ALGO=Ring", "NCCL_ALGO=Tree", ("env NCCL_ALGO Ring -> Tree",), ()),
        ("A=1 NCCL_ALGO=Ring", "A=2 NCCL_ALGO=Tree", ("env A 1 -> 2", "env NCCL_ALGO Ring -> Tree"), ("env A 1 -> 2",)),
        ("", "OMP_NUM_THREADS=2", ("env OMP_NUM_THREADS none -> 2",), ()),
        ("A=x y B=1", "A=x z B=1", ("env A x y -> x z",), ("env A x y -> x z",)),
        ("A=1", "", ("env A 1 -> none",), ("env A 1 -> none",)),
    ],
)
def test_a_variable_that_changes_no_count_keeps_counts_comparable(
    then: str, now: str, told: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    before, after = ({"env": text} if text else {} for text in (then, now))
    record = make_baseline_record(strategy="ddp", recipe=before)
    assert fingerprint.training_differences(record, "ddp", after) == told
    assert fingerprint.training_differences(record, "ddp", after, counted=True) == counted
