from __future__ import annotations

import pytest

from pytest_ddpperf.analysis.scaling import (
    Law,
    LawFit,
    ScalingPoint,
    amdahl,
    fit_law,
    gustafson,
    serial_fraction,
    status,
    stops_paying,
)
from pytest_ddpperf.errors import SettingError


def fitted(serial: float, law: Law = "amdahl") -> LawFit:
    return LawFit(law=law, serial=serial, interval=None, error=0.0, ranks=(2, 4))


def test_the_serial_fraction_of_a_point_follows_from_its_speedup() -> None:
    """2 of 4 ranks' work: (1/2 - 1/4) / (3/4)."""
    assert serial_fraction(2, 4) == pytest.approx(1 / 3)
    assert serial_fraction(4, 4) == 0
    assert serial_fraction(3.49, 4) == pytest.approx(0.0487, abs=5e-5)
    with pytest.raises(SettingError, match="ranks=1: expected a factor above 1: the ranks divided by the base's"):
        serial_fraction(1, 1)


def test_amdahls_and_gustafsons_laws_agree_with_values_by_hand() -> None:
    assert amdahl(0.1, 10) == pytest.approx(1 / 0.19)
    assert gustafson(0.1, 10) == pytest.approx(9.1)
    assert amdahl(0.1, 1) == gustafson(0.1, 1) == 1


@pytest.mark.parametrize("law", ["amdahl", "gustafson"])
def test_the_fit_finds_the_law_that_made_the_points(law: Law) -> None:
    made = fitted(0.08, law)
    points = [ScalingPoint(ranks=n, speedups=(made.speedup(n),) * 3) for n in (2, 4, 8)]
    found = fit_law(points, law)
    assert found.serial == pytest.approx(0.08)
    assert found.error == pytest.approx(0, abs=1e-12)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((0.08, 0.08))


def test_the_interval_of_the_serial_fraction_follows_students_t() -> None:
    """Serial fractions of 0.1 and 0.3 of one point: 0.2, standard error 0.1, t(1) = 12.706."""
    found = fit_law([ScalingPoint(ranks=2, speedups=(amdahl(0.1, 2), amdahl(0.3, 2)))], "amdahl")
    assert found.serial == pytest.approx(0.2)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((0.2 - 1.2706, 0.2 + 1.2706), abs=1e-4)


def test_points_that_all_share_cores_cannot_be_fitted() -> None:
    shared = ScalingPoint(ranks=8, speedups=(0.5,), oversubscribed=True)
    with pytest.raises(SettingError, match="points: no law can be fitted, because ranks share"):
        fit_law([shared], "amdahl")


def test_one_more_rank_stops_to_pay_unless_ranks_cost_nothing() -> None:
    """With 5 % serial the ninth rank adds 0.503 and the tenth 0.468 of a rank.

    With 5 % of two ranks' step serial, S(n) = 1 / (0.05 + 1.9 / n); the gain falls below a half in twice as many.
    """
    assert fitted(0.05).speedup(9) - fitted(0.05).speedup(8) == pytest.approx(0.5026, abs=1e-4)
    assert stops_paying(fitted(0.05)) == 9
    assert stops_paying(fitted(0.05), least=0.8) == 3
    assert stops_paying(fitted(0.05), 2) == 17
    assert stops_paying(fitted(0.6, "gustafson")) == 1
    always = (fitted(0.0), fitted(-0.1), fitted(0.4, "gustafson"))
    assert [stops_paying(each) for each in always] == [None] * 3


@pytest.mark.parametrize(
    ("efficiency", "speedup", "word"),
    [
        (3.49 / 4, 3.49, "excellent"),
        (0.46 / 4, 0.46, "negative scaling"),
        (2.8 / 4, 2.8, "good"),
        (0.5, 2.0, "fair"),
        (0.49, 1.96, "poor"),
    ],
)
def test_a_point_is_rated_by_efficiency_and_speedup(efficiency: float, speedup: float, word: str) -> None:
    assert status(efficiency, speedup) == word
