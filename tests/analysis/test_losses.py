"""The lost time of a scaling curve by cause, worked by hand."""

from __future__ import annotations

import pytest

from pytest_ddpperf.analysis.losses import scaling_loss
from pytest_ddpperf.records.diagnosis import Bottleneck, Cause, Diagnosis


def diagnosis(**seconds: float) -> Diagnosis:
    """A step of these causes."""
    step = sum(seconds.values())
    names: dict[str, Bottleneck] = {name: name for name in seconds}  # type: ignore[misc]  # names of causes
    causes = tuple(Cause(bottleneck=names[name], seconds=value, share=value / step) for name, value in seconds.items())
    return Diagnosis(bottleneck="unclear", step=step, causes=causes)


def test_weak_scaling_loses_what_is_beyond_the_base() -> None:
    base, point = diagnosis(compute=0.08, data=0.02), diagnosis(compute=0.09, data=0.02, communication=0.03)
    lost = scaling_loss(base, point, efficiency=0.1 / 0.14)
    assert lost.ideal == pytest.approx(0.1)
    assert lost.seconds == pytest.approx(0.04)
    assert list(lost.kinds)[:2] == ["communication", "computing"]
    assert lost.kinds["communication"] == pytest.approx(0.03)
    assert lost.kinds["computing"] == pytest.approx(0.01)
    assert lost.kinds["data"] == pytest.approx(0)


def test_strong_scaling_expects_a_share_of_each_cause() -> None:
    # Half of 100 ms is 50 ms; the point takes 80: products 48 in place of 40, calls 12 in place of 10, sending 20.
    base = diagnosis(compute=0.08, overhead=0.02)
    point = diagnosis(compute=0.048, overhead=0.012, communication=0.02)
    lost = scaling_loss(base, point, efficiency=0.05 / 0.08)
    assert lost.ideal == pytest.approx(0.05)
    assert lost.kinds["communication"] == pytest.approx(0.02)
    assert lost.kinds["computing"] == pytest.approx(0.01)
    assert sum(lost.kinds.values()) == pytest.approx(lost.seconds) == pytest.approx(0.03)


def test_ranks_that_share_cores_lose_to_the_cores() -> None:
    lost = scaling_loss(diagnosis(compute=0.1), diagnosis(compute=0.1, oversubscribed=0.1), efficiency=0.5)
    assert next(iter(lost.kinds)) == "cores"
    assert lost.kinds["cores"] == pytest.approx(0.1)
