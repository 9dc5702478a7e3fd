"""The public names of ``pytest_ddpperf.analysis``."""

from __future__ import annotations

from pytest_ddpperf import analysis


def test_every_public_name_is_completed_and_leads_somewhere() -> None:
    assert {*analysis.__all__} <= {*dir(analysis)}
    assert all(getattr(analysis, name) is not None for name in analysis.__all__)
