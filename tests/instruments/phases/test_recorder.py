"""What a step pays for a section while nobody looks: nothing but the call."""

from __future__ import annotations

import pickle

import pytest
import torch

from pytest_ddpperf.instruments.phases.recorder import Section
from pytest_ddpperf.launch.context import RankContext


def test_a_section_does_nothing_and_hides_no_error() -> None:
    ctx = RankContext(0, 1, 0, 1, torch.device("cpu"), "gloo", None)
    section = pickle.loads(pickle.dumps(ctx)).phase("mine")
    assert isinstance(section, Section)
    assert section.name == "mine"
    assert section.before is None
    with pytest.raises(OSError, match="mine"), section:
        raise OSError("mine")
    assert section.before is None
