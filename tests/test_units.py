from __future__ import annotations

import pytest

from pytest_ddpperf import units


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (61.2, "s", "61.2 s"),
        (0.0418, "s", "41.8 ms"),
        (0.00418, "s", "4.18 ms"),
        (418e-6, "s", "418 us"),
        (0.9999e-3, "s", "1.00 ms"),  # rounds up to a full unit
        (5e-9, "s", "5.00 ns"),
        (0.0, "s", "0 s"),
        (-0.002, "s", "-2.00 ms"),
        (512.0, "B", "512 B"),
        (1536.0, "B", "1.50 KiB"),  # 1.5 * 1024
        (432013312.0, "B", "412 MiB"),  # 412 * 2**20
        (3.0 * 2**30, "B", "3.00 GiB"),
        (0.0, "B", "0 B"),
        (765.4, "samples/s", "765 samples/s"),
        (9876.0, "samples/s", "9876 samples/s"),
        (123456.0, "tokens/s", "123 k tokens/s"),
        (2.5e6, "tokens/s", "2.50 M tokens/s"),
        (0.8736, "1", "0.874"),
        (-0.0001, "1", "-0.0001"),
        (3.14159, "W", "3.14 W"),
    ],
)
def test_value_reads_in_the_unit_that_fits(value: float, unit: str, text: str) -> None:
    assert units.format_value(value, unit) == text


def test_a_group_has_one_unit_fit_for_its_typical_value() -> None:
    # The median of 0.9 ms, 40 ms and 2 s is 40 ms.
    assert units.format_values([0.0009, 0.040, 2.0], "s") == ("0.900 ms", "40.0 ms", "2000 ms")


def test_a_value_too_small_for_the_unit_of_its_group_has_its_own() -> None:
    assert units.format_values([2.0, 3e-6, 0.0], "s") == ("2.00 s", "3.00 us", "0 s")
    assert units.exact_texts("FLOP", [4.3e10, 3e5]) == ["43 GFLOP", "300 kFLOP"]


def test_an_empty_group_has_the_base_unit() -> None:
    assert units.scale([], "s").unit == "s"
    assert units.scale([float("nan"), 0.04, 0.05], "s").unit == "ms"


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.132, "+13.2 %"), (-0.004, "-0.4 %"), (-0.00001, "+0.0 %"), (0.0, "+0.0 %"), (12.5, "+1250 %")],
)
def test_change_has_a_sign_and_never_a_negative_zero(change: float, text: str) -> None:
    assert units.format_change(change) == text


@pytest.mark.parametrize(("share", "text"), [(0.03, "3 %"), (0.021, "2.1 %"), (0.0, "0 %"), (0.1, "10 %")])
def test_share_has_no_trailing_zero(share: float, text: str) -> None:
    assert units.format_percent(share) == text


@pytest.mark.parametrize(
    ("difference", "unit", "text"), [(-0.07, "1", "-0.070"), (0.031, "1", "+0.031"), (1024.0, "B", "+1.00 KiB")]
)
def test_difference_has_a_sign(difference: float, unit: str, text: str) -> None:
    assert units.format_difference(difference, unit) == text


def test_a_difference_that_rounding_leaves_is_nothing() -> None:
    assert units.format_difference(1.7e-20, "1", (0.3, -0.2)) == "0"
    assert units.format_difference(0.1 + 0.2 - 0.3, "s", (0.3, 0.3)) == "0"
    assert units.format_difference(1.7e-20, "1", (1.7e-20, 0.0)) == "+1.7e-20"
    assert units.format_difference(1e-6, "1", (0.3,)) == "+1e-06"


@pytest.mark.parametrize(
    ("number", "noun", "text"), [(1, "rank", "1 rank"), (2, "rank", "2 ranks"), (8, "launch", "8 launches")]
)
def test_count_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert units.format_count(number, noun) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (5.0, "5"), (1234567.0, "1,234,567"), (0.25, "0.25"), (1 / 3, "0.333")]
)
def test_plain_numbers_have_few_digits(value: float, text: str) -> None:
    assert units.format_number(value) == text


def test_a_clock_shows_minutes_and_seconds() -> None:
    assert units.format_clock(250.9) == "4:10"
    assert units.format_clock(3725.0) == "62:05"


@pytest.mark.parametrize(
    ("nbytes", "below", "above"),
    [
        (1, "1", "1"),
        (1000, "512", "1KiB"),
        (25 * 2**20, "16MiB", "32MiB"),
        (2**25, "32MiB", "32MiB"),
        (2e9, "1GiB", "2GiB"),
    ],
)
def test_a_size_is_rounded_to_a_power_of_two_that_an_option_accepts(nbytes: float, below: str, above: str) -> None:
    assert (units.power_of_two(nbytes), units.power_of_two(nbytes, above=True)) == (below, above)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1024.0**2, 4.0 * 1024**2], ["1.00 MiB", "4.00 MiB"]),
        ([526844.0, 526848.0], ["526,844 B", "526,848 B"]),  # in KiB 514 and 515
        ([514.0 * 1024, 515.0 * 1024], ["514 KiB", "515 KiB"]),
        ([2048.0, 2048.0], ["2.00 KiB", "2.00 KiB"]),
        ([2048 + 0.1 + 0.2, 2048.3], ["2.00 KiB", "2.00 KiB"]),  # sums of fractions
        ([0.0, 0.0], ["0 B", "0 B"]),
        ([43.2 * 1024, 0.8], ["43.2 KiB", "0.8 B"]),  # a mean of steps
        ([3.0 * 2**30, 1.5, 0.0], ["3.00 GiB", "1.5 B", "0 GiB"]),
    ],
)
def test_texts_of_different_counts_show_their_difference(values: list[float], texts: list[str]) -> None:
    assert units.exact_texts("B", values) == texts
