"""A strategy and its options, as a test names them. Importable without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import written

Option: TypeAlias = "str | int | float | bool"

_TEXT = re.compile(r"\s*(?P<name>[^\[\]\s]+)\s*(?:\[(?P<options>[^\[\]]*)\])?\s*")


@dataclass(frozen=True, init=False)
class Strategy:
    """A strategy of parallel training with options: ``Strategy("ddp", bucket_cap_mb=5)`` or ``ddp[bucket_cap_mb=5]``.

    Attributes:
        name: the name in the table of strategies; for a function, its name with a partial's arguments: ``mine(cap=1)``.
        options: the given options, by torch's own names, sorted; other options have torch's defaults.
        function: ``parallelise(module, ctx) -> Parallel`` of a strategy that is not in the table; else None.
    """

    name: str
    options: Mapping[str, Option]
    function: Callable[..., Any] | None

    def __init__(self, name: str | Callable[..., Any], /, **options: Option) -> None:
        function = None if isinstance(name, str) else name
        called = name if isinstance(name, str) else _called(name)
        object.__setattr__(self, "name", called)
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(options.items()))))
        object.__setattr__(self, "function", function)

    def __str__(self) -> str:
        said = ",".join(f"{name}={written(value)}" for name, value in self.options.items())
        return f"{self.name}[{said}]" if said else self.name

    def __hash__(self) -> int:
        return hash((str(self), self.function))

    def __reduce__(self) -> tuple[Any, ...]:
        return added, (self.name, self.function, dict(self.options))


def parse(text: str) -> Strategy:
    """Parses ``name[option=value,...]`` and returns the strategy; the values stay text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise SettingError(f"strategy {text!r}: expected a name, or a name with options as in ddp[bucket_cap_mb=5]")
    options: dict[str, Option] = {}
    for part in filter(None, map(str.strip, (match["options"] or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise SettingError(
                f"strategy {text!r}: cannot read option {part!r}; write option=value, as in ddp[bucket_cap_mb=5]"
            )
        if name in options:
            raise SettingError(f"strategy {text!r}: option {name} is given twice")
        options[name] = value
    return Strategy(match["name"], **options)


def _called(function: Callable[..., Any]) -> str:
    """Returns a name for a function that is a strategy: ``mine()``; ``mine(cap=1)`` for a partial."""
    said = ""
    if isinstance(function, partial):
        words = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        said, function = ",".join(words), function.func
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    if name == "<lambda>":
        raise SettingError("a function that is a strategy needs a name: define it with def")
    return f"{name}({said})"


def added(name: str, function: Callable[..., Any] | None, options: Mapping[str, Option]) -> Strategy:
    """Returns the strategy with this name; ``function`` implements it if it is not in the plugin's table."""
    strategy = Strategy(name, **options)
    object.__setattr__(strategy, "function", function)
    return strategy
