"""What tests of whole runs share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddpperf.instruments.health import Watch
from pytest_ddpperf.records.launch import CpuHealth, Health
from pytest_ddpperf.run.session import sides

SetLoad = Callable[[float], None]


@pytest.fixture
def set_load(monkeypatch: pytest.MonkeyPatch) -> SetLoad:
    """Sets the share of the cores that other processes take, as inner sessions see it: at first nothing."""

    def set_to(share: float) -> None:
        def watch(*_: object, **__: object) -> Watch:
            return lambda _: Health(cpu=CpuHealth(others=share))

        monkeypatch.setattr(sides, "watch_health", watch)

    set_to(0.0)
    return set_to
