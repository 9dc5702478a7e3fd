"""What hooks add to a session."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.table import Metric
from pytest_ddpperf.run.session.extensions import Extensions


class Hooks:
    """The hooks of a project that adds a metric of this name."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def pytest_ddpperf_metrics(self) -> list[Metric]:
        """Returns the metric."""
        how: Any = {"unit": "s", "better": "lower", "family": "absolute", "scale": "ratio", "samples": lambda _: None}
        return [Metric(name=self._name, **how)]


@pytest.mark.parametrize("name", [5, "Two Words", "camelCase"])
def test_a_metric_has_a_name_in_snake_case(name: object) -> None:
    with pytest.raises(SettingError, match="write the name in snake_case"):
        _ = Extensions(Hooks(name)).metrics
    assert [row.name for row in Extensions(Hooks("good_name")).metrics] == ["good_name"]
