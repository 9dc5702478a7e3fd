"""How GPUs are linked and set up, as a made-up pynvml shows it."""

from __future__ import annotations

import pytest

from pytest_ddpperf.instruments.nvml import GpuFacts, gpu_facts
from tests.fake_nvml import FIRST, SECOND, FakeNvml, refusing

BOTH = (FIRST, SECOND)


def facts(*devices: str) -> GpuFacts:
    return gpu_facts(devices, {}, {})


def test_facts_of_two_linked_gpus_are_recorded(nvml: FakeNvml) -> None:
    """The second one has no ECC that could be on or off, and no clock that could be set."""
    assert facts(*BOTH) == GpuFacts(
        setup="nvlink 700w",
        recorded={
            "gpu_clocks": "1755mhz",
            "gpu_driver": "580.65.06",
            "gpu_persistence": "on",
            "gpu_ecc": "on",
            "gpu_compute_mode": "default",
        },
    )


def test_the_setup_has_the_links_the_power_limits_and_the_instances(nvml: FakeNvml) -> None:
    assert facts(FIRST).setup == facts(FIRST, FIRST).setup == "700w", "two ranks on one GPU have no link"
    nvml.links = {nvml.NVML_P2P_CAPS_INDEX_NVLINK: 5, nvml.NVML_P2P_CAPS_INDEX_WRITE: 0}
    assert facts(*BOTH).setup == "p2p 700w"
    nvml.links[nvml.NVML_P2P_CAPS_INDEX_WRITE] = 1
    nvml.limits, nvml.mig = {0: 700_000, 1: 400_000}, {1}
    assert facts(*BOTH).setup == "nop2p 400w 700w mig"


def test_facts_that_the_driver_does_not_report_are_omitted(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PowerManagementLimit", "P2PStatus", "ComputeMode"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{name}", refusing)
    found = facts(*BOTH)
    assert (found.setup, "gpu_compute_mode" in found.recorded) == (None, False)


def test_gpus_that_may_not_be_opened_have_no_facts(nvml: FakeNvml) -> None:
    nvml.hidden = {FIRST, SECOND}
    assert facts(*BOTH) == facts() == GpuFacts(setup=None, recorded={})


def test_versions_and_variables_that_affect_gpus_are_recorded_also_without_a_driver() -> None:
    environ = {
        "NCCL_ALGO": "Ring",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
        "NVIDIA_TF32_OVERRIDE": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MY_NCCL_ALGO": "Tree",
        "PATH": "/bin",
    }
    recorded = gpu_facts((), {"nccl": "2.28.9"}, environ).recorded
    assert recorded == {"nccl": "2.28.9", **{name: environ[name] for name in environ.keys() - {"MY_NCCL_ALGO", "PATH"}}}
