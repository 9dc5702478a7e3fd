"""What others use of the cores: by ticks that are made up, and by this machine's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.verdicts import machine
from benchmarks.verdicts.machine import STAT, Ticks, ticks


def test_what_is_neither_idle_nor_its_own_is_others() -> None:
    """Of 1000 ticks 300 were idle and 500 its own: 200 are left."""
    assert Ticks(5000, 1000, 50.0).others(Ticks(6000, 1300, 550.0)) == pytest.approx(0.2)


def test_children_that_began_earlier_make_no_negative_share() -> None:
    assert Ticks(5000, 1000, 0.0).others(Ticks(5100, 1050, 80.0)) == 0.0


def test_nothing_is_used_if_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "STAT", STAT / "missing")
    assert machine.others_now(0.0) == 0.0


@pytest.mark.skipif(not STAT.exists(), reason="this system does not tell")
def test_what_a_child_and_its_child_computed_is_its_own() -> None:
    """They compute for a quarter of a second each."""
    burn = "import time\nwhile time.process_time() < 0.25: pass\n"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}], check=True)\n{burn}"
    before = ticks()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert ticks().own - before.own >= 0.5 * os.sysconf("SC_CLK_TCK") - 2
