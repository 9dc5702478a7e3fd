from __future__ import annotations

import socket
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from pytest_ddpperf.instruments.torch_internals import (
    compiled_since,
    discard_first_profile,
    pci_id,
    tcp_store,
    unsampled,
)
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from tests.factories import TORCH

PROPERTIES = SimpleNamespace(pci_domain_id=0x10, pci_bus_id=0xDC, pci_device_id=2)


def test_a_gpu_has_the_id_of_nvidias_tools_unless_torch_or_nvidia_does_not_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pci_id(PROPERTIES) == "0010:dc:02.0"
    assert pci_id(SimpleNamespace()) is None
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert pci_id(PROPERTIES) is None


@pytest.mark.parametrize(("version", "newer"), [("2.7.1", False), ("2.8.0", True)])
def test_a_store_is_served_on_an_open_socket_by_a_server_that_takes_it(
    version: str, monkeypatch: pytest.MonkeyPatch, *, newer: bool
) -> None:
    """The newer one of torch before 2.8 refuses it, with an error on rank 0's stderr."""
    real, asked = dist.TCPStore, []  # type: ignore[attr-defined]

    def made(*given: Any, use_libuv: bool = True, **options: Any) -> Any:
        asked.append(use_libuv)
        options["use_libuv"] = use_libuv and TORCH >= (2, 8)
        return real(*given, **options)

    monkeypatch.setattr(dist, "TCPStore", made)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, patience = server.getsockname()[1], timedelta(seconds=10)
        served = tcp_store("127.0.0.1", port, 2, patience, server.detach())
        assert asked == [newer]
        tcp_store("127.0.0.1", port, 2, patience).set("key", "value")
        assert served.get("key") == b"value"


def test_a_server_that_waits_does_not_end_before_all_ranks_have_joined() -> None:
    """One of two ranks never joins: without waiting the server could end, and a late rank would try for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, patience = server.getsockname()[1], timedelta(milliseconds=200)
        with pytest.raises(dist.DistStoreError):
            tcp_store("127.0.0.1", port, 2, patience, server.detach(), waits=True)


def ddp_timings(_ctx: RankContext) -> tuple[list[int], list[str]]:
    """The iterations in which DDP had timed itself: after two steps, two unsampled ones, and one more."""
    wrapped: Any = DistributedDataParallel(nn.Linear(2, 2))
    timed, sizes = [], []

    def steps(number: int) -> None:
        for _ in range(number):
            wrapped(torch.ones(1, 2)).sum().backward()
        said = wrapped._get_ddp_logging_data()
        timed.append(said.get("iteration", 0))
        sizes.append(said["bucket_sizes"])

    steps(2)
    with unsampled():
        steps(2)
    steps(1)
    return timed, sizes


def test_ddp_does_not_time_itself_in_unsampled_steps(launcher: Launcher) -> None:
    """On CUDA it waits for the device to do so, in iterations that depend on the warm-up."""
    timed, sizes = launcher.run(ddp_timings, world_size=1, backend="gloo", device="cpu").rank(0)
    assert timed[0] == timed[1] < timed[2]
    assert len(set(sizes)) == 1


def test_the_first_profile_is_thrown_away_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def profile(**how: object) -> AbstractContextManager[None]:
        made.append(how)
        return nullcontext()

    monkeypatch.setattr(torch.profiler, "profile", profile)
    monkeypatch.setattr(torch, "zeros", lambda *_size, **_where: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    discard_first_profile.cache_clear()
    for _ in range(2):
        discard_first_profile()
    discard_first_profile.cache_clear()
    assert len(made) == 1


def test_graphs_for_other_values_of_one_number_have_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [None, "0/0: weight == 0.001", "0/1: weight == 1e-05", "0/2: mode == 'b'"]
    line = {"co_name": "forward", "co_filename": "train.py", "co_firstlineno": 3, "graph_op_count": 2}
    graphs = [SimpleNamespace(recompile_reason=reason, **line) for reason in reasons]
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: graphs)
    monkeypatch.setattr(torch._dynamo.utils, "counters", {"stats": {"unique_graphs": 4}, "graph_break": {}})
    assert compiled_since(1)["recompiles"] == {"forward: weight == NUMBER": 2.0, "forward: mode == 'b'": 1.0}
