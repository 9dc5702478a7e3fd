"""Live memory: tensors that come, go and stay."""

from __future__ import annotations

import pytest
import torch

from pytest_ddpperf.instruments.live_memory import memory_reader

CPU = torch.device("cpu")
MIB = 2**20
SLACK = MIB // 4  # for what else a process asks malloc for
readable = pytest.mark.skipif(memory_reader(CPU) is None, reason="this system does not tell what malloc has given out")


@readable
def test_the_heap_holds_tensors_of_any_size_as_long_as_they_live() -> None:
    reader = memory_reader(CPU)
    assert reader is not None
    kind, read = reader
    before, peak = read()
    held = [torch.empty(4 * MIB, dtype=torch.uint8), *(torch.empty(MIB // 64) for _ in range(64))]
    full, _ = read()
    held.clear()
    after, _ = read()
    assert (kind, peak) == ("heap", None)
    assert full - before == pytest.approx(8 * MIB, abs=SLACK)
    assert after - before == pytest.approx(0, abs=SLACK)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_each_reading_has_a_peak_of_its_own() -> None:
    device = torch.device("cuda", 0)
    found = memory_reader(device)
    assert found is not None
    kind, read = found
    before, _ = read()
    torch.empty(16 * MIB, dtype=torch.uint8, device=device)
    assert read() == (before, before + 16 * MIB)
    assert read() == (before, before)
    assert kind == "allocated"
