"""What two ends of trainings mean, with numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.quality import QualityRules, held, lost, trained
from pytest_ddpperf.records.verbs import Convergence, Curve, Standing, Trainings
from pytest_ddpperf.stats.intervals import t_quantile
from tests.factories import known

RULES = QualityRules(metric="accuracy", better="higher", tolerance=0.02)


def ending(name: str, losses: Sequence[float], accuracies: Sequence[float] = (0.8, 0.8, 0.8)) -> Trainings:
    """A strategy whose launches end there; the metric has steps of 0.01."""
    ends = zip(losses, accuracies, strict=True)
    curves = [{"loss": (9.0, 9.001, loss), "accuracy": (0.1, 0.11, share)} for loss, share in ends]
    return trained(name, [Curve(steps=(3, 6, 10), values=values) for values in curves])


FIRST = ending("ddp", (0.5, 0.6, 0.7))
MOVED = ending("moved", (0.501, 0.6, 0.7))  # rounding alone moves the loss by 0.001, and no accuracy


def kept(other: Trainings, *, exact: bool, rules: QualityRules = RULES) -> dict[str, Standing]:
    rows = held([FIRST, other], MOVED, {other.name} if exact else set(), rules)
    return {row.quantity: row for row in rows}


def convergence(other: Trainings, *, exact: bool) -> Convergence:
    rows = tuple(kept(other, exact=exact).values())
    return Convergence(test="t.py::test", world_size=2, metric="accuracy", strategies=(FIRST, other), kept=rows)


def test_the_last_point_of_each_launch_counts() -> None:
    final = FIRST.finals["loss"]
    assert final.samples == (0.5, 0.6, 0.7)
    assert final.value == pytest.approx(0.6)
    assert final.interval is not None
    # t of two degrees; standard deviation 0.1
    assert final.interval.high - 0.6 == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)


@pytest.mark.parametrize(("loss", "agreement"), [(0.5079, "equal"), (0.5081, "differs"), (0.4919, "differs")])
def test_exact_strategies_may_differ_by_eight_times_the_rounding_error(loss: float, agreement: str) -> None:
    """Rounding moved the loss by 0.001: eight times that is allowed."""
    row = kept(ending("flat", (loss, 0.6, 0.7)), exact=True)["loss"]
    assert row.allowed == pytest.approx(0.008)
    assert row.apart == pytest.approx(abs(loss - 0.5))
    assert row.agreement == agreement


def test_if_rounding_changes_nothing_a_ten_thousandth_of_the_loss_is_allowed() -> None:
    found = held([FIRST, ending("flat", (0.5, 0.6, 0.7))], FIRST, {"flat"}, RULES)
    assert [row.allowed for row in found] == [pytest.approx(1e-4 * 0.6), pytest.approx(0.02 * 0.8)]


def test_without_exact_gradients_only_a_worsening_beyond_chance_counts() -> None:
    """Of a mean loss of 0.6 in all launches 10 % worse, then 10 % worse in the mean of launches that scatter."""
    assert kept(ending("powersgd", (0.56, 0.66, 0.76)), exact=False)["loss"].agreement == "worse"
    assert kept(ending("powersgd", (0.50, 0.66, 0.82)), exact=False)["loss"].agreement == "inconclusive"
    assert kept(ending("powersgd", (0.44, 0.54, 0.64)), exact=False)["loss"].agreement == "within tolerance"


def test_a_metric_is_worse_in_its_own_direction() -> None:
    lower = kept(ending("x", (0.5, 0.6, 0.7), (0.7, 0.7, 0.7)), exact=False)["accuracy"]
    assert lower.agreement == "worse"
    assert lower.worse.value == pytest.approx(0.125)
    as_error = QualityRules(metric="accuracy", better="lower", tolerance=0.02)
    assert kept(ending("x", (0.5, 0.6, 0.7), (0.7, 0.7, 0.7)), exact=False, rules=as_error)["accuracy"].worse.value < 0


def test_a_difference_that_rounding_explains_is_equal_even_beyond_the_tolerance() -> None:
    """Rounding moves the loss by 0.1, so 0.8 is allowed; 0.3 more in all launches is 50 % worse."""
    rows = held([FIRST, ending("flat", (0.8, 0.9, 1.0))], ending("moved", (0.6, 0.7, 0.8)), {"flat"}, RULES)
    assert rows[0].worse.value == pytest.approx(0.5)
    assert rows[0].agreement == "equal"


def test_one_step_of_a_metric_in_every_launch_is_not_worse_but_two_are() -> None:
    """Steps of 0.01 of 0.4 are 2.5 %: more than the tolerance, and what a single sample makes."""
    first, *others = (
        ending(name, (0.5, 0.6, 0.7), (share, share, share)) for name, share in (("a", 0.4), ("b", 0.39), ("c", 0.38))
    )
    one, two = (row for row in held([first, *others], first, set(), RULES) if row.quantity == "accuracy")
    assert one.agreement == "inconclusive"
    assert two.agreement == "worse"
    assert two.worse.interval is not None
    assert (two.worse.interval.low, two.worse.interval.high) == pytest.approx((0.025, 0.075))


def test_if_ranks_have_separate_buffers_only_the_loss_has_to_be_equal() -> None:
    higher = ending("flat", (0.5, 0.6, 0.7), (0.9, 0.9, 0.9))
    for same, agreement in ((True, "differs"), (False, "within tolerance")):
        rows = held([FIRST, higher], MOVED, {"flat"}, RULES, same_buffers=same)
        assert [row.agreement for row in rows] == ["equal", agreement]


@pytest.mark.parametrize("launches", [1, 2])
def test_fewer_than_three_launches_say_nothing_of_chance(launches: int) -> None:
    """The second one is worse by 80 %, and by 60 %."""
    first = ending("a", (0.5, 0.6)[:launches], (0.8, 0.8)[:launches])
    rows = held([first, ending("b", (0.9, 0.96)[:launches], (0.8, 0.8)[:launches])], first, set(), RULES)
    assert rows[0].agreement == "inconclusive"


def test_a_loss_near_zero_may_differ_by_a_share_of_a_hundredth_of_its_first_value() -> None:
    """0.009 more, of the 0.09001 that is a hundredth of 9.001."""
    first, other = ending("a", (1e-6,) * 3), ending("b", (0.009,) * 3)
    assert held([first, other], first, set(), RULES)[0].worse.value == pytest.approx(0.1, rel=1e-3)


def test_a_failure_names_both_ends_and_why_they_have_to_agree() -> None:
    assert lost(convergence(ending("flat", (0.5, 0.6, 0.7)), exact=True)) == []
    apart, worse = lost(convergence(ending("flat", (0.53, 0.6, 0.72), (0.7, 0.7, 0.7)), exact=True))
    assert apart == (
        "flat ends with loss 0.617, ddp with 0.600: the largest difference is 0.030 in 3 launches of 10 steps, and "
        "rounding explains 0.008; flat declares that it averages gradients exactly (if this strategy is lossy, give "
        "Parallel(..., lossy=True))"
    )
    assert worse == (
        "flat ends with accuracy 0.700, ddp with 0.800: worse by 12.5 % [97.5 % CI +11.3 .. +13.8] in 3 launches of "
        "10 steps, tolerance 2 %"
    )


def test_curves_and_ends_are_found_by_name() -> None:
    found = convergence(ending("flat", (0.5, 0.6, 0.7)), exact=True)
    assert found.curves["flat"][2].values["loss"] == (9.0, 9.001, 0.7)
    assert found.final("flat").value == pytest.approx(0.8)
    assert found.final("flat", "loss").value == pytest.approx(0.6)
    with pytest.raises(KeyError, match=r"no strategy 'fsdp2' was trained; give one of \['ddp', 'flat'\]"):
        found.final("fsdp2")
    with pytest.raises(KeyError, match=r"no quantity 'f1' was evaluated; give one of \['loss', 'accuracy'\]"):
        found.final("flat", "f1")


def test_all_rows_share_the_level_of_one_test() -> None:
    """Of two rows each has a level of 2.5 %, of four 1.25 %."""
    others = [ending(name, (0.5, 0.6, 0.7), (0.76, 0.75, 0.74)) for name in ("a", "b")]
    for rows in (others[:1], others):
        number = 2 * len(rows)  # the loss and the metric of each
        found = [row for row in held([FIRST, *rows], MOVED, set(), RULES) if row.quantity == "accuracy"]
        for row in found:
            interval = known(row.worse.interval)
            assert interval.confidence == pytest.approx(1 - 0.05 / number)
            half = t_quantile(1 - 0.025 / number, 2) * 0.0125 / math.sqrt(3)  # of 0.05, 0.0625 and 0.075
            assert interval.high - row.worse.value == pytest.approx(half)


def test_a_strategy_with_a_diverged_training_is_worse_whatever_the_others_say() -> None:
    other = ending("bad", (0.5, 0.6, math.nan), (0.8, 0.8, math.nan))
    other = replace(other, lost=("loss is nan at step 7 of 10 on rank 1 in launch 3",))
    assert (other.finals["loss"].interval, math.isnan(other.finals["loss"].value)) == (None, True)
    assert [row.agreement for row in kept(other, exact=True).values()] == ["worse", "worse"]
    assert lost(convergence(other, exact=True)) == [
        "bad: loss is nan at step 7 of 10 on rank 1 in launch 3; with ddp all values stay finite"
    ]
