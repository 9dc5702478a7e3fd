"""Runs on a rank of ``ddpperf_group``: calls the user's function, and returns its result or its error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.faults.exceptions import failed_report, to_stderr
from pytest_ddpperf.strategies.strategy import mesh_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RankError:
    """An error that a rank raised.

    Attributes:
        type: the name of its class, with the module unless it is built in.
        text: its message.
        traceback: its traceback, as text.
        expected: whether it is an instance of the class that ``raises_all`` was given.
    """

    type: str
    text: str
    traceback: str
    expected: bool = True

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCall:
    """A call of the user's function on a rank."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mapping[str, int] | None = None
    keep: type[Exception] | None = None  # errors of this class are as expected; None if none is kept
    plain: bool = False  # whether tensors and arrays are sent as lists


def call(ctx: RankContext, given: GroupCall) -> Any:
    """Calls the user's function on this rank; returns its result, or with ``given.keep`` its error as a RankError."""
    if given.mesh is not None:
        ctx = replace(ctx, mesh=mesh_of(ctx, given.mesh))
    try:
        value = given.function(ctx, *given.arguments)
    except Exception as error:
        if given.keep is None:
            raise
        report = failed_report(error, "run")
        to_stderr(report.traceback)  # for a launch that fails by another rank
        return RankError(
            type=report.type, text=report.text, traceback=report.traceback, expected=isinstance(error, given.keep)
        )
    return plain(value) if given.plain else value


def plain(value: Any) -> Any:
    """Returns a copy of a value with lists of numbers in place of tensors and arrays."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def first_difference(one: Any, other: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Returns path and values of the first difference, such as ``[0]['loss'], 1, 2``, or None; NaN equals NaN."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = ((f"{place}[{key!r}]", one[key], other[key]) for key in one)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = ((f"{place}[{number}]", *both) for number, both in enumerate(zip(one, other, strict=True)))
    elif type(one) is type(other) and (one == other or (one != one and other != other)):  # noqa: PLR0124  NaN
        return None
    else:
        return place, one, other
    return next(filter(None, (first_difference(mine, theirs, at) for at, mine, theirs in pairs)), None)
