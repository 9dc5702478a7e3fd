"""Checks numbers and names that users give to formulas; an error names the argument, its value and possible values."""

from __future__ import annotations

import math
from collections.abc import Collection

from pytest_ddpperf.errors import SettingError


def require_ranks(name: str, value: int, least: int = 1) -> int:
    """Returns the value if it is a whole number of at least ``least``; else raises a SettingError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name}={value!r} is not valid; give a whole number of at least {least}")
    return value


def require_number(name: str, value: float, *, positive: bool = False) -> float:
    """Returns the value if it is finite and at least 0 (above 0 if ``positive``); else raises a SettingError."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (positive and value == 0):
        bound = "more than 0" if positive else "at least 0"
        raise SettingError(f"{name}={value!r} is not valid; give a finite number of {bound}")
    return float(value)


def require_one_of(name: str, value: str, known: Collection[str]) -> str:
    """Returns the value if it is one of ``known``; else raises a SettingError."""
    if value not in known:
        raise SettingError(f"{name}={value!r} is not known; give one of {', '.join(known)}")
    return value
