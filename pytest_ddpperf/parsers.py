"""The parsers of settings. A parser returns the value, or raises ValueError with the form that it expects."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SWITCH_WORDS = {True: ("true", "yes", "on", "1"), False: ("false", "no", "off", "0")}  # what ini files use


def _sizes(least: int) -> Callable[[object], tuple[int, ...]]:
    def parse(value: object) -> tuple[int, ...]:
        """Parses numbers of ranks, ``4``, ``"1,2,4"`` or ``[1, 2, 4]``, and returns them as an ascending tuple."""
        if isinstance(value, str):
            value = value.split(",")
        parts: Iterable[object] = value if isinstance(value, Iterable) else (value,)
        with contextlib.suppress(ValueError):
            sizes = sorted({positive_int(part) for part in parts})
            if sizes and sizes[0] >= least:
                return tuple(sizes)
        raise ValueError(f"a number of ranks of at least {least}, or several separated by commas, such as 2,4,8")

    return parse


world_sizes = _sizes(1)
sizes_of_groups = _sizes(2)


def _at_least(least: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"a whole number of at least {least}")
        return value

    return parse


whole_number = _at_least(0)
positive_int = _at_least(1)
several = _at_least(2)


def mesh(value: object) -> Mapping[str, int]:
    """Parses the sizes of a mesh's dimensions, ``{"dp": 2, "tp": 2}`` or ``"dp=2,tp=2"``, and returns them by name."""
    pairs = list(value.items()) if isinstance(value, Mapping) else []
    if isinstance(value, str):
        pairs = [part.partition("=")[::2] for part in value.split(",")]
    sizes = {str(name).strip(): given for name, given in pairs}
    if not sizes or len(sizes) < len(pairs) or not all(map(str.isidentifier, sizes)):
        raise ValueError("the sizes of dimensions by name, such as dp=2,tp=2")
    return {name: positive_int(size) for name, size in sizes.items()}


def variables(value: object) -> tuple[tuple[str, str], ...]:
    """Parses a mapping of environment variables, ``{"NCCL_ALGO": "Ring"}``; returns sorted pairs of strings."""
    given = dict(value) if isinstance(value, Mapping) else {"": None}
    named = all(isinstance(name, str) and name and not {"=", "\0"} & {*name} for name in given)
    texts = (isinstance(text, (str, int, float)) and not isinstance(text, bool) for text in given.values())
    if not named or not all(texts) or any("\0" in str(text) for text in given.values()):
        raise ValueError("environment variables by name, with texts or numbers, such as {'NCCL_ALGO': 'Ring'}")
    return tuple(sorted((name, str(text)) for name, text in given.items()))


def words(value: object) -> str:
    """Parses a text; refuses an empty one."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def steps_or_warmup(value: object) -> int | str:
    """Parses a number of steps of at least 0, or ``warmup``."""
    if value == "warmup":
        return "warmup"
    try:
        return whole_number(value)
    except ValueError as error:
        raise ValueError(f"{error}, or warmup") from None


def optional(parse: Callable[[object], T], none: str) -> Callable[[object], T | None]:
    """Wraps ``parse`` to return None for two values: None, and the word in ``none``."""

    def parse_optional(value: object) -> T | None:
        if value is None or (isinstance(value, str) and value.strip().lower() == none):
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {none}") from None

    vars(parse_optional)["none"] = none
    return parse_optional


def written(value: object) -> str:
    """Formats a value of a setting in the form that the command line accepts, so that it can be parsed again."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):  # members of an enumeration, in the order of their declaration
        return ",".join(member.value for member in type(next(iter(value))) if member in value) if value else "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _above_zero(expected: str) -> Callable[[object], float]:
    def parse(value: object) -> float:
        number = _number(value, expected)
        if number == 0:
            raise ValueError(expected)
        return number

    return parse


def fraction(value: object) -> float:
    """Parses a fraction of at least 0: ``0.03`` or ``"3%"``. Numbers above 1 need a percent sign, so 3 is refused."""
    return _share(value, "a fraction from 0 to 1, such as 0.03, or a percentage, such as 3%")


def positive_fraction(value: object) -> float:
    """Parses a fraction above 0, in the forms that ``fraction`` accepts."""
    expected = "a fraction above 0 and up to 1, such as 0.1, or a percentage, such as 10%"
    if (share := _share(value, expected)) == 0:
        raise ValueError(expected)
    return share


def _share(value: object, expected: str) -> float:
    if isinstance(value, str) and value.strip().endswith("%"):
        return _number(value.strip()[:-1], expected) / 100
    share = _number(value, expected)
    if share > 1:
        raise ValueError(expected)
    return share


def _number(value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(expected)  # noqa: TRY004 - one kind of error for every value that does not fit
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(expected)
    return number


amount = _above_zero("a number above 0")
_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def duration(value: object) -> float:
    """Parses a time above 0, ``90``, ``"90s"``, ``"10min"``, ``"10m"`` or ``"1.5h"``, and returns seconds."""
    expected = "a time above 0, such as 90s, 10min or 1h"
    unit = next((unit for unit in _UNITS if isinstance(value, str) and value.strip().endswith(unit)), None)
    number = value if unit is None or not isinstance(value, str) else value.strip().removesuffix(unit)
    return _above_zero(expected)(number) * _UNITS[unit or "s"]


_BYTES = r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?B|B|)\s*"  # compiled on first use: loading is cheap


def byte_count(value: object) -> int:
    """Parses a number of bytes: ``2147483648``, ``"2GiB"``, ``"500 MB"``; KB is 1000 bytes, KiB 1024."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and (match := re.fullmatch(_BYTES, value)):
        unit = match["unit"]
        power = "KMGT".find(unit[:1]) + 1 if unit else 0
        count = float(match["number"]) * (1024 if unit.endswith("iB") else 1000) ** power
        if 1 <= count < math.inf:
            return int(count)
    raise ValueError("a number of bytes above 0, such as 2GiB, 500MB or 1073741824")


def argument(parse: Callable[[object], T]) -> Callable[[str], T]:
    """Wraps a parser so that it raises ArgumentTypeError, the only error whose message argparse shows."""
    import argparse

    def parse_argument(value: str) -> T:
        try:
            return parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}") from None

    return parse_argument


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns a question that suggests the most similar known word; empty if the similarity is below ``cutoff``."""
    import difflib  # only for messages: loading the plugin stays cheap

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else ""


def instead(hint: str, known: Iterable[str]) -> str:
    """Returns ``hint``, such as "did you mean warmup?", followed by a sentence that lists the known words."""
    return f"{hint} There are {', '.join(known)}" if hint else f"there are {', '.join(known)}"


def one_of(*choices: str) -> Callable[[object], str]:
    """Returns a case-insensitive parser for one of ``choices``; it reads True as ``on``, False as ``off`` or ``no``."""
    booleans = {"on": "true", "off": "false", "no": "false"}  # as TOML and Python have them
    found = {word: choice for choice in choices for word in (choice.lower(), booleans.get(choice, choice.lower()))}

    def parse(value: object) -> str:
        word = str(value).strip().lower() if isinstance(value, (bool, str)) else ""
        if word not in found:
            raise ValueError(f"one of {', '.join(choices)}")
        return found[word]

    return parse


def switch(value: object) -> bool:
    """Parses on or off: a bool, or one of the words that are usual in ini files."""
    word = str(value).strip().lower()
    found = next((switched for switched, words in SWITCH_WORDS.items() if word in words), None)
    if found is None or not isinstance(value, (bool, int, str)):
        raise ValueError("true or false")
    return found


def literal(value: object) -> str | int | float | bool:
    """Parses a text that is a number, or a word such as ``true`` or ``off``; returns any other text unchanged."""
    if not isinstance(value, str):
        return value if isinstance(value, (bool, int, float)) else str(value)
    for parse in (int, float, switch):
        with contextlib.suppress(ValueError):
            return parse(value)
    return value


def _matching(pattern: str, expected: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(expected)
        return value

    return parse


def modules(value: object) -> tuple[str, ...]:
    """Parses dotted names of modules, separated by commas; the word ``none`` means no module."""
    parts = value.split(",") if isinstance(value, str) else value
    names = [part.strip() if isinstance(part, str) else "" for part in parts] if isinstance(parts, Iterable) else [""]
    if names == ["none"]:
        return ()
    if not names or "none" in names or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError("auto, none, or names of modules, separated by commas")
    return tuple(names)


identifier = _matching(r"[A-Za-z0-9_-]+", "a name")
set_name = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits, dots, dashes and underscores")


def reports(value: object) -> tuple[tuple[str, Path], ...]:
    """Parses lines with a kind of report and a file, ``"markdown:comment.md"``; ``none`` drops the lines above it."""
    parts = value.split("\n") if isinstance(value, str) else value
    given = [str(part).strip() for part in parts] if isinstance(parts, Iterable) else [""]
    below = given[len(given) - given[::-1].index("none") :] if "none" in given else given
    found = [(kind, Path(file)) for kind, _, file in (part.partition(":") for part in below if part)]
    if (not found and given[-1:] != ["none"]) or not all(kind and str(file) != "." for kind, file in found):
        raise ValueError("KIND:FILE, such as markdown:comment.md")
    return tuple(found)


def path(value: object) -> Path:
    """Parses the path of a file or folder; refuses an empty text."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("a path")
    return Path(value)


def switch_or_path(value: object) -> bool | Path:
    """Parses on or off, as ``switch`` does, or a path; ``./on`` is the path of a file with the name ``on``."""
    try:
        return switch(value)
    except ValueError:
        if not isinstance(value, (str, Path)) or not str(value).strip():
            raise ValueError("true, false or a folder") from None
    return Path(value)
