"""Text for quantities: seconds, bytes, rates, ratios and changes, each in the unit that reads best."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_BINARY = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
_RATES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_FLOPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_ROUNDING = 1e-9  # share of the largest value: the difference that rounding may leave
_FEW = 10  # bytes: fewer have a decimal, if they are a mean
_TINY = re.compile(r"-?(?:0\.00|\d\S*e-)")  # numbers that read better in a smaller unit
_PLAIN_RATE_LIMIT = 1e4  # 2450 samples/s reads better than 2.45 k; 123456 does not


@dataclass(frozen=True)
class Scale:
    """One unit for a group of values: reports print ``value / factor`` before ``unit``."""

    factor: float
    unit: str  # such as ``ms`` or ``MiB``; empty for plain ratios
    exact: bool = False  # whether the values are whole numbers of the base unit (bytes below 1 KiB)

    def number(self, value: float) -> str:
        """Formats the value in this unit, without its name: to three digits, or as a whole number if ``exact``."""
        scaled = value / self.factor
        exactly = f"{scaled:.2g}" if abs(scaled) < _FEW else f"{scaled:.0f}"
        return exactly if self.exact else significant(scaled)

    def text(self, value: float) -> str:
        """Returns the value in this unit, with the unit's name."""
        return f"{self.number(value)} {self.unit}".rstrip()


def scale(values: Iterable[float], unit: str) -> Scale:
    """Returns the unit in which a group of values is easy to read, chosen by the median of their sizes."""
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    typical = statistics.median(sizes) if sizes else 0.0
    if unit == "1":
        return Scale(1.0, "")
    if unit == "s":
        return Scale(*_largest(_SECONDS, typical or 1.0))
    if unit == "B":
        factor, name = _largest(_BYTES, typical)
        return Scale(factor, name, exact=name == "B")
    if unit == "FLOP" or (unit.endswith("/s") and typical >= _PLAIN_RATE_LIMIT):
        factor, prefix = _largest(_RATES, typical)
        return Scale(factor, f"{prefix}{'' if unit == 'FLOP' else ' '}{unit}".lstrip())
    return Scale(1.0, unit)


def _largest(steps: tuple[tuple[float, str], ...], typical: float) -> tuple[float, str]:
    """Returns the largest unit, as (factor, name), that is at most ``typical``; else the smallest unit."""
    # A value that rounds up to a full unit is printed in that unit: 0.9999 ms is 1.00 ms, not 1000 us.
    return next(((factor, name) for factor, name in steps if typical >= factor * 0.9995), steps[-1])


def significant(value: float) -> str:
    """Formats a number to three digits, with all digits before the point and at most three decimals: 4182, 0.012.

    A number below 0.01 has two digits: 0.0042, 4.2e-06.
    """
    size = abs(value)
    if size < 0.00995:  # noqa: PLR2004 - in three decimals it would have one digit or none
        return f"{value + 0.0:.2g}"
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3  # noqa: PLR2004 - digits
    return f"{_rounded(value, decimals):.{decimals}f}"


def format_number(value: float) -> str:
    """Formats a plain number, such as a count: 1,234 if it is whole, else with at most three decimals: 0.25."""
    if 0 < abs(value) < 0.001:  # noqa: PLR2004 - three decimals show nothing of it
        return significant(value)
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def span(text: Callable[[Any], str], values: Iterable[Any]) -> str:
    """Formats the least and the greatest value with ``text``: ``12 to 38``; equal texts appear once."""
    every = list(values)
    return " to ".join(dict.fromkeys((text(min(every)), text(max(every)))))


def format_value(value: float, unit: str) -> str:
    """Formats a quantity in the unit that fits its size: ``format_value(0.0418, "s")`` is ``41.8 ms``."""
    return scale([value], unit).text(value)


def format_values(values: Iterable[float], unit: str) -> tuple[str, ...]:
    """Formats several quantities in one unit (see ``scale``); a value below 0.01 of this unit gets a smaller unit."""
    group = tuple(values)
    common = scale(group, unit)
    texts = ((value, common.text(value)) for value in group)
    return tuple(format_value(value, unit) if _TINY.match(text) else text for value, text in texts)


def ordinal(number: int) -> str:
    """Formats an ordinal number: ``1st``, ``12th``, ``22nd``."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in {11, 12, 13} else last}"


def power_of_two(nbytes: float, *, above: bool = False) -> str:
    """Rounds ``nbytes`` down, or with ``above`` up, to a power of two, and formats the result: ``32MiB``."""
    number = 1 << (math.ceil(nbytes) - 1).bit_length() if above else 1 << max(0, int(nbytes).bit_length() - 1)
    shift, unit = next(((shift, unit) for shift, unit in _BINARY if number >> shift), (0, ""))
    return f"{number >> shift}{unit}"


def exact_texts(unit: str, values: Iterable[float]) -> list[str]:
    """Formats counts in one unit; rounds them only as far as the texts still show the differences between counts."""
    values = [float(f"{value:.12g}") for value in values]
    plain = [f"{format_number(value)} {unit}".removesuffix(" 1") for value in values]
    scaled = {"B": lambda: list(map(scale(values, unit).text, values)), "FLOP": lambda: _flop_texts(values)}
    for texts in (scaled[unit]() if unit in scaled else plain, plain):
        if _differ_as(values, texts):
            each = zip(values, texts, strict=True)
            return [exact_texts(unit, [x])[0] if values[1:] and _TINY.match(text) else text for x, text in each]
    return [f"{value!r} {unit}".removesuffix(" 1") for value in values]


def _differ_as(values: Sequence[float], texts: Sequence[str]) -> bool:
    """Returns whether rounded texts show the differences of successive values with an error of at most 50 %."""
    told = [float(text.split()[0].replace(",", "")) for text in texts]
    unit = max(map(abs, values), default=0.0) / (max(map(abs, told), default=0.0) or 1.0)
    pairs = zip(pairwise(values), pairwise(told), strict=True)
    return all(abs((now - then) * unit - (new - old)) <= abs(new - old) / 2 for (old, new), (then, now) in pairs)


def _flop_texts(values: Sequence[float]) -> list[str]:
    largest = max(map(abs, values), default=0.0)
    factor, prefix = next((step for step in _FLOPS if largest >= step[0]), _FLOPS[-1])
    return [f"{value / factor:.4g} {prefix}FLOP" for value in values]


def format_change(change: float) -> str:
    """Formats a relative change in percent, with its sign: 0.132 is ``+13.2 %``."""
    return f"{signed_percent(change)} %"


def signed_percent(change: float) -> str:
    """Formats a relative change in percent, with its sign but without the unit: 0.132 is ``+13.2``."""
    percent = 100 * change
    decimals = 0 if abs(percent) >= 999.5 else 1  # noqa: PLR2004 - from 1000 % on a decimal means nothing
    return f"{_rounded(percent, decimals):+.{decimals}f}"


def format_percent(share: float) -> str:
    """Formats a share in percent, without a sign: 0.03 is ``3 %``, 0.021 is ``2.1 %``, 20 is ``over 1000 %``."""
    if share > 10:  # noqa: PLR2004 - from a few launches, so large an effect may be anything
        return "over 1000 %"
    if 1e-9 < share < 0.0005:  # noqa: PLR2004 - one decimal would be 0; less is rounding
        return f"{100 * share:.2g} %"
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def format_difference(difference: float, unit: str, of: Iterable[float] = ()) -> str:
    """Formats a difference with its sign, in the unit that fits its size: -0.07 in unit ``1`` is ``-0.070``.

    ``of`` has the two subtracted values. A difference as small as their rounding errors becomes ``0``.
    """
    if abs(difference) <= _ROUNDING * max(map(abs, of), default=0.0):
        return "0"
    text = format_value(difference, unit)
    return text if text.startswith("-") else f"+{text}"


def _rounded(value: float, decimals: int) -> float:
    # Adding 0.0 turns the -0.0 that rounding leaves into 0.0: nothing has no sign.
    return round(value, decimals) + 0.0


def format_count(number: int, noun: str) -> str:
    """Formats a number with its noun: ``1 rank``, ``2 ranks``; ``launch``: ``2 launches``, ``entry``: ``2 entries``."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def format_clock(seconds: float) -> str:
    """Formats seconds as minutes and seconds: ``4:10``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
