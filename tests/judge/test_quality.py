"""What two ends of trainings mean, with numbers worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddpperf.judge.quality import QualityRules, held, lost, trained
from pytest_ddpperf.records.convergence import Convergence, Curve, Standing, Trainings

RULES = QualityRules(metric="accuracy", better="higher", tolerance=0.02)


def ending(name: str, losses: Sequence[float], accuracies: Sequence[float] = (0.8, 0.8)) -> Trainings:
    """A strategy whose launches end there."""
    ends = zip(losses, accuracies, strict=True)
    return trained(
        name, [Curve(steps=(5, 10), values={"loss": (9.0, loss), "accuracy": (0.1, share)}) for loss, share in ends]
    )


FIRST = ending("ddp", (0.5, 0.7))
MOVED = ending("moved", (0.501, 0.7))  # rounding alone moves the loss by 0.001, and no accuracy


def kept(other: Trainings, *, exact: bool, rules: QualityRules = RULES) -> dict[str, Standing]:
    rows = held([FIRST, other], MOVED, {other.name} if exact else set(), rules)
    return {row.quantity: row for row in rows}


def convergence(other: Trainings, *, exact: bool) -> Convergence:
    rows = tuple(kept(other, exact=exact).values())
    return Convergence(test="t.py::test", world_size=2, metric="accuracy", strategies=(FIRST, other), kept=rows)


def test_the_last_point_of_each_launch_counts() -> None:
    final = FIRST.finals["loss"]
    assert final.samples == (0.5, 0.7)
    assert final.value == pytest.approx(0.6)
    assert final.interval is not None
    assert final.interval.high - 0.6 == pytest.approx(12.706 * 0.1, rel=1e-4)  # t of one degree, standard error 0.1


@pytest.mark.parametrize(("loss", "agreement"), [(0.5079, "equal"), (0.5081, "differs"), (0.4919, "differs")])
def test_exact_strategies_may_differ_by_what_rounding_does_in_any_direction(loss: float, agreement: str) -> None:
    """Rounding moved the loss by 0.001: eight times that is allowed."""
    row = kept(ending("flat", (loss, 0.7)), exact=True)["loss"]
    assert row.allowed == pytest.approx(0.008)
    assert row.apart == pytest.approx(abs(loss - 0.5))
    assert row.agreement == agreement


def test_where_rounding_moves_nothing_a_ten_thousandth_of_the_loss_is_allowed() -> None:
    found = held([FIRST, ending("flat", (0.5, 0.7))], FIRST, {"flat"}, RULES)
    assert [row.allowed for row in found] == [pytest.approx(1e-4 * 0.6), pytest.approx(0.02 * 0.8)]


def test_without_exact_gradients_only_a_worsening_beyond_chance_counts() -> None:
    """Of a mean loss of 0.6 in both launches 10 % worse, then 10 % worse in the mean of launches that scatter."""
    assert kept(ending("powersgd", (0.56, 0.76)), exact=False)["loss"].agreement == "worse"
    assert kept(ending("powersgd", (0.50, 0.82)), exact=False)["loss"].agreement == "within tolerance"
    assert kept(ending("powersgd", (0.44, 0.64)), exact=False)["loss"].agreement == "within tolerance"


def test_a_metric_is_worse_in_its_own_direction() -> None:
    lower = kept(ending("x", (0.5, 0.7), (0.7, 0.7)), exact=False)["accuracy"]
    assert lower.agreement == "worse"
    assert lower.worse.value == pytest.approx(0.125)
    as_error = QualityRules(metric="accuracy", better="lower", tolerance=0.02)
    assert kept(ending("x", (0.5, 0.7), (0.7, 0.7)), exact=False, rules=as_error)["accuracy"].worse.value < 0


def test_a_failure_names_both_ends_and_why_they_have_to_agree() -> None:
    assert lost(convergence(ending("flat", (0.5, 0.7)), exact=True)) == []
    apart, worse = lost(convergence(ending("flat", (0.53, 0.72), (0.7, 0.7)), exact=True))
    assert apart == (
        "flat ends with loss 0.625, ddp with 0.600: 0.030 apart in 2 launches of 10 steps, and rounding explains "
        "0.008; both average gradients exactly, so they have to agree"
    )
    assert worse == (
        "flat ends with accuracy 0.700, ddp with 0.800: worse by 12.5 % [95 % CI +12.5 .. +12.5] in 2 launches of "
        "10 steps, tolerance 2 %"
    )


def test_curves_and_ends_are_found_by_name() -> None:
    found = convergence(ending("flat", (0.5, 0.7)), exact=True)
    assert found.curves["flat"][1].values["loss"] == (9.0, 0.7)
    assert found.final("flat").value == pytest.approx(0.8)
    assert found.final("flat", "loss").value == pytest.approx(0.6)
    with pytest.raises(KeyError, match=r"'fsdp2' was not trained; there are \['ddp', 'flat'\]"):
        found.final("fsdp2")
    with pytest.raises(KeyError, match=r"no quantity 'f1'; there are \['loss', 'accuracy'\]"):
        found.final("flat", "f1")
