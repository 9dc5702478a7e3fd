"""Lines for a terminal: wrapped at its width, without control characters; and short names of benchmarks."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar
from unicodedata import category, east_asian_width

if TYPE_CHECKING:
    from pytest_ddpperf.judge.calibration import Calibrated
    from pytest_ddpperf.records.results import Result

Listed = TypeVar("Listed", bound="Result | Calibrated")
"""A benchmark that has a row in a table: a result or a calibration."""

_LONGEST_NAME = 120  # characters of a benchmark's name in the name of a file: file systems take 255
_SAFE = re.compile(r"[A-Za-z0-9_.,=+-]+")
INDENT = "  "
JOINED = "\u00a0"  # a space that no line is broken at
CUT = "..."
_LONGEST = 600  # characters of a remark; failure messages show the errors of ranks completely
_NUMBER = re.compile(r"(?<![^\s([+-])([\d.,]*\d) (?=[%A-Za-z])")  # a number and the space before what it counts
LABEL = 11  # columns of the label of a paragraph
_NAMED = 3  # benchmarks or metrics with the same remark


def printable(text: str, keep: str = "") -> str:
    r"""Returns the text with an escape for each control character not in ``keep``: a terminal's ESC is ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def wrapped(lines: Iterable[str], width: int | None, *, clipped: bool = False) -> list[str]:
    """Wraps lines at ``width`` columns, with an indent; returns them unwrapped if ``width`` is None.

    ``clipped``: whether to cut lines after ``_LONGEST`` characters.
    """
    lines = list(map(printable, lines))
    if width is None:
        return lines
    if clipped:
        lines = [line if len(line) <= _LONGEST else line[: _LONGEST - len(CUT)] + CUT for line in lines]
    return [part for line in lines for part in folded(line, width, INDENT * (1 + line.startswith(INDENT)))]


def columns(text: str) -> int:
    """Returns how many columns of a terminal a text needs: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if category(each) in {"Mn", "Me"} else 1 + (east_asian_width(each) in "WF") for each in text)


def folded(line: str, width: int, indent: str = "") -> list[str]:
    """Wraps a line at ``width`` columns, but not between a number and its unit. Only overlong words are broken."""
    parts, width = [""], max(width, columns(indent) + 2)
    for i, word in enumerate(_NUMBER.sub(rf"\1{JOINED}", line).split(" ")):
        longer = f"{parts[-1]} {word}" if i else word
        if columns(longer) > width and parts[-1].strip():
            if not word:
                continue
            parts[-1] = parts[-1].rstrip(" ")
            parts.append(longer := indent + word)
        parts[-1] = longer
        while columns(parts[-1]) > width:
            fits = next(end for end in range(width, 0, -1) if columns(parts[-1][:end]) <= width)
            parts[-1:] = [parts[-1][:fits], indent + parts[-1][fits:]]
    return [part.replace(JOINED, " ") for part in parts]


def labelled(label: str, text: str, width: int) -> list[str]:
    """Returns a paragraph after its label; further lines are indented."""
    return folded(f"{label:<{LABEL}}{printable(text)}", width, " " * LABEL)


def command(label: str, text: str, width: int) -> list[str]:
    """Returns a command after its label, in lines that a shell reads as one command."""
    first, *options = printable(text).split(" --")
    lines = [f"{label:<{LABEL}}{first}"]
    for option in options:
        longer = f"{lines[-1]} --{option}"
        lines[-1:] = [longer] if len(longer) + 2 <= width else [f"{lines[-1]} \\", f"{'':{LABEL}}--{option}"]
    return lines


def cut_after(most: int | None, lines: Sequence[str], width: int) -> list[str]:
    """Returns the first lines of a paragraph, with dots if there are more; all lines if ``most`` is None."""
    if most is None or len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"{folded(lines[most - 1], width - len(CUT) - 1)[0]} {CUT}"]


def words_of(names: Iterable[object]) -> str:
    """Returns names as a list in words: ``forward, backward and optimizer``."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def whom(names: Sequence[str], total: int) -> str:
    """Returns a text for some of ``total`` benchmarks: ``all 5 benchmarks``, ``4 of 7 benchmarks``, or the names."""
    if len(names) == total > 1:
        return "both benchmarks" if total == 2 else f"all {total} benchmarks"  # noqa: PLR2004
    if len(names) > _NAMED and 2 * len(names) >= total:
        return f"{len(names)} of {total} benchmarks"
    return some_of(names)


def some_of(names: Sequence[str]) -> str:
    """Returns the names as a list in words, shortened if there are many: ``flops, operators, buffers and 2 more``."""
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_NAMED])} and {more} more"


def file_stem(name: str) -> str:
    """Returns the name of a benchmark's file, without suffix: letters, digits and ``_.,=+-`` of the benchmark's name.

    If the name is cut or has other characters, a checksum is added, so that no two benchmarks share a file.
    """
    plain = name.replace(".py::", ".").replace("::", ".").replace("/", ".").replace("[", "-").replace("]", "")
    plain = plain.replace(" ", "-").lstrip(".")
    safe = "_".join(_SAFE.findall(plain))[:_LONGEST_NAME]
    return plain if safe == plain else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def full_name(result: Result) -> str:
    """Returns the name that is unique in a project on one machine: test, variant and number of ranks."""
    return f"{result.test} {result.name} w{result.measurement.world_size}"


def with_names(results: Sequence[Listed]) -> list[tuple[str, Listed]]:
    """Returns the benchmarks with short names: the test, with its module only if two tests have the same name.

    The variant follows, unless the test's parameters contain it; the number of ranks follows if names are still equal.
    """
    modules = {result.test.partition("::")[0] for result in results}
    tests = {result.test: result.test.partition("::")[2] for result in results}
    if len(modules) > 1 and len(set(tests.values())) < len(tests):
        modules_of = {test: test.partition("::")[0].rpartition("/")[2].removesuffix(".py") for test in tests}
        tests = {test: f"{modules_of[test]}::{name}" for test, name in tests.items()}
    several = Counter(result.test for result in results)
    told = []
    for result in results:
        test, variant, strategy = tests[result.test], result.measurement.name, result.measurement.strategy
        variant = variant if strategy in variant else f"{variant} {strategy}"
        parameters = test.partition("[")[2].removesuffix("]")
        said = several[result.test] == 1 and variant in {parameters, *parameters.split("-")}
        told.append((test if said else f"{test} {variant}", result.measurement.world_size))
    sizes = Counter(named for named, _ in {*told})
    names = (f"{named} w{size}" if sizes[named] > 1 else named for named, size in told)
    return list(zip(names, results, strict=True))
