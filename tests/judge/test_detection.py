"""What each benchmark of a call may spend on proofs."""

from __future__ import annotations

import pytest

from pytest_ddpperf.judge.detection import UNSPENT, AlphaLedger

A, B = ("a", 2), ("b", 2)


def test_a_benchmark_that_waits_spends_nothing() -> None:
    """Both spend a tenth of 5 % at a tenth of the time, and a alone more at half of it."""
    proofs = AlphaLedger()
    assert proofs[A] == UNSPENT
    proofs.begin({A: 4, B: 4}, 0.1, last=False)
    assert proofs[A].level == proofs[B].level == pytest.approx(0.005)
    proofs.commit()
    proofs.begin({A: 9, B: 4}, 0.5, last=False)
    assert proofs[B].level == pytest.approx(0.005)
    assert proofs[A].level > 2 * proofs[B].level
    assert proofs[A].share > proofs[B].share


def test_a_last_analysis_of_the_same_launches_has_at_least_the_level_of_the_one_before() -> None:
    """The first look, at 70 % of the time, has all of the errors until then; 0.6 of all of them is less."""
    proofs = AlphaLedger()
    proofs.begin({A: 4, B: 4}, 0.7, last=False)
    proofs.commit()
    proofs.begin({A: 5, B: 4}, 1.0, last=True)
    assert proofs[B].level == pytest.approx(0.035)
    assert proofs[A].level == pytest.approx(0.03)


def test_another_analysis_of_the_same_launches_replaces_the_one_before() -> None:
    proofs, once = AlphaLedger(), AlphaLedger()
    proofs.begin({A: 4}, 1 / 3, last=False)
    proofs.commit()
    for each in (proofs, once):
        each.begin({A: 4}, 1.0, last=True)
    assert proofs[A] == once[A]
